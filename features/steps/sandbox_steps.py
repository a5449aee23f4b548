"""Steps for the sandbox: a real server, spoken to over real HTTP by the official SDK and httpx2.

Batches take an hour of the sandbox's own clock, which the steps move on: nothing here sleeps.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import Counter
from itertools import groupby
from typing import Any
from unittest import mock

import anthropic
import httpx2
from anthropic import DefaultHttpxClient
from behave import given, then, when
from behave.runner import Context
from tables import equals, rule

from claude_batch.sandbox import SandboxServer

MODEL = "claude-haiku-4-5"
VERSION = "2026-10-21"
HOUR = 3600.0

# One pool of connections for all scenarios: a TLS context costs more than most scenarios.
_HTTP = DefaultHttpxClient(timeout=20, trust_env=False)


# Helpers


def start(context: Context, **settings: Any) -> SandboxServer:
    """A started sandbox that is stopped when the scenario ends."""
    server = SandboxServer(**{"latency": HOUR, **settings}).start()
    context.sandbox = server
    context.sandbox_batches = []
    context.add_cleanup(server.stop)
    return server


def sdk(context: Context, key: str = "sk-test", **options: Any) -> anthropic.Anthropic:
    """The official client, unchanged, pointed at the sandbox."""
    return anthropic.Anthropic(
        base_url=context.sandbox.url, api_key=key, max_retries=0, http_client=_HTTP, **options
    )


def call(
    context: Context,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: dict[str, str] | None = None,
) -> None:
    """One HTTP call; leaves `sandbox_answer` or `sandbox_failure` on the context.

    A batch that is made is remembered as the last one.
    """
    context.sandbox_answer = context.sandbox_failure = None
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {"x-api-key": "sk-test", "anthropic-version": VERSION, **(headers or {})}
    sent = {name: value for name, value in sent.items() if value != "(none)"}
    began = time.monotonic()
    try:
        context.sandbox_answer = _HTTP.request(
            method,
            context.sandbox.url + path,
            content=content,
            headers=sent,
            follow_redirects=False,
        )
    except httpx2.HTTPError as failure:
        context.sandbox_failure = failure
    context.sandbox_seconds = time.monotonic() - began
    answer = context.sandbox_answer
    if (method, path) == ("POST", "/v1/messages/batches") and answer and answer.is_success:
        with contextlib.suppress(ValueError):  # the page of a proxy
            context.sandbox_batches.append(answer.json()["id"])


def params(prompt: str = "Hello", **fields: Any) -> dict[str, Any]:
    """Small Messages params."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": MODEL, "max_tokens": 1000, "messages": messages, **fields}


ask = call
_params = params
# Rules name their columns `call` and `params`.


def create(
    context: Context, requests: list[dict[str, Any]], headers: dict[str, str] | None = None
) -> None:
    """Create a batch over plain HTTP."""
    call(context, "POST", "/v1/messages/batches", {"requests": requests}, headers=headers)


def end(context: Context) -> None:
    """Let the batches' hour pass."""
    context.sandbox.advance_clock(HOUR + 1)


def batch_path(context: Context, tail: str = "") -> str:
    """The path of the last batch."""
    return f"/v1/messages/batches/{context.sandbox_batches[-1]}{tail}"


def raw_results(context: Context) -> str:
    """The text of the last batch's results, as far as it can be read."""
    call(context, "GET", batch_path(context, "/results"))
    assert context.sandbox_answer is not None, context.sandbox_failure
    assert context.sandbox_answer.status_code == 200, context.sandbox_answer.text
    return context.sandbox_answer.text


def results(context: Context) -> dict[str, dict[str, Any]]:
    """The last batch's results by custom_id, after its end."""
    end(context)
    lines = [json.loads(line) for line in raw_results(context).splitlines()]
    return {line["custom_id"]: line["result"] for line in lines}


