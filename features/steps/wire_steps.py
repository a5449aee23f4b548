"""Steps of the wire: encoding, the table of errors, result lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from behave import given, then, when
from behave.runner import Context

from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire import error_table
from claude_batch.wire.encoding import (
    BODY_END,
    BODY_START,
    body_items,
    custom_id,
    encode_params,
    parse_custom_id,
)
from claude_batch.wire.error_table import classify_line, fault_of_response
from claude_batch.wire.inbound import retry_after
from claude_batch.wire.messages import (
    UnreadableLine,
    decode_line,
    decode_message,
    message_of_line,
)
from claude_batch.wire.redaction import Redaction

API_ERROR = {"type": "error", "error": {"type": "api_error", "message": "m"}}
GOOD: dict[str, Any] = {
    "model": "claude-haiku-4-5",
    "max_tokens": 10,
    "messages": [{"role": "user", "content": "hello"}],
}


NO_SECRETS = Redaction(())


class Captured(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def encode(context: Context, params: dict[str, Any], **more: Any) -> None:
    handler = Captured()
    logger = logging.getLogger("claude_batch.wire.encoding")
    logger.addHandler(handler)
    context.error = context.encoded = None
    try:
        context.encoded = encode_params(params, **more)
    except InvalidRequestError as error:
        context.error = error
    finally:
        logger.removeHandler(handler)
    context.warned = handler.lines


FAULTS: dict[str, dict[str, Any]] = {
    "no model": {"model": None},
    "empty messages": {"messages": []},
    "a value that is no JSON": {"metadata": {"set": object()}},
    "more bytes than a batch may have": {"system": "x" * 256_000_000},
}


@when("params with {fault} are encoded")
def _(context: Context, fault: str) -> None:
    if fault == "betas":
        encode(
            context,
            {**GOOD, "betas": ["b", "a"]},
            betas=["c", "a"],
            user_profile="profile-1",
        )
        return
    if fault == '"stream": false and "temperature": null':
        encode(context, {**GOOD, "stream": False, "temperature": None})
        return
    if fault.startswith('"'):
        encode(context, {**GOOD, **json.loads("{" + fault + "}")})
    elif fault in ("no max_tokens", "no messages"):
        encode(context, {k: v for k, v in GOOD.items() if k != fault.removeprefix("no ")})
    else:
        encode(context, {**GOOD, **FAULTS[fault]})


@when("params with {fault} are encoded for a live call")
def _(context: Context, fault: str) -> None:
    encode(context, {**GOOD, **json.loads("{" + fault + "}")}, batch=False)


@when("params of {model} with {name} are encoded")
def _(context: Context, model: str, name: str) -> None:
    if name == "a default temperature":
        encode(context, {**GOOD, "model": model}, defaults={"temperature": 0.5, "model": "other"})
    else:
        encode(context, {**GOOD, "model": model, name: 0.5})


@then('they are refused with "{words}"')
def _(context: Context, words: str) -> None:
    assert context.error is not None
    assert words in str(context.error), context.error


@then("the encoded params have neither")
def _(context: Context) -> None:
    assert set(json.loads(context.encoded.params)) == set(GOOD)


@then("the encoded params have no temperature")
def _(context: Context) -> None:
    assert "temperature" not in json.loads(context.encoded.params)


@then("the encoded params have it")
def _(context: Context) -> None:
    assert json.loads(context.encoded.params)["speed"] == "fast"


@then("the API version is {version}")
def _(context: Context, version: str) -> None:
    assert context.encoded.headers.api_version == version, context.encoded.headers


@then("a warning says that the default is dropped")
def _(context: Context) -> None:
    assert any("default" in line and "dropped" in line for line in context.warned), context.warned


@then("the headers name the betas and the profile, and the params do not")
def _(context: Context) -> None:
    assert context.encoded.headers.as_headers() == {
        "anthropic-version": "2026-10-21",
        "anthropic-beta": "a,b,c",
        "anthropic-user-profile-id": "profile-1",
    }
    assert "betas" not in json.loads(context.encoded.params)


@then("a custom_id reads back as it was made")
def _(context: Context) -> None:
    text = custom_id("0123456789abcdef" * 2, "deadbeef", 7)
    assert len(text) == 46
    assert parse_custom_id(text) == ("0123456789abcdef" * 2, "deadbeef", 7)


@then("custom_ids of others are not taken for ours")
def _(context: Context) -> None:
    for text in ("request-1", "", "x" * 64, f"{'a' * 32}-deadbeef-000x", f"{'a' * 32}-deadbeef-1"):
        assert parse_custom_id(text) is None, text


@then("the 10,000th sending of a request is refused")
def _(context: Context) -> None:
    assert custom_id("a" * 32, "deadbeef", 9999).endswith("-9999")
    try:
        custom_id("a" * 32, "deadbeef", 10000)
    except InvalidRequestError as error:
        assert "9999" in str(error)
    else:
        raise AssertionError("a custom_id with five digits of sending was made")


@then("a body of two requests is the JSON that the API takes")
def _(context: Context) -> None:
    pairs = [("id-1", b'{"a":1}'), ("id-2", b'{"b":2}')]
    body = BODY_START + b"".join(body_items(pairs, first=True)) + BODY_END
    assert json.loads(body) == {
        "requests": [
            {"custom_id": "id-1", "params": {"a": 1}},
            {"custom_id": "id-2", "params": {"b": 2}},
        ]
    }


# Errors


@given('an answer {status:d} with {error_type} saying "{message}" and {details}')
def _(context: Context, status: int, error_type: str, message: str, details: str) -> None:
    error: dict[str, Any] = {"type": error_type, "message": message}
    if details.startswith("error_code "):
        error["details"] = {"error_code": details.removeprefix("error_code ")}
    body = json.dumps({"type": "error", "error": error}).encode()
    context.fault = fault_of_response(status, {"request-id": "req_1"}, body, NO_SECRETS)
    assert "req_1" in context.fault.describe() and error_type in context.fault.describe()


@given("an answer {status:d} that is not the API's")
def _(context: Context, status: int) -> None:
    headers = {"location": "http://elsewhere/"} if status < 400 else {}
    context.fault = fault_of_response(status, headers, b"<html>a proxy speaks</html>", NO_SECRETS)
    assert not context.fault.from_api and context.fault.account_reason is None
    assert "a proxy speaks" in context.fault.describe()


@then("the create is judged {verdict}")
def _(context: Context, verdict: str) -> None:
    assert context.fault.verdict.name == verdict


@then('a line with {error_type} saying "{message}" is {disposition}')
def _(context: Context, error_type: str, message: str, disposition: str) -> None:
    assert classify_line(error_type, message, None) == disposition


@then('a failure with {error_type} saying "{message}" passes')
def _(_: Context, error_type: str, message: str) -> None:
    assert error_table.passes(error_type, message)


@then('a failure with {error_type} saying "{message}" does not pass')
def _(_: Context, error_type: str, message: str) -> None:
    assert not error_table.passes(error_type, message)


def _table_of_errors() -> list[str]:
    fates = {"retry": "tried again", "account": "back to the queue", "final": "final"}
    return [
        f"| `{row.error_type}` | {_told(row)} | {fates[row.disposition]} | {row.halt or ''} | "
        f"{row.source} |"
        for row in error_table.MEANINGS
    ]


def _told(row: error_table.Meaning) -> str:
    if row.error_code is not None:
        return f"`error_code` is `{row.error_code}`"
    if row.words is None:
        return "any"
    return (
        f"begins “{row.words.pattern.removeprefix('^').replace('(workspace )?', '[workspace] ')}”"
    )


def _table_of_answers() -> list[str]:
    return [
        f"| {_statuses(row.statuses)} | {'yes' if row.in_api_words else 'no'} | {row.meaning} | "
        f"{row.source} |"
        for row in error_table.NOT_BILLED
    ]


def _statuses(found: range) -> str:
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


@then("docs/explanation/guarantees.md has every row of the {name}, with its source")
def _(_: Context, name: str) -> None:
    text = (Path(__file__).parents[2] / "docs/explanation/guarantees.md").read_text()
    rows = _table_of_errors() if name == "table of errors" else _table_of_answers()
    assert "\n".join(rows) in text, "\n".join(rows)


@then("an answer {status:d} to a live call {whose} proves that nothing is billed: {proves}")
def _(_: Context, status: int, whose: str, proves: str) -> None:
    body = b"<html></html>" if whose == "from a proxy" else json.dumps(API_ERROR).encode()
    headers = {} if whose == "from a proxy" else {"request-id": "req_1"}
    fault = fault_of_response(status, headers, body, NO_SECRETS)
    assert fault.is_not_billed == (proves == "yes"), fault


@then("the headers {headers} ask to wait {seconds} seconds")
def _(context: Context, headers: str, seconds: str) -> None:
    waited = retry_after(json.loads(headers))
    assert waited == (None if seconds == "None" else float(seconds)), waited


# Lines

MESSAGE = (
    '{"id":"msg_1","type":"message","role":"assistant","model":"claude-haiku-4-5",'
    '"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,'
    '"usage":{"input_tokens":5,"output_tokens":2}}'
)
LINES = {
    "a success": '{"custom_id":"a","result":{"type":"succeeded","message":' + MESSAGE + "}}",
    "a success with cache tokens": (
        '{"custom_id":"a","result":{"type":"succeeded","message":{"usage":{"input_tokens":5,'
        '"output_tokens":2,"cache_creation_input_tokens":7,"cache_read_input_tokens":3,'
        '"cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":4},'
        '"server_tool_use":{"web_search_requests":2},"service_tier":"batch"}}}}'
    ),
    "an error, nested twice": (
        '{"custom_id":"a","result":{"type":"errored","error":{"type":"error","request_id":"req_9",'
        '"error":{"type":"overloaded_error","message":"busy"}}}}'
    ),
    "an expired request": '{"custom_id":"a","result":{"type":"expired"}}',
    "a canceled request": '{"custom_id":"a","result":{"type":"canceled"}}',
    "no JSON": "not at all",
    "a success without a message": '{"custom_id":"a","result":{"type":"succeeded"}}',
    "an error without an error": '{"custom_id":"a","result":{"type":"errored"}}',
    "an outcome nobody knows": '{"custom_id":"a","result":{"type":"pondered"}}',
}


@when("the line of {what} is decoded")
def _(context: Context, what: str) -> None:
    try:
        context.line = decode_line(LINES[what].encode())
    except UnreadableLine:
        context.line = None


@then("it is {outcome}")
def _(context: Context, outcome: str) -> None:
    line = context.line
    if outcome == "unreadable":
        assert line is None
        return
    if outcome == "malformed":
        assert (line.outcome, line.disposition) == ("succeeded", "malformed") and line.fault
        return
    assert line is not None and line.outcome == outcome
    if outcome == "succeeded":
        assert (line.usage.input_tokens, line.usage.output_tokens) == (5, 2)
        if line.usage.cache_read_input_tokens:
            assert line.usage.cache_creation_5m_input_tokens == 3
            assert line.usage.cache_creation_1h_input_tokens == 4
            assert line.usage.web_search_requests == 2
            assert line.usage.service_tier == "batch"
    if outcome == "errored":
        assert (line.error.type, line.error.message) == ("overloaded_error", "busy")
        assert line.error.request_id == "req_9"
        assert line.disposition == "retry"


@then("the message of a line keeps its bytes")
def _(context: Context) -> None:
    raw = message_of_line(LINES["a success"].encode())
    assert raw == MESSAGE.encode()
    message = decode_message(raw)
    assert message.content == [{"type": "text", "text": "hi"}]
    assert message.usage.cache_creation_5m_input_tokens == 0
    tokens = b'{"content": [], "usage": {"cache_creation_input_tokens": 9}}'
    assert decode_message(tokens).usage.cache_creation_5m_input_tokens == 9


@then("what is no message is unreadable")
def _(context: Context) -> None:
    try:
        decode_message(b"[]")
    except UnreadableLine:
        return
    raise AssertionError("a list was taken for a message")


@when("the params of {model} are encoded for a batch, with")
def _(context: Context, model: str) -> None:
    encode(context, {**GOOD, "model": model, **json.loads(context.text)})


@when("the params of {model} are encoded for a live call, with")
def _(context: Context, model: str) -> None:
    encode(context, {**GOOD, "model": model, **json.loads(context.text)}, batch=False)


@when("the params of {model}, which has structured_outputs: {has}, are encoded with a schema")
def _(context: Context, model: str, has: str) -> None:
    config = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    params = {**GOOD, "model": model, "output_config": config}
    encode(context, params, capabilities={"structured_outputs": has == "true"})


@then("nothing was refused")
def _(context: Context) -> None:
    assert context.error is None and context.encoded is not None, context.error
