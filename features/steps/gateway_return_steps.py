"""Steps for callers that close their connections and ask the gateway again at once."""

from __future__ import annotations

import re
import socket
import time
from urllib.parse import urlsplit

from behave import then, when
from behave.runner import Context
from gateway_steps import body_of
from staging import until


@when("{count:d} callers close their connections and ask again while the gateway is busy")
def _(context: Context, count: int) -> None:
    url = urlsplit(context.gateway.url)
    address = str(url.hostname), url.port or 80

    def ask(connection: socket.socket, number: int) -> None:
        body = body_of(f"question {number}", stream=True)
        head = f"POST /v1/messages HTTP/1.1\r\nhost: {url.netloc}\r\nconnection: close\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    first = [socket.create_connection(address, 20) for _ in range(count)]
    again = [socket.create_connection(address, 20) for _ in range(count)]
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


@when("a caller makes {count:d} calls at once over one connection, and closes it")
def _(context: Context, count: int) -> None:
    url = urlsplit(context.gateway.url)
    body = body_of("question", stream=True)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-length: {len(body)}\r\n"
    with socket.create_connection((str(url.hostname), url.port or 80), 20) as connection:
        connection.sendall((f"{head}\r\n".encode() + body) * count)
        until(lambda: context.gateway.gateway.calls)


@then("each of {count:d} callers has the answer to its own question")
def _(context: Context, count: int) -> None:
    """The sandbox's answers repeat the prompt, in quotes."""
    assert len(context.answers) == count
    for number, answer in enumerate(context.answers):
        assert re.search(rf'question {number}\\*"', answer), answer