def messages_in(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """custom_id to outcome, or error type for what errored."""
    return {
        custom_id: result["error"]["error"]["type"]
        if result["type"] == "errored"
        else result["type"]
        for custom_id, result in results.items()
    }


def equal(found: Any, wanted: Any) -> None:
    """Assert, and say what was found."""
    assert found == wanted, f"found {found!r}, wanted {wanted!r}"


def contains(text: str, part: str) -> None:
    """Assert, and say what was found."""
    assert part in text, f"{part!r} is not in {text!r}"


# A sandbox is there


@given("a sandbox")
def _(context: Context) -> None:
    start(context)


@given("a sandbox with the settings")
def _(context: Context) -> None:
    start(context, **json.loads(context.text))


@given("a sandbox with the fault plan")
def _(context: Context) -> None:
    start(context, faults=json.loads(context.text))


@given("a sandbox with the fault")
def _(context: Context) -> None:
    start(context, faults={"rules": [json.loads(context.text)]})


BUGS = {
    "prompt cache": "claude_batch.sandbox.token_usage.PromptCache.use",
    "answers in JSON": "claude_batch.sandbox.answers.last_schema",
}


@given("the sandbox has a bug in its {part}")
def _(context: Context, part: str) -> None:
    patch = mock.patch(BUGS[part], side_effect=LookupError("a bug"))
    patch.start()
    context.add_cleanup(patch.stop)


def _echo(given: dict[str, Any]) -> Any:
    prompt = given["messages"][0]["content"]
    answers: dict[str, Any] = {
        "text": "from the responder",
        "blocks": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        "call": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}],
        "message": {
            "content": "whole",
            "stop_reason": "pause_turn",
            "usage": {"server_tool_use": {"web_search_requests": 2}},
        },
        "error": {"error": {"type": "overloaded_error", "message": "too much"}},
        "thinking": [
            {"type": "thinking", "thinking": "Let me see", "signature": "signed"},
            {"type": "redacted_thinking", "data": "abc"},
            {"type": "text", "text": "Seen"},
        ],
        "odd": ["not a block"],
        "absent": {"stop_reason": "end_turn"},
        "unsent": {"content": "x", "usage": {"far": object()}},
        "own": None,
        "wrong": 7,
        "reason": {"content": "x", "stop_reason": object()},
    }
    if prompt == "raise":
        raise KeyError("no such thing")
    return answers[prompt]


@given("a sandbox with a responder")
def _(context: Context) -> None:
    start(context, responder=_echo)


# Calls as they are on the wire


@when('the sandbox is called with {method} "{path}"')
def _(context: Context, method: str, path: str) -> None:
    path = path.replace("{batch}", (context.sandbox_batches or ["none"])[-1])
    path = path.replace("{first}", (context.sandbox_batches or ["none"])[0])
    body = None if context.text is None else context.text.encode()
    headers = {}
    for row in context.table or []:
        headers[row["header"]] = row["value"]
    call(context, method, path, body, headers=headers)


def _at(found: Any, field: str) -> Any:
    """The value at a path such as `error.details.0`; "(absent)" if there is none."""
    for step in field.split("."):
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except LookupError:
            return "(absent)"
    return found


def _body(context: Context) -> Any:
    """The answer's JSON; of result lines, each under its place and its custom_id."""
    answer = context.sandbox_answer
    if answer.headers["content-type"] != "application/x-jsonl":
        return answer.json()
    lines = [json.loads(line) for line in answer.text.splitlines()]
    places = {str(place): line for place, line in enumerate(lines)}
    return {**places, **{line["custom_id"]: line for line in lines}}


def _place(context: Context, call: str) -> tuple[str, str]:
    method, _, path = call.partition(" ")
    if "file" in context:
        path = path.replace("{file}", context.file.id)
    return method, path.replace("{batch}", (context.sandbox_batches or ["none"])[-1])


@rule("the sandbox's answers are")
def _(context: Context, call: str, field: str) -> Any:
    ask(context, *_place(context, call))
    found = _at(_body(context), field)
    last = (context.sandbox_batches or [""])[-1]
    return found.replace(last, "{batch}") if last and isinstance(found, str) else found


@rule("the sandbox's answers to Latin-1 bodies are")
def _(context: Context, call: str, body: str) -> dict[str, Any]:
    method, path = call.split()
    ask(context, method, path, body.encode("latin-1"))
    answer = context.sandbox_answer
    return {"status": answer.status_code, "answer": answer.text}


@rule("the sandbox's headers are")
def _(context: Context, call: str, header: str) -> str | None:
    ask(context, *_place(context, call))
    return context.sandbox_answer.headers.get(header)


@rule("the sandbox's lines are")
def _(context: Context, params: dict[str, Any], field: str) -> Any:
    create(context, [{"custom_id": "r0", "params": {**_params(), **params}}])
    return _at(results(context)["r0"], field)


