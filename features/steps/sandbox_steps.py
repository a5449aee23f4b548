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

import anthropic
import httpx2
from anthropic import DefaultHttpxClient
from behave import given, then, when
from behave.runner import Context
from tables import rule

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
    """One HTTP call; leaves `sandbox_answer` or `sandbox_failure` on the context."""
    context.sandbox_answer = context.sandbox_failure = None
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {"x-api-key": "sk-test", "anthropic-version": VERSION, **(headers or {})}
    sent = {name: value for name, value in sent.items() if value != "(none)"}
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
    """Create a batch over plain HTTP; a batch that is accepted is remembered as the last one."""
    call(context, "POST", "/v1/messages/batches", {"requests": requests}, headers=headers)
    answer = context.sandbox_answer
    if answer is not None and answer.status_code == 200:
        with contextlib.suppress(ValueError):
            context.sandbox_batches.append(answer.json()["id"])


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


def _place(context: Context, call: str) -> tuple[str, str]:
    method, _, path = call.partition(" ")
    if "file" in context:
        path = path.replace("{file}", context.file.id)
    return method, path.replace("{batch}", (context.sandbox_batches or ["none"])[-1])


@rule("the sandbox's answers are")
def _(context: Context, call: str, field: str) -> Any:
    ask(context, *_place(context, call))
    found = _at(context.sandbox_answer.json(), field)
    last = (context.sandbox_batches or [""])[-1]
    return found.replace(last, "{batch}") if last and isinstance(found, str) else found


@rule("the sandbox's headers are")
def _(context: Context, call: str, header: str) -> str | None:
    ask(context, *_place(context, call))
    return context.sandbox_answer.headers.get(header)


@rule("the sandbox's lines are")
def _(context: Context, params: dict[str, Any], field: str) -> Any:
    create(context, [{"custom_id": "r0", "params": {**_params(), **params}}])
    return _at(results(context)["r0"], field)


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


@given('the sandbox has a batch of the key "{key}"')
def _(context: Context, key: str) -> None:
    create(context, [{"custom_id": "r0", "params": params()}], {"x-api-key": key})


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


@when("the sandbox is left by a client in the middle of its upload")
def _(context: Context) -> None:
    host, port = context.sandbox.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/messages/batches HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\n"
            b"anthropic-version: 2023-06-01\r\ncontent-length: 1000\r\n\r\n{"
        )
    deadline = time.monotonic() + 10
    while not context.sandbox.log():
        assert time.monotonic() < deadline, "the call never ended"


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
    equal(context.sandbox_answer.headers.get(name, "(none)"), value)


@then("the sandbox's answer has the fields")
def _(context: Context) -> None:
    body = context.sandbox_answer.json()
    for row in context.table:
        found: Any = body
        for step in row["field"].split("."):
            found = found[int(step)] if isinstance(found, list) else found[step]
        equal((row["field"], found), (row["field"], json.loads(row["value"])))


@then("the sandbox's answer streams the events")
def _(context: Context) -> None:
    lines = context.sandbox_answer.text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    equal([name for name, _ in groupby(names)], context.text.split())


@then('the sandbox\'s answer contains "{text}"')
def _(context: Context, text: str) -> None:
    contains(context.sandbox_answer.text, text)


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


@then("the sandbox soon shows {count:d} batches")
def _(context: Context, count: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        call(context, "GET", "/v1/messages/batches?limit=1000")
        if len(context.sandbox_answer.json()["data"]) == count:
            return
        assert time.monotonic() < deadline, context.sandbox_answer.text
        time.sleep(0.02)


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


@then('the sandbox calls the tool "{name}" with')
def _(context: Context, name: str) -> None:
    message = context.sandbox_answer.json()
    equal(message["stop_reason"], "tool_use")
    block = message["content"][0]
    equal((block["type"], block["name"]), ("tool_use", name))
    equal(block["input"], json.loads(context.text))


@then("the sandbox's batch answer cites {text}")
def _(context: Context, text: str) -> None:
    equal(context.sandbox_message["content"][0]["citations"][0]["cited_text"], json.loads(text))


@rule("the sandbox makes an instance of a schema")
def _(context: Context, schema: dict[str, Any]) -> dict[str, str]:
    # A tool call's input is the instance itself; free strings are filled with the answer's text.
    tool = {"name": "t", "input_schema": schema}
    fields = params("Hi", tools=[tool], tool_choice={"type": "any"})
    call(context, "POST", "/v1/messages", fields)
    found = context.sandbox_answer.json()["content"][0]["input"]
    return {"instance": json.dumps(found).replace(_free_text(context), "T")}


def _free_text(context: Context) -> str:
    call(context, "POST", "/v1/messages", params("Hi"))
    return json.dumps(context.sandbox_answer.json()["content"][0]["text"])[1:-1]


@then("the sandbox's instances of recursive schemas end")
def _(context: Context) -> None:
    reference = {"$ref": "#/$defs/N"}
    for inner in (
        {"anyOf": [reference, {"type": "null"}]},
        {"type": "array", "items": reference},
        {"type": ["array", "null"], "items": reference, "minItems": 1},
    ):
        node = {"type": "object", "properties": {"next": inner}, "required": ["next"]}
        schema = {**reference, "$defs": {"N": node}}
        wanted = {"format": {"type": "json_schema", "schema": schema}}
        call(context, "POST", "/v1/messages", params("Hi", output_config=wanted))
        found = json.loads(context.sandbox_answer.json()["content"][0]["text"])
        depth = 0
        while found:
            found = found["next"] if isinstance(found, dict) else found[0]
            depth += 1
        assert depth > 1, schema
    loop = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    wanted = {"format": {"type": "json_schema", "schema": loop}}
    call(context, "POST", "/v1/messages", params("Hi", output_config=wanted))
    equal(context.sandbox_answer.status_code, 200)


@then("the sandbox refuses bytes that are not UTF-8 wherever they stand")
def _(context: Context) -> None:
    call(
        context, "POST", "/v1/messages/batches", b'{"requests":[{"custom_id":"\xff","params":{}}]}'
    )
    contains(context.sandbox_answer.json()["error"]["message"], "not valid JSON")
    for body in (
        b'{"model":"\xff","max_tokens":1,"messages":[]}',
        b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"\xff"}]}',
    ):
        call(context, "POST", "/v1/messages", body)
        equal(context.sandbox_answer.status_code, 400)
        contains(context.sandbox_answer.json()["error"]["message"], "utf-8")
    body = b'{"requests":[{"custom_id":"a","params":{"model":"\xff"}}]}'
    call(context, "POST", "/v1/messages/batches", body)
    context.sandbox_batches.append(context.sandbox_answer.json()["id"])
    equal(messages_in(results(context)), {"a": "invalid_request_error"})
    equal(len(context.sandbox.billing()), 3)


