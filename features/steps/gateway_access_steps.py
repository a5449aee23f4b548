"""Steps for who may call the gateway, and how much."""

from __future__ import annotations

import contextlib
import math
import re
import resource
import socket
import stat
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

import httpx2
from behave import given, then, when
from behave.runner import Context
from click.testing import CliRunner
from gateway_steps import body_of
from staging import KEY, start_api, until
from tables import rule

import claude_batch as cb
from claude_batch.cli.app import group
from claude_batch.gateway import bodies
from claude_batch.gateway.access import TokenFile
from claude_batch.gateway.gateway_server import GatewayServer
from claude_batch.gateway.gateway_settings import GatewaySettings


def _ask(context: Context, path: str, headers: dict[str, str], content: Any = None) -> Any:
    method = "GET" if path in ("/metrics", "/healthz", "/readyz") else "POST"
    own = {"<own key>": KEY}
    own |= {f"<{name}>": token for name, token in getattr(context, "gateway_tokens", {}).items()}
    for word, secret in own.items():
        headers = {name: value.replace(word, secret) for name, value in headers.items()}
    body = (
        (body_of(path, stream=False) if content is None else content) if method == "POST" else None
    )
    with httpx2.Client(base_url=context.gateway.url, timeout=60, trust_env=False) as http:
        return http.request(method, path, headers=headers, content=body)


@rule("the gateway's responses to callers are")
def _(context: Context, path: str, headers: dict[str, str]) -> dict[str, Any]:
    response = _ask(context, path, headers)
    context.gateway_responses = [*getattr(context, "gateway_responses", []), response]
    failed = response.status_code >= 400
    assert not failed or response.headers["content-type"] == "application/json", response
    words = response.json()["error"]["message"] if failed else ""
    assert KEY not in response.text
    return {"status": response.status_code, "words": words}


@rule("the gateway's responses to methods are")
def _(context: Context, method: str, path: str) -> dict[str, Any]:
    with httpx2.Client(base_url=context.gateway.url, timeout=60, trust_env=False) as http:
        response = http.request(method, path)
    allowed = ", ".join(each for each in response.headers["allow"].split(", ") if each != "HEAD")
    assert response.headers["x-should-retry"] == "false", response.headers
    kind = response.json()["error"]["type"]
    return {"status": response.status_code, "allowed": allowed, "type": kind}


@then("no response of the gateway has a header for other origins")
def _(context: Context) -> None:
    names = {name for response in context.gateway_responses for name in response.headers}
    assert not [name for name in names if name.startswith("access-control")], names


@when("{name}'s token is removed from the file")
def _(context: Context, name: str) -> None:
    path = context.gateway_settings.tokens
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(name)))


@then("the file of tokens has mode 600, and contains none of them")
def _(context: Context) -> None:
    path = context.gateway_settings.tokens
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for token in context.gateway_tokens.values():
        assert token not in path.read_text() and token[4:] not in path.read_text()


# Bodies


@rule("the gateway's responses to bodies are")
def _(context: Context, bytes: int, announced: bool, held: int) -> dict[str, Any]:
    body = body_of(f"{bytes}", stream=False)
    padded = body.replace(b"{", b"{" + b" " * (bytes - len(body)), 1)
    limits = context.gateway.gateway.bodies
    limits.held += held
    try:
        response = _ask(context, "/v1/messages", {}, padded if announced else iter((padded,)))
    finally:
        limits.held -= held
    kind = response.json()["error"]["type"] if response.status_code >= 400 else ""
    return {"status": response.status_code, "type": kind}


@given("the gateway waits {seconds:g} seconds for a byte")
def _(context: Context, seconds: float) -> None:
    before = bodies.PATIENCE
    bodies.PATIENCE = seconds
    context.add_cleanup(setattr, bodies, "PATIENCE", before)


@when("the gateway gets half a body")
def _(context: Context) -> None:
    url = urlsplit(context.gateway.url)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-length: 100\r\n\r\n"
    with socket.create_connection((str(url.hostname), url.port or 80), 20) as connection:
        connection.sendall(head.encode() + b"{" * 50)
        context.gateway_answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()


