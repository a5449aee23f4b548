"""Steps for callers that close their connections and ask the gateway again at once."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time
from typing import Any
from unittest import mock

from behave import then, when
from behave.runner import Context
from gateway_steps import body_of, connect, head_of
from staging import until
from tables import rule

from claude_batch.gateway import exchanges
from claude_batch.gateway.gateway_options import OptionReader
from claude_batch.gateway.messages_route import MessagesRoute
from claude_batch.lifecycle.waiters import CallFuture


@when("{count:d} callers close their connections and ask again while the gateway is busy")
def _(context: Context, count: int) -> None:

    def ask(connection: socket.socket, number: int) -> None:
        body = body_of(f"question {number}", stream=True)
        connection.sendall(head_of(context, len(body), "connection: close") + body)

    first = [connect(context) for _ in range(count)]
    again = [connect(context) for _ in range(count)]
    for number, connection in enumerate(first):
        ask(connection, number)
    for connection in first:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    server, _ = context.gateway._running
    loop = server._loop
    loop.call_soon_threadsafe(time.sleep, 0.3)
    for number in range(count):
        first[number].close()
        ask(again[number], number)
    context.answers = []
    for connection in again:
        with connection, connection.makefile("rb") as answer:
            context.answers.append(answer.read().decode())
            assert "event: message_stop" in context.answers[-1], context.answers


@when("a caller makes {count:d} call at once over one connection, and {ends} it")
@when("a caller makes {count:d} calls at once over one connection, and {ends} it")
def _(context: Context, count: int, ends: str) -> None:
    """`closes` or `resets`, in the middle of an answer or while the gateway is busy.

    The busy gateway writes the answer before it reads the end of the connection.
    """
    body = body_of("[[long:8]]", stream=True)
    answers, has_ended = threading.Event(), threading.Event()
    answer = MessagesRoute._answer

    async def answer_late(*args: Any) -> None:
        answers.set()
        has_ended.wait(20)
        await answer(*args)

    late = mock.patch.object(MessagesRoute, "_answer", answer_late)
    with (
        late if "busy" in ends else contextlib.nullcontext(),
        connect(context) as connection,
    ):
        connection.sendall((head_of(context, len(body)) + body) * count)
        if "busy" in ends:
            assert answers.wait(20)
        elif "middle" in ends:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            time.sleep(0.5)  # until no buffer takes more of it
        else:
            until(lambda: context.gateway.gateway.calls)
        if "resets" in ends:
            no_linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        connection.close()
        has_ended.set()
    until(lambda: not context.gateway.gateway.calls)


@then("each of {count:d} callers has the answer to its own question")
def _(context: Context, count: int) -> None:
    """The sandbox's answers repeat the prompt, in quotes."""
    assert len(context.answers) == count
    for number, answer in enumerate(context.answers):
        assert re.search(rf'question {number}\\*"', answer), answer


@rule("late failures are repeated")
def _(aborted: int, prompts: int) -> dict[str, int]:
    """How many first retries get a failure, of as many as calls with so many prompts were aborted.

    A minute is a moment here.
    """
    reader = OptionReader({})
    first, retry = (reader.read({"x-stainless-retry-count": each}) for each in "01")
    digests = [b"%d" % (number % prompts) for number in range(aborted)]

    async def repeated(pause: float, waits: float) -> int:
        with mock.patch.object(exchanges, "_PAUSE", pause):
            kept = exchanges.Exchanges()
            for digest in digests:
                future = CallFuture()
                future.settle(TimeoutError())
                exchange = exchanges.Exchange(future, digest, "withdraw", lambda *_: None)
                kept.note_failure(exchange, first)
            await asyncio.sleep(waits)
            return sum(kept.failure(digest, retry) is not None for digest in digests)

    return {
        "repeated_at_once": asyncio.run(repeated(60, 0)),
        "after_a_minute": asyncio.run(repeated(0.01, 0.1)),
    }