@given("the sandbox has a batch of the requests")
@when("the sandbox is sent the batch body")
def _(context: Context) -> None:
    call(context, "POST", "/v1/messages/batches", context.text.encode())


@when("the sandbox is sent the live params")
def _(context: Context) -> None:
    headers = {row["header"]: row["value"] for row in context.table or []}
    call(context, "POST", "/v1/messages", context.text.encode(), headers=headers)


@when('the sandbox is sent a live prompt "{prompt}"')
def _(context: Context, prompt: str) -> None:
    call(context, "POST", "/v1/messages", params(prompt))


@given("the sandbox has a batch of {count:d} requests")
@when("the sandbox is sent a batch of {count:d} requests")
def _(context: Context, count: int) -> None:
    create(
        context,
        [{"custom_id": f"r{each}", "params": params(f"Prompt {each}")} for each in range(count)],
        {row["header"]: row["value"] for row in context.table or []},
    )


@given("the sandbox has {batches:d} batches of {count:d} requests")
def _(context: Context, batches: int, count: int) -> None:
    for _ in range(batches):
        create(
            context,
            [
                {"custom_id": f"r{each}", "params": params(f"Prompt {each}")}
                for each in range(count)
            ],
        )


@given("the sandbox has a batch of the prompts")
@when("the sandbox is sent a batch of the prompts")
def _(context: Context) -> None:
    requests = [
        {"custom_id": row["custom_id"], "params": params(row["prompt"])} for row in context.table
    ]
    create(context, requests)


@given("the sandbox has a batch with the params")
@when("the sandbox is sent a batch with the params")
def _(context: Context) -> None:
    create(context, [{"custom_id": "r0", "params": json.loads(context.text)}])


@when('the sandbox is sent a batch with the params under "{version}" with beta "{beta}"')
def _(context: Context, version: str, beta: str) -> None:
    headers = {"anthropic-version": version, "anthropic-beta": beta}
    create(context, [{"custom_id": "r0", "params": json.loads(context.text)}], headers)


@when("a client of the sandbox sends")
def _(context: Context) -> None:
    host, port = context.sandbox.url.removeprefix("http://").split(":")
    context.sandbox_client = socket.create_connection((host, int(port)), timeout=20)
    context.add_cleanup(context.sandbox_client.close)
    text = context.text if "\n\n" in context.text else context.text + "\n\n"
    context.sandbox_client.sendall(text.replace("\n", "\r\n").encode())


@when("that client gives up after {seconds:g} seconds without an answer")
def _(context: Context, seconds: float) -> None:
    context.sandbox_client.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        raise AssertionError(context.sandbox_client.recv(1000))
    context.sandbox_client.close()


@then("the sandbox that is stopped drops that client at once")
def _(context: Context) -> None:
    context.sandbox.stop()
    context.sandbox_client.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        equal(context.sandbox_client.recv(1000), b"")
    call(context, "GET", "/v1/messages/batches")
    assert isinstance(context.sandbox_failure, httpx2.ConnectError), context.sandbox_failure