# Start


@then('a gateway for other machines without tokens is refused with "{words}"')
def _(context: Context, words: str) -> None:
    start_api(context)
    done = CliRunner().invoke(group, ["gateway", "--host", "0.0.0.0", "--port", "0"])
    assert done.exit_code == 2, done
    assert fnmatchcase(" ".join(done.output.split()), f"*{words.replace('…', '*')}*"), done.output
    with cb.ClaudeBatchProvider() as provider:
        try:
            GatewayServer(provider, GatewaySettings(host="0.0.0.0", port=0)).start()
        except cb.ActorConfigurationError as error:
            assert "--tokens FILE" in str(error)
        else:
            raise AssertionError("it was started")


@when('"claude-batch gateway --tokens tokens --new-token {name}" is run twice')
def _(context: Context, name: str) -> None:
    path = context.tmp / "tokens"
    words = ["gateway", "--tokens", str(path), "--new-token", name]
    context.ended = [CliRunner().invoke(group, words) for _ in range(2)]
    context.gateway_token_file = path


@then("the first prints a token that the file knows as {name}, and the second is refused")
def _(context: Context, name: str) -> None:
    first, second = context.ended
    assert first.exit_code == 0, first.output
    assert TokenFile(context.gateway_token_file).name_of(first.stdout.strip()) == name
    assert second.exit_code == 2 and "has a token for ann already" in second.output, second.output


# Metrics and readiness


def _metrics(context: Context) -> dict[str, float]:
    lines = _ask(context, "/metrics", {}).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


@then("the gateway's metrics are")
def _(context: Context) -> None:
    wanted = {row["metric"]: float(row["value"]) for row in context.table}

    def found() -> dict[str, float]:
        values = _metrics(context)
        return {name: values.get(name, -1) for name in wanted}

    until(lambda: found() == wanted, 20)


@then("the gateway's metrics count the cost of calls {names}")
def _(context: Context, names: str) -> None:
    calls = [context.gateway_calls[name] for name in names.split(" and ")]
    billed = sum(float(each.headers["claude-batch-cost-usd"]) for each in calls)
    cost = _metrics(context)["claude_batch_gateway_cost_dollars_total"]
    assert math.isclose(cost, billed) and cost > 0, (cost, billed)


@when("the gateway begins to end")
def _(context: Context) -> None:
    context.gateway.gateway.end()


@then('"{path}" is {status:d} with "{words}"')
def _(context: Context, path: str, status: int, words: str) -> None:
    response = _ask(context, path, {})
    assert (response.status_code, response.text) == (status, f"{words}\n"), response.text


@then('the gateway is not ready while its disk is full, because "{words}"')
def _(context: Context, words: str) -> None:
    assert _ask(context, "/readyz", {}).status_code == 200
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        response = _ask(context, "/readyz", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert response.status_code == 503, response.text
    assert fnmatchcase(response.text, words.replace("…", "*") + "*"), response.text
    until(lambda: _ask(context, "/readyz", {}).status_code == 200)


@when("the sandbox refuses the key and a call is made")
def _(context: Context) -> None:
    fault = {"route": "create", "action": {"type": "error", "status": 401}}
    context.api.set_faults({"rules": [fault]})
    # The first call is aborted if the refusal comes after the hold.
    with contextlib.suppress(httpx2.RemoteProtocolError):
        _ask(context, "/v1/messages", {})
    context.gateway_halted = _ask(context, "/v1/messages", {})


@then('the gateway is not ready, because "{words}"')
def _(context: Context, words: str) -> None:
    def refusal() -> Any:
        found = _ask(context, "/readyz", {})
        return found if found.status_code == 503 else None

    # Only creates are refused: the halt is lifted for a moment whenever another call succeeds.
    response = until(refusal, 20)
    assert re.match(re.escape(words).replace("…", ".*"), response.text), response.text
    assert context.gateway_halted.status_code == 401, context.gateway_halted.text
    assert _ask(context, "/healthz", {}).status_code == 200
