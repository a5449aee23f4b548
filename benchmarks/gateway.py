"""The gateway with thousands of idle calls: memory of each, and CPU while they wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

from processes import Failed, client_environment, sandbox
from sections import Goal, Section
from workload import MODEL

HELD = 3600.0
"""Seconds that a batch takes: no call is answered while it is measured."""

HOLD = 5.0
WATCHED = 45.0
"""Seconds of waiting that are measured: three signs of life at the default interval."""

SIZES = (2_000, 10_000)
LARGEST = {2_000: (0.05, 2_000 * 64 / 1024), 10_000: (0.15, 700.0)}
"""For each number of calls: most of a core, and most MiB in all, the empty gateway's included."""


def gateway() -> Section:
    """Calls that wait, as streams and without."""
    rows = [["", "memory", "memory a call", "CPU to begin a call", "share of a core while idle"]]
    goals: list[Goal] = []
    values: dict[str, Any] = {}
    for calls in SIZES:
        for stream in (True, False):
            found = values[f"{calls} {stream}"] = _measure(calls, stream=stream)
            kind = "streams" if stream else "calls without streaming"
            most, size = LARGEST[calls]
            rows.append(
                [
                    f"{calls:,} {kind}",
                    f"{found['memory']:.0f} MiB",
                    f"{found['each']:.0f} KiB",
                    f"{found['begin'] * 1e6:.0f} µs",
                    f"{found['idle']:.1%}",
                ]
            )
            idle = f"{found['idle']:.1%} of a core for {calls:,} {kind}, aim {most:.0%}"
            held = f"{found['memory']:.0f} MiB for {calls:,} {kind}, aim {size:.0f}"
            goals.append(Goal(idle, found["idle"] <= most))
            goals.append(Goal(held, found["memory"] <= size))
    return Section(
        title="The gateway",
        heading=f"Calls of 1.5 kB that wait at `claude-batch gateway`, with the default `--ping`. "
        f"Their waiting is watched for {WATCHED:.0f} seconds. Beginning includes storing and "
        "sending.",
        table=rows,
        goals=goals,
        values=values,
    )


def _measure(calls: int, *, stream: bool) -> dict[str, float]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(sandbox(HELD, folder))
        process, port = stack.enter_context(_gateway(client_environment(server, folder)))
        return asyncio.run(_watch(process.pid, port, calls, stream))


@contextlib.contextmanager
def _gateway(environment: dict[str, str]) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    command = [sys.executable, "-m", "claude_batch", "gateway", "--port", "0", "--hold", f"{HOLD}s"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        if "listening on" not in line:
            raise Failed(f"the gateway did not start: {line}")
        yield process, int(line.rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


async def _watch(pid: int, port: int, calls: int, stream: bool) -> dict[str, float]:
    empty, begun = _memory(pid), _cpu(pid)
    writers: list[asyncio.StreamWriter] = []
    for first in range(0, calls, 200):
        numbers = range(first, min(calls, first + 200))
        writers += await asyncio.gather(*(_ask(port, number, stream) for number in numbers))
    await asyncio.to_thread(_until_held, port, calls)
    await asyncio.sleep(2 * HOLD)
    idle, since = _cpu(pid), time.monotonic()
    await asyncio.sleep(WATCHED)
    share = (_cpu(pid) - idle) / (time.monotonic() - since)
    memory = _memory(pid)
    for writer in writers:
        writer.close()
    return {
        "empty": empty / 2**20,
        "memory": memory / 2**20,
        "each": (memory - empty) / calls / 1024,
        "begin": (idle - begun) / calls,
        "idle": share,
    }


async def _ask(port: int, number: int, stream: bool) -> asyncio.StreamWriter:
    message = {"role": "user", "content": f"call {number} " + "x" * 1500}
    params = {"model": MODEL, "max_tokens": 100, "stream": stream, "messages": [message]}
    body = json.dumps(params).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


def _until_held(port: int, calls: int) -> None:
    """Wait until the gateway counts all calls as waiting."""
    for _ in range(200):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            if f"calls_waiting {calls}.0" in response.read().decode():
                return
        time.sleep(0.5)
    raise Failed(f"{calls} calls were not taken by the gateway")


def _memory(pid: int) -> int:
    """Bytes of a process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu(pid: int) -> float:
    """Seconds of a process's CPU, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
