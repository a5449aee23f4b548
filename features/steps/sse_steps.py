"""Steps of the events that are made of finished messages."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, get_args

import anthropic
import httpx2
import msgspec
from anthropic.types import beta
from anthropic.types.beta.beta_raw_message_delta_event import Delta
from behave import then, when
from behave.runner import Context
from finished_messages import Finished, finished_messages, parse_events

from claude_batch.integrations.sse import events_of

MESSAGES = finished_messages()

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BLOCKS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])

_HALF_AN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\(?:u.{0,3}|u[dD][89abAB]..)?\Z", re.DOTALL)
"""JSON that ends in a part of an escape, or between two that are one character."""


def _events(message: Finished) -> list[dict[str, Any]]:
    events = list(parse_events(b"".join(events_of(message.body))))
    assert all(event.name == event.value["type"] for event in events), events
    return [event.value for event in events]


# Clients


@when("the SDK's helper of {resource} reads each finished message as a stream")
def _(context: Context, resource: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(request.content)
        message = MESSAGES[asked["messages"][0]["content"]].body
        if not asked.get("stream"):
            return httpx2.Response(
                200, content=message, headers={"content-type": "application/json"}
            )
        form = {"content-type": "text/event-stream"}
        return httpx2.Response(200, content=b"".join(events_of(message)), headers=form)

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    context.read = {}
    with anthropic.Anthropic(api_key="sk-any", http_client=http) as sdk:
        messages: Any = sdk.beta.messages if resource == "beta.messages" else sdk.messages
        for name, finished in MESSAGES.items():
            if resource == "messages" and finished.api == "beta":
                continue  # its accumulator knows neither these blocks nor their deltas
            asked = {"model": "claude-haiku-4-5", "max_tokens": 9}
            asked["messages"] = [{"role": "user", "content": name}]
            with messages.stream(**asked) as stream:
                context.read[name] = stream.get_final_message(), messages.create(**asked)


@then("each came out as its source, as far as the SDK can hold it")
def _(context: Context) -> None:
    assert len(context.read) >= 35
    wrong = [name for name, (final, _) in context.read.items() if _held(final) != _source(name)]
    assert not wrong, wrong
    # The defaults of absent fields included, it is the answer to a call without a stream.
    for name, (final, whole) in context.read.items():
        assert _dump(final) == _dump(whole), name


def _held(final: Any) -> Any:
    """Return what the SDK's model holds, as JSON values; infinite numbers stay numbers."""
    return json.loads(json.dumps(final.to_dict(mode="python", warnings=False), default=_rfc3339))


