"""A server that answers each call with the bytes of a case, and the calls that meet it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any, Self

from claude_batch.lifecycle.polling import split_lines
from claude_batch.wire.batches_client import ApiError, BatchesClient, Unreachable
from claude_batch.wire.encoding import LaneHeaders
from fuzzing import bodies
from fuzzing.bodies import KEY
from fuzzing.mutations import FRAMING, mutated_body, mutated_bytes, mutated_headers, packed
from fuzzing.readers import check_usage, read_line, read_malformed, says_no_key

__all__ = ["Network"]

PATIENCE = 20.0
"""Seconds that a call may take whose answer ends at once."""

HEADERS = LaneHeaders()
PARAMS = b'{"model":"claude-haiku-4-5","max_tokens":5,"messages":[{"role":"user","content":"x"}]}'

Call = Callable[["Network", bytes, Random], Awaitable[None]]


class Network:
    """A client, and a server on loopback that answers whatever it is told to."""

    def __init__(self) -> None:
        self.answer = b""
        """What the server sends next, from the status line on; then it closes."""
        self.asked: deque[bytes] = deque(maxlen=10)
        """Heads of the last requests."""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        self.client = BatchesClient(base_url=url, api_key=KEY, attempts=1, read_timeout=PATIENCE)
        self.live = self.client.live(concurrency=8)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self.client.close()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client may leave in the middle of an answer that it cannot read.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head)
            for line in head.lower().splitlines():
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.partition(b":")[2]))
            writer.write(self.answer)
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def play(self, rng: Random) -> bytes:
        """Make one call that is answered with something mutated; returns what was answered."""
        body, status, call = rng.choice(CALLS)
        if rng.random() < 0.25:
            status, body = rng.choice(bodies.ERRORS)
        if callable(body):
            sent = body(rng)
        else:
            sent = mutated_body(body, rng)
        self.answer = response(status, sent, rng)
        async with asyncio.timeout(PATIENCE):
            try:
                await call(self, sent, rng)
            except (ApiError, Unreachable) as error:
                says_no_key(str(error))
        assert -1e10 < self.client.clock_offset < 1e10
        workspace = self.client.workspace
        assert workspace is None or workspace.isprintable(), workspace
        return self.answer


def response(status: int, body: bytes, rng: Random) -> bytes:
    """A whole HTTP response, in whose framing something may be wrong too."""
    headers = dict(bodies.HEADERS)
    if rng.random() < 0.5:
        headers = mutated_headers(headers, rng)
    if rng.random() < 0.3:
        body, headers["content-encoding"] = packed(body, rng)
    headers |= {"connection": "close", "content-length": str(len(body))}
    if rng.random() < 0.2:
        name = rng.choice(list(FRAMING))
        headers[name] = rng.choice(FRAMING[name])
    if rng.random() < 0.05:
        status = rng.choice((100, 101, 103, 204, 206, 226, 301, 304, 307, 408, 418, 451, 599, 999))
    lines = [f"HTTP/1.1 {status} Whatever"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("utf-8")
    if rng.random() < 0.1:
        head = mutated_bytes(head, rng)
    return head + body


def _lines(rng: Random) -> bytes:
    found = [
        mutated_body({"custom_id": f"id-{number}", "result": rng.choice(bodies.LINES)}, rng)
        for number in range(rng.randint(1, 4))
    ]
    return rng.choice((b"\n", b"\r\n", b"\n\n")).join(found)


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _create(network: Network, _: bytes, rng: Random) -> None:
    body = b'{"requests":[]}'
    batch = await network.client.create(_chunks(body), len(body), HEADERS)
    _ = (batch.created, batch.ended, batch.counts)


async def _list(network: Network, _: bytes, rng: Random) -> None:
    page = await network.client.list_page(after_id="msgbatch_1")
    for batch in page.data:
        assert batch.id.isascii() and len(batch.id) <= 256
        _ = (batch.created, batch.ended, batch.counts)


async def _results(network: Network, _: bytes, rng: Random) -> None:
    async with network.client.results(bodies.BATCH_ID) as chunks:
        async for lines in split_lines(chunks):
            for line in lines:
                assert KEY.encode() not in line
                read_line(line, rng)


async def _send(network: Network, _: bytes, rng: Random) -> None:
    pace = network.live.pace("claude-haiku-4-5")
    # A pause that an earlier case asked for holds up no other.
    pace.paused_until, pace.window = float("-inf"), float("inf")
    pace._buckets.clear()
    turn = await network.live.turn("claude-haiku-4-5", len(PARAMS), 5)
    answer = await network.live.send(turn, "claude-haiku-4-5", PARAMS, HEADERS, timeout=PATIENCE)
    says_no_key(answer.reason)
    if answer.fault is not None:
        says_no_key(answer.fault.describe())
    assert KEY.encode() not in answer.raw
    assert pace.under_way == 0, pace.under_way
    ends = (answer.message, answer.malformed, answer.fault, answer.reason or None)
    assert sum(end is not None for end in ends) == 1, ends
    if answer.malformed is not None:
        says_no_key(answer.malformed.problem)
        assert answer.raw and not answer.may_be_billed
        if answer.malformed.usage is not None:
            check_usage(answer.malformed.usage)
        # As the ledger keeps it.
        read_malformed(b'{"custom_id":"x","result":{"type":"succeeded","message":%b}}' % answer.raw)
    _ = answer.may_be_billed


def _call(name: str, *words: Any) -> Call:
    async def made(network: Network, _: bytes, rng: Random) -> None:
        await getattr(network.client, name)(*words)

    return made


CALLS: list[tuple[Any, int, Call]] = [
    (bodies.BATCH, 200, _create),
    (bodies.PAGE, 200, _list),
    (bodies.BATCH, 200, _call("retrieve", bodies.BATCH_ID)),
    (bodies.BATCH, 200, _call("cancel", bodies.BATCH_ID)),
    (bodies.COUNT, 200, _call("count_tokens", PARAMS, HEADERS)),
    (bodies.FILE, 200, _call("upload_file", "a.pdf", b"%PDF-1.4", "application/pdf")),
    (bodies.FILE_PAGE, 200, _call("has_file", bodies.FILE["id"])),
    (bodies.FILE, 200, _call("delete_file", bodies.FILE["id"])),
    (_lines, 200, _results),
    (_lines, 200, _results),
    *((message, 200, _send) for message in bodies.MESSAGES[:4]),
]