@when("the sandbox is sent a body of {size:d} bytes in pieces")
def _(context: Context, size: int) -> None:
    context.sandbox_answer = context.sandbox_failure = None
    pieces = (b" " * 1000 for _ in range(size // 1000))
    headers = {"x-api-key": "sk-test", "anthropic-version": VERSION}
    try:
        context.sandbox_answer = _HTTP.post(
            context.sandbox.url + "/v1/messages/batches", content=pieces, headers=headers
        )
    except httpx2.HTTPError as failure:
        context.sandbox_failure = failure


@when("the sandbox's clock moves on by {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    context.sandbox.advance_clock(seconds)


@when("the sandbox's batches have had their time")
@given("the sandbox's batches have had their time")
def _(context: Context) -> None:
    end(context)


@when("the sandbox is given the fault plan")
def _(context: Context) -> None:
    call(context, "POST", "/sandbox/faults", context.text.encode())


@when("the sandbox's last batch is read back")
def _(context: Context) -> None:
    call(context, "GET", batch_path(context))


# What it answers


@then('the sandbox answers {status:d} {kind} saying "{text}"')
def _(context: Context, status: int, kind: str, text: str) -> None:
    answer = context.sandbox_answer
    assert answer is not None, context.sandbox_failure
    body = answer.json()
    equal((answer.status_code, body["error"]["type"]), (status, kind))
    contains(body["error"]["message"], text)


@then("the sandbox's error tells the request id of its header")
def _(context: Context) -> None:
    answer = context.sandbox_answer
    equal(answer.json()["type"], "error")
    equal(answer.json()["request_id"], answer.headers["request-id"])


@then("the sandbox answers {status:d}")
def _(context: Context, status: int) -> None:
    assert context.sandbox_answer is not None, context.sandbox_failure
    equal((context.sandbox_answer.status_code, context.sandbox_answer.text[:0]), (status, ""))


@then('the sandbox\'s header "{name}" is "{value}"')
def _(context: Context, name: str, value: str) -> None:
    found = context.sandbox_answer.headers.get(name, "(none)")
    assert equals(found, value), found


@then("the sandbox's answer has the fields")
def _(context: Context) -> None:
    body = context.sandbox_answer.json()
    for row in context.table:
        found: Any = body
        for step in row["field"].split("."):
            found = found[int(step)] if isinstance(found, list) else found[step]
        equal((row["field"], found), (row["field"], json.loads(row["value"])))


@then('the sandbox\'s answer contains "{text}"')
def _(context: Context, text: str) -> None:
    contains(context.sandbox_answer.text, text)


@then('the sandbox\'s answer contains no "{text}"')
def _(context: Context, text: str) -> None:
    assert text not in context.sandbox_answer.text, context.sandbox_answer.text


@then("the sandbox took {seconds:g} seconds or more")
def _(context: Context, seconds: float) -> None:
    assert context.sandbox_seconds >= seconds, context.sandbox_seconds


@then("the sandbox's answer is a page of a proxy")
def _(context: Context) -> None:
    answer = context.sandbox_answer
    contains(answer.headers["content-type"], "text/html")
    contains(answer.text, "<html>")
    assert "request-id" not in answer.headers


@then("the sandbox drops the connection")
def _(context: Context) -> None:
    failure = context.sandbox_failure
    assert isinstance(failure, httpx2.TransportError), (failure, context.sandbox_answer)


@then("the sandbox shows {count:d} batches")
def _(context: Context, count: int) -> None:
    context.sandbox.clear_faults()
    call(context, "GET", "/v1/messages/batches?limit=1000")
    equal(len(context.sandbox_answer.json()["data"]), count)


@then("the sandbox's log soon has {count:d} calls")
def _(context: Context, count: int) -> None:
    deadline = time.monotonic() + 10
    while len(context.sandbox.log()) < count:
        assert time.monotonic() < deadline, context.sandbox.log()
        time.sleep(0.02)


@then("the sandbox's list shows the batches {numbers}")
def _(context: Context, numbers: str) -> None:
    wanted = [] if numbers == "none" else [int(each) for each in numbers.split()]
    body = context.sandbox_answer.json()
    names = {batch: number for number, batch in enumerate(context.sandbox_batches, 1)}
    equal([names[each["id"]] for each in body["data"]], wanted)
    edges = (names.get(body["first_id"]), names.get(body["last_id"]))
    equal(edges, (wanted[0], wanted[-1]) if wanted else (None, None))


@then("the sandbox's results end as")
def _(context: Context) -> None:
    found = messages_in(results(context))
    equal(found, {row["custom_id"]: row["ending"] for row in context.table})


@then('the sandbox\'s line for "{custom_id}" is errored: {kind} saying "{text}"')
def _(context: Context, custom_id: str, kind: str, text: str) -> None:
    result = results(context)[custom_id]
    assert result["type"] == "errored", result
    error = result["error"]
    equal((error["type"], error["error"]["type"]), ("error", kind))
    contains(error["error"]["message"], text)
    assert (error["request_id"] or "workerreq_").startswith("workerreq_"), error


@then('the sandbox\'s line for "{custom_id}" succeeded')
def _(context: Context, custom_id: str) -> None:
    result = results(context)[custom_id]
    equal(result["type"], "succeeded")
    context.sandbox_message = result["message"]


@then('the sandbox\'s message stops for "{reason}" with {count:d} blocks')
def _(context: Context, reason: str, count: int) -> None:
    message = getattr(context, "sandbox_message", None) or context.sandbox_answer.json()
    equal((message["stop_reason"], len(message["content"])), (reason, count))


@then('the sandbox\'s message says "{text}"')
def _(context: Context, text: str) -> None:
    contains(context.sandbox_answer.json()["content"][0]["text"], text)


@rule("the sandbox makes an instance of a schema")
def _(context: Context, schema: dict[str, Any]) -> dict[str, str]:
    # Free strings are filled with the text of the answer without a format.
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    call(context, "POST", "/v1/messages", params("Hi", output_config=wanted))
    found = json.loads(context.sandbox_answer.json()["content"][0]["text"])
    return {"instance": json.dumps(found).replace(_free_text(context), "T")}


def _free_text(context: Context) -> str:
    call(context, "POST", "/v1/messages", params("Hi"))
    return json.dumps(context.sandbox_answer.json()["content"][0]["text"])[1:-1]


@rule("the sandbox streams events")
def _(context: Context, params: dict[str, Any]) -> dict[str, str]:
    """The kinds of a stream's events, in order; equal ones in a row are one."""
    call(context, "POST", "/v1/messages", {**_params(), "stream": True, **params})
    lines = context.sandbox_answer.text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    return {
        "events": " ".join(name for name, _ in groupby(names)),
        "text": context.sandbox_answer.text,
    }


@rule("the sandbox's results come in an order")
def _(context: Context, seed: int, requests: int) -> dict[str, str]:
    start(context, seed=seed)
    create(
        context,
        [{"custom_id": f"r{each}", "params": params(f"Prompt {each}")} for each in range(requests)],
    )
    end(context)
    lines = [json.loads(line) for line in raw_results(context).splitlines()]
    return {"order": " ".join(line["custom_id"] for line in lines)}


def _cached(context: Context) -> dict[str, int]:
    usage = context.sandbox_answer.json()["usage"]
    equal(sum(usage["cache_creation"].values()), usage["cache_creation_input_tokens"])
    return {
        "5m": usage["cache_creation"]["ephemeral_5m_input_tokens"],
        "1h": usage["cache_creation"]["ephemeral_1h_input_tokens"],
        "read": usage["cache_read_input_tokens"],
    }


@then('the sandbox\'s usage counts tokens of the kind "{kind}" alone')
def _(context: Context, kind: str) -> None:
    counts = _cached(context)
    assert counts.pop(kind) > 0, counts
    equal(sum(counts.values()), 0)


_AUTH = {"x-api-key": "sk-test", "anthropic-version": VERSION}


def _readable_results(context: Context) -> str:
    """The last batch's results, up to where the connection breaks."""
    context.sandbox_failure = None
    read = b""
    url = context.sandbox.url + batch_path(context, "/results")
    try:
        with _HTTP.stream("GET", url, headers=_AUTH) as answer:
            equal(answer.status_code, 200)
            for piece in answer.iter_raw():
                read += piece
    except httpx2.RemoteProtocolError as failure:
        context.sandbox_failure = failure
    return read.decode()


@then("the sandbox's result lines count as")
def _(context: Context) -> None:
    found: Counter[str] = Counter()
    wanted: dict[str, int] = {}
    *lines, rest = _readable_results(context).split("\n")
    found["unfinished"] = bool(rest)
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            found["not JSON"] += 1
            continue
        found["lines"] += 1
        found[told["result"]["type"]] += 1
        found["foreign"] += told["custom_id"].startswith("foreign")
        found["with unknown fields"] += "sandbox_unknown_field" in told["result"]
        found[f"of {told['custom_id']}"] += 1
    for row in context.table:
        wanted[row["what"]] = int(row["count"])
    equal({what: found[what] for what in wanted}, wanted)


# Limits of a minute


@then(
    "the sandbox tells that of {requests:d} requests {left:d} remain, of {given:d} input-tokens "
    "some, of {told:d} output-tokens {told_left:d}"
)
def _(context: Context, requests: int, left: int, given: int, told: int, told_left: int) -> None:
    answer = context.sandbox_answer
    assert answer.status_code == 200, answer.text
    seen = {
        name: (
            int(answer.headers[f"anthropic-ratelimit-{name}-limit"]),
            int(answer.headers[f"anthropic-ratelimit-{name}-remaining"]),
        )
        for name in ("requests", "input-tokens", "output-tokens")
    }
    # One comes back each second, and more than a second may pass.
    assert seen["requests"][0] == requests and left <= seen["requests"][1] < left + 10, seen
    assert seen["output-tokens"] == (told, told_left), seen
    assert seen["input-tokens"][0] == given and given - 200 < seen["input-tokens"][1] < given, seen
    assert answer.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