def _rfc3339(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _source(name: str) -> Any:
    source = MESSAGES[name].value
    for block in source["content"]:
        if block["type"] == "compaction":
            # The SDK sets this field from each delta, to None from one that is without it.
            block.setdefault("encrypted_content", None)
    return source


def _dump(message: Any) -> Any:
    return message.model_dump(warnings=False)


# Events


@then("the start, the deltas and the end of each finished message are that message")
def _(context: Context) -> None:
    for name, finished in MESSAGES.items():
        assert _put_together(_events(finished)) == finished.value, name


def _put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of a stream; unlike an SDK, keep what is absent apart from null."""
    first, *between, end, last = events
    assert last == {"type": "message_stop"}, last
    message, content = first["message"], first["message"]["content"]
    assert content == [], content
    for field in ("stop_reason", "stop_sequence", "stop_details"):
        assert message.get(field) is None, message
    inputs: dict[int, str] = {}
    for event in between:
        index = event["index"]
        match event:
            case {"type": "content_block_start", "content_block": block}:
                assert index == len(content), event
                content.append(block)
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", **delta}}:
                inputs[index] = inputs.get(index, "") + delta["partial_json"]
            case {"type": "content_block_delta", "delta": {"type": "citations_delta", **delta}}:
                content[index]["citations"].append(delta["citation"])
            case {"type": "content_block_delta", "delta": {"type": "compaction_delta", **delta}}:
                content[index] |= delta
            case {"type": "content_block_delta", "delta": delta}:
                for field in delta.keys() - {"type"}:
                    content[index][field] += delta[field]
            case _:
                assert event == {"type": "content_block_stop", "index": len(content) - 1}, event
    for index, text in inputs.items():
        assert content[index]["input"] == {}, content[index]
        content[index]["input"] = json.loads(text or "{}")
    assert message["usage"]["output_tokens"] == 0, message
    usage = message["usage"] | end.pop("usage")
    return message | end.pop("delta") | end | {"type": "message", "usage": usage}


@then('the events of "{name}" are')
def _(context: Context, name: str) -> None:
    seen: list[str] = []
    for event in _events(MESSAGES[name]):
        inner = event.get("content_block") or event.get("delta") or {}
        seen.append(
            f"{event['type']} {inner.get('type') or inner.get('stop_reason') or ''}".strip()
        )
    assert seen == context.text.split("\n"), seen


@then('the input of "{name}" is streamed as {deltas}')
def _(context: Context, name: str, deltas: str) -> None:
    [block] = _BLOCKS.decode(_FIELDS.decode(MESSAGES[name].body)["content"])
    expected = {'[""]': [""], '["", its own bytes]': ["", bytes(block["input"]).decode()]}
    events = _events(MESSAGES[name])
    [start] = [each["content_block"] for each in events if "content_block" in each]
    assert start["input"] == {}, start
    seen = [each["delta"]["partial_json"] for each in _block_deltas(events)]
    assert seen == expected[deltas], seen


def _block_deltas(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == "content_block_delta"]


@then("each delta of each finished message is valid alone, and at most {most:d} bytes")
def _(context: Context, most: int) -> None:
    for name, finished in MESSAGES.items():
        for event in _block_deltas(_events(finished)):
            delta = event["delta"]
            for field in ("text", "thinking", "partial_json"):
                # Half of a surrogate pair has no bytes, and raises here.
                assert len(delta.get(field, "").encode()) <= most, name
            # Clients parse the input as far as it has come.
            assert not _HALF_AN_ESCAPE.search(delta.get("partial_json", "")[-40:]), (name, delta)


@then("the long messages have more than one delta a block")
def _(context: Context) -> None:
    long = {name: each for name, each in MESSAGES.items() if name.startswith(("a long", "long"))}
    assert len(long) >= 10
    for name, finished in long.items():
        assert len(_block_deltas(_events(finished))) > 3, name


@then("the events of a message of 10 MB take less than {most:g} MB at once")
def _(context: Context, most: float) -> None:
    message = b'{"content": [{"type": "text", "text": "%b"}], "usage": {}}' % (b"word " * 2_000_000)
    tracemalloc.start()
    try:
        total = sum(len(event) for event in events_of(message))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 10_000_000
    assert peak < most * 1_000_000, peak


@then("no events are made of {given}")
def _(context: Context, given: str) -> None:
    try:
        events_of(b"" if given == "nothing at all" else given.encode())
    except msgspec.DecodeError:
        return
    raise AssertionError("the first event was made")


# The SDK's types


@then("the finished messages have all that the SDK's types of a message list")
def _(context: Context) -> None:
    values = [each.value for each in MESSAGES.values()]
    blocks = [block for value in values for block in value["content"]]
    citations = [each for block in blocks for each in block.get("citations") or ()]
    assert _kinds(beta.BetaContentBlock) <= {block["type"] for block in blocks}
    assert _kinds(beta.BetaTextCitation) <= {each["type"] for each in citations}
    assert {*beta.BetaMessage.model_fields} <= _names(values)
    assert {*beta.BetaUsage.model_fields} <= _names(value["usage"] for value in values)


@then('the "message_delta" events have all fields that the SDK\'s types of them list')
def _(context: Context) -> None:
    ends = [_events(each)[-2] for each in MESSAGES.values()]
    assert {*Delta.model_fields} == _names(end["delta"] for end in ends)
    assert {*beta.BetaMessageDeltaUsage.model_fields} == _names(end["usage"] for end in ends)
    # Final in `message_start`, unless the model changes while the API streams.
    told = {*beta.BetaRawMessageDeltaEvent.model_fields} - {"input_transformations"}
    assert told == _names(ends)


def _kinds(union: Any) -> set[str]:
    """Return the types of a union of models that is discriminated by `type`."""
    members = get_args(get_args(union)[0])
    return {get_args(member.model_fields["type"].annotation)[0] for member in members}


def _names(objects: Iterator[Mapping[str, Any]] | list[dict[str, Any]]) -> set[str]:
    return {name for each in objects for name in each}
