"""Steps for the gateway: a real server over the sandbox, called over real HTTP.

A table describes calls: when each begins, what it sends, and when its caller goes away. Another
table compares how they ended. Requests are compared by their ids: equal numbers in the column
`request` are equal ids.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from typing import Any

import httpx2
import msgspec
from behave import given, then, when
from behave.runner import Context
from cli_steps import command
from integration_steps import MODEL
from staging import QUICK, is_sent, newest_batch, start_api, until

import claude_batch as cb
from claude_batch.gateway import GatewaySettings
from claude_batch.gateway.gateway_app import GatewayServer
from claude_batch.sandbox import SandboxSettings

SHORT: dict[str, Any] = {"hold": 0.3, "ping": 0.1}
"""Settings that let a test see signs of life."""

LONG = 60.0
"""Seconds after which a call that has no end fails the test."""


@dataclass
class Ended:
    """How a call ended."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    end: str = "left"
    """``whole``, ``aborted``, or ``left`` if the caller went away."""
    seconds: float = 0.0
    at_first: float | None = None
    """Seconds until the status came."""

    @property
    def events(self) -> list[str]:
        lines = self.body.decode().splitlines()
        return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]

    @property
    def signs(self) -> int:
        """Signs of life: pings, or spaces before the JSON."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            return self.events.count("ping")
        return len(self.body) - len(self.body.lstrip(b" "))

    @property
    def value(self) -> dict[str, Any]:
        """The JSON of the body, or of the data of its last event."""
        text = self.body.decode().strip()
        if "data: " in text:
            text = text.rpartition("data: ")[2]
        return msgspec.json.decode(text) if text else {}

    @property
    def error(self) -> str:
        return self.value.get("error", {}).get("type", "")

    @property
    def text(self) -> str:
        """The answer's text, from a message or from the deltas of a stream."""
        if self.events:
            found = [line[6:] for line in self.body.decode().splitlines() if line[:6] == "data: "]
            deltas = [json.loads(line).get("delta", {}) for line in found]
            return "".join(delta.get("text", "") for delta in deltas)
        content = self.value.get("content", [])
        return "".join(block.get("text", "") for block in content)


# Setting the scene


@given("a gateway over the sandbox")
@given("a gateway over the sandbox with {settings:Json}")
def _(context: Context, settings: dict[str, Any] | None = None) -> None:
    """``settings`` are those of the sandbox, the gateway and the provider, by their names."""
    given_settings = dict(settings or {})

    def taken(kind: Any) -> dict[str, Any]:
        names = {each.name for each in fields(kind)} & given_settings.keys()
        return {name: given_settings.pop(name) for name in names}

    start_api(context, **{"latency": 0.3, **taken(SandboxSettings)})
    context.gateway_settings = GatewaySettings(**{"port": 0, **SHORT, **taken(GatewaySettings)})
    context.gateway_provider_settings = {**QUICK, **given_settings}
    _start(context)


def _start(context: Context) -> None:
    provider = cb.ClaudeBatchProvider(**context.gateway_provider_settings)
    context.add_cleanup(provider.close)
    context.gateway = GatewayServer(provider, context.gateway_settings).start()
    context.add_cleanup(context.gateway.stop)
    context.gateway_provider = provider


def _stop(context: Context) -> None:
    context.gateway.stop()
    context.gateway_provider.close()


@when("the gateway is started again")
def restart(context: Context) -> None:
    _stop(context)
    _start(context)


def stop_timed(context: Context) -> float:
    begun = time.monotonic()
    _stop(context)
    return time.monotonic() - begun


# Calls


def body_of(prompt: str, stream: bool) -> bytes:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 100}
    body["messages"] = [{"role": "user", "content": prompt}]
    if stream:
        body["stream"] = True
    return json.dumps(body).encode()