def _cached(context: Context) -> dict[str, int]:
    usage = context.sandbox_answer.json()["usage"]
    equal(sum(usage["cache_creation"].values()), usage["cache_creation_input_tokens"])
    return {
        "5m": usage["cache_creation"]["ephemeral_5m_input_tokens"],
        "1h": usage["cache_creation"]["ephemeral_1h_input_tokens"],
        "read": usage["cache_read_input_tokens"],
    }


@then('the sandbox\'s usage counts "{kind}" written and nothing read')
def _(context: Context, kind: str) -> None:
    counts = _cached(context)
    assert counts.pop(kind) > 0, counts
    equal(sum(counts.values()), 0)


@then("the sandbox's usage counts everything read and nothing written")
def _(context: Context) -> None:
    counts = _cached(context)
    assert counts.pop("read") > 0
    equal(sum(counts.values()), 0)


@then("the sandbox's batch of a shared prefix of {count:d} requests writes once and reads twice")
def _(context: Context, count: int) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    system = [{"type": "text", "text": "A long shared prefix", "cache_control": mark}]
    create(
        context,
        [
            {"custom_id": f"r{each}", "params": params(f"Prompt {each}", system=system)}
            for each in range(count)
        ],
    )
    usages = {
        custom_id: result["message"]["usage"] for custom_id, result in results(context).items()
    }
    assert usages["r0"]["cache_creation_input_tokens"] > 0
    for each in ("r1", "r2"):
        equal(usages[each]["cache_read_input_tokens"], usages["r0"]["cache_creation_input_tokens"])


@then("the sandbox's results end alike under another seed, in another order")
def _(context: Context) -> None:
    first = raw_results(context).splitlines()
    equal(raw_results(context).splitlines(), first)
    order = [json.loads(line)["custom_id"] for line in first]
    start(context, seed=8)
    create(
        context,
        [
            {"custom_id": f"r{each}", "params": params(f"Prompt {each}")}
            for each in range(len(first))
        ],
    )
    end(context)
    other = [json.loads(line)["custom_id"] for line in raw_results(context).splitlines()]
    equal(sorted(other), sorted(order))
    assert other != order, "the same order under another seed"
    assert order != sorted(order), "the results are in the order of the requests"


@then("the sandbox's results break off after {count:d} lines, inside the next")
def _(context: Context, count: int) -> None:
    read = b""
    broken: Exception | None = None
    url = context.sandbox.url + batch_path(context, "/results")
    try:
        with _HTTP.stream("GET", url, headers=_AUTH) as answer:
            for piece in answer.iter_raw():
                read += piece
    except httpx2.RemoteProtocolError as error:
        broken = error
    assert broken is not None, "the stream ended without an error"
    lines = read.split(b"\n")
    equal(len(lines) - 1, count)
    assert lines[-1], "the stream broke between two lines"
    for line in lines[:-1]:
        json.loads(line)


_AUTH = {"x-api-key": "sk-test", "anthropic-version": VERSION}


@then("the sandbox's result lines count as")
def _(context: Context) -> None:
    found: Counter[str] = Counter()
    wanted: dict[str, int] = {}
    for line in raw_results(context).split("\n")[:-1]:
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


@then("the sandbox's first line for a contradicted request is the false one")
def _(context: Context) -> None:
    kinds = [json.loads(line)["result"]["type"] for line in raw_results(context).splitlines()]
    equal(kinds[:2], ["errored", "succeeded"])


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
    assert seen["requests"] == (requests, left), seen
    assert seen["output-tokens"] == (told, told_left), seen
    assert seen["input-tokens"][0] == given and given - 200 < seen["input-tokens"][1] < given, seen
    assert answer.headers["anthropic-ratelimit-requests-reset"].endswith("Z")


@then("the sandbox says to wait for some seconds")
def _(context: Context) -> None:
    context.sandbox_wait = float(context.sandbox_answer.headers["retry-after"])
    assert 0.1 < context.sandbox_wait < 10, context.sandbox_wait


@when("the sandbox's clock is moved on by as long")
def _(context: Context) -> None:
    context.sandbox.advance_clock(context.sandbox_wait)