async def call(url: str, row: dict[str, str], ended: Ended) -> None:
    """Make one call; fills in how it ended."""
    headers = json.loads(row.get("headers") or "{}")
    path = row.get("path") or "/v1/messages"
    method = row.get("method") or "POST"
    own = row.get("body", "").encode() or body_of(row["prompt"], row.get("stream") == "yes")
    content = own if method == "POST" else None
    begun = time.monotonic()
    async with httpx2.AsyncClient(base_url=url, timeout=LONG, trust_env=False) as http:
        try:
            async with http.stream(method, path, content=content, headers=headers) as response:
                ended.at_first = time.monotonic() - begun
                ended.status, ended.headers = response.status_code, dict(response.headers)
                async for piece in response.aiter_raw():
                    ended.body += piece
                    if row.get("reads") == "a part" and ended.body.strip():
                        return
            ended.end = "whole"
        except httpx2.RemoteProtocolError:
            ended.end = "aborted"
        finally:
            ended.seconds = time.monotonic() - begun


async def _came_to_be(context: Context, what: str, ends: Iterable[Ended] = ()) -> bool:
    """Wait for what a table names, such as `3 held`; return False if it names no condition."""
    count, _, state = what.rpartition(" ")
    if state == "begun":
        await asyncio.to_thread(until, lambda: sum(bool(e.status) for e in ends) >= int(count))
    elif state == "sent":
        await asyncio.to_thread(until, partial(is_sent, int(count or 1)))
    elif state == "there":
        await asyncio.to_thread(until, partial(newest_batch, context.api.url))
    elif state == "held":
        gateway = context.gateway.gateway
        await asyncio.to_thread(until, lambda: len(gateway.calls) == int(count))
    return state in ("begun", "sent", "there", "held")


async def _play(context: Context, rows: list[dict[str, str]]) -> dict[str, Ended]:
    """Make the calls of a table; `after` and `leaves` say when a caller comes and goes away.

    After seconds; once a call has ended (its name); once so many answers have begun, if only with a
    sign of life (`2 begun`); once the ledger has a batch at the API (`sent`), or some requests in
    such batches (`3 sent`); once the API has a batch (`there`); once so many calls wait at the
    gateway (`3 held`). `{batch}` in a path is the API's newest batch.
    """
    ends = {row["call"]: Ended() for row in rows}
    tasks: dict[str, asyncio.Task[None]] = {}
    awaited: dict[str, asyncio.Task[bool]] = {}

    async def came_to_be(what: str) -> bool:
        # Those who wait for the same see it at once: the first to leave may change it again.
        if what not in awaited or awaited[what].done():
            awaited[what] = asyncio.create_task(_came_to_be(context, what, ends.values()))
        return await awaited[what]

    async def one(row: dict[str, str]) -> None:
        for after in filter(None, row.get("after", "").split(", ")):
            if after in tasks:
                await asyncio.wait([tasks[after]])
            elif not await came_to_be(after):
                await asyncio.sleep(float(after))
        if token := row.get("token"):
            own = {"x-api-key": context.gateway_tokens[token]}
            row = {**row, "headers": json.dumps({**json.loads(row.get("headers") or "{}"), **own})}
        if "{batch}" in row.get("path", ""):
            newest = await asyncio.to_thread(newest_batch, context.api.url)
            row = {**row, "path": row["path"].replace("{batch}", str(newest))}
        url = context.gateway_url if row.get("at") == "another" else context.gateway.url
        calling = asyncio.create_task(call(url, row, ends[row["call"]]))
        leaves = row.get("leaves", "")
        if not await came_to_be(leaves):
            await asyncio.wait([calling], timeout=float(leaves) if leaves else None)
        if calling.done():
            await calling
        else:
            calling.cancel()
            await asyncio.wait([calling])
            # The gateway notices the end of the connection in a later pass of its loop.
            await asyncio.sleep(0.1)

    for row in rows:
        tasks[row["call"]] = asyncio.create_task(one(row))
    await asyncio.gather(*tasks.values())
    return ends


@when("the gateway is called as follows")
def _(context: Context) -> None:
    rows = [row.as_dict() for row in context.table]
    context.gateway_calls = asyncio.run(_play(context, rows))


@when("the gateway ends after {seconds:g} seconds of these calls")
@when("the gateway ends once {count:d} of these calls wait")
def _(context: Context, seconds: float = 0.0, count: int = 0) -> None:
    rows = [row.as_dict() for row in context.table]

    async def play() -> dict[str, Ended]:
        playing = asyncio.create_task(_play(context, rows))
        await asyncio.sleep(seconds)
        if count:
            await _came_to_be(context, f"{count} held")
        context.gateway_ended = await asyncio.to_thread(stop_timed, context)
        return await playing

    context.gateway_calls = asyncio.run(play())


@then("the calls have ended with")
def _(context: Context) -> None:
    ends: dict[str, Ended] = context.gateway_calls
    known: dict[str, str] = {}
    found: list[list[str]] = []
    for row in context.table:
        ended = ends[row["call"]]
        cells: list[str] = []
        for name in context.table.headings:
            if name == "call":
                cells.append(row["call"])
            elif name == "request":
                request_id = ended.headers.get("claude-batch-request-id", "")
                cells.append(known.setdefault(request_id, str(len(known) + 1)))
            elif name == "signs":
                counted = row[name].isdigit()
                cells.append(str(ended.signs) if counted else "some" if ended.signs else "none")
            elif name == "events":
                cells.append(" ".join(event for event, _ in groupby(ended.events)))
            elif name == "characters":
                cells.append(str(len(ended.text)))
            elif name in ("status", "end", "error"):
                cells.append(str(getattr(ended, name)))
            elif name == "answered":
                cells.append("yes" if ended.text else "no")
            elif name == "batches":
                listed = json.loads(ended.body) if ended.body.startswith(b"{") else {}
                cells.append(str(len(listed["data"])) if "data" in listed else "")
            else:
                cells.append(ended.headers.get(name, ""))
        found.append(cells)
    # Calls that begin at the same time may come in either order: "2 or 4".
    same = [
        cell in row[place].split(" or ")
        for cells, row in zip(found, context.table, strict=True)
        for place, cell in enumerate(cells)
    ]
    assert all(same), "\n".join(map(str, [*found, ends]))


@then("call {name} has a sign of life for each {interval:g} seconds at least")
def _(context: Context, name: str, interval: float) -> None:
    ended: Ended = context.gateway_calls[name]
    assert ended.at_first is not None
    # Counted: a busy machine may delay each, and the last one may be due with the answer.
    wanted = int((ended.seconds - ended.at_first) / (2 * interval))
    assert ended.signs >= max(1, wanted), (ended.signs, wanted, ended)


@then("the gateway has ended within {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    assert context.gateway_ended < seconds, context.gateway_ended


@then("no call waits at the gateway")
def _(context: Context) -> None:
    gateway = context.gateway.gateway
    until(lambda: not gateway.calls and not len(gateway.exchanges) and not gateway.bodies.held)


@given("the gateway takes {seconds:g} seconds to look a request up")
def _(context: Context, seconds: float) -> None:
    provider = context.gateway_provider
    look = provider.stored_call

    def slowly(seq: int) -> Any:
        found = look(seq)
        time.sleep(seconds)
        return found

    provider.stored_call = slowly


@given("the gateway has tokens for {names}")
def _(context: Context, names: str) -> None:
    path = context.tmp / "tokens"
    context.gateway_tokens = {}
    for name in names.split(" and "):
        command(context, f"gateway --tokens {path} --new-token {name}")
        assert context.ended.exit_code == 0, context.ended.output
        context.gateway_tokens[name] = context.ended.stdout.strip()
    context.gateway_settings = replace(context.gateway_settings, tokens=path)
    restart(context)
