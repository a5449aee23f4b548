"""Steps of the events that are made of finished messages."""

from __future__ import annotations

import json
import re
import tracemalloc
from datetime import datetime
from typing import Any, get_args

import anthropic
import httpx2
import msgspec
from anthropic.types import beta
from anthropic.types.beta import beta_raw_message_delta_event
from behave import then
from behave.runner import Context
from finished_messages import Finished, finished_messages, parse_events
from tables import rule

from claude_batch.integrations.http_messages import events_of

MESSAGES = finished_messages()

_HALF_AN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\(?:u.{0,3}|u[dD][89abAB]..)?\Z", re.DOTALL)
"""JSON that ends in a part of an escape, or between two that are one character."""


def _events(message: Finished) -> list[dict[str, Any]]:
    events = list(parse_events(b"".join(events_of(message.body))))
    assert all(event.name == event.value["type"] for event in events), events
    return [event.value for event in events]


# Clients


@rule("the SDK's helpers put the streams of finished messages together")
def _(resource: str) -> dict[str, Any]:
    """How many are read, and the names of those that differ from their source."""

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
    read: dict[str, Any] = {}
    with anthropic.Anthropic(api_key="sk-any", http_client=http) as sdk:
        messages: Any = sdk.beta.messages if resource == "beta.messages" else sdk.messages
        for name, finished in MESSAGES.items():
            if resource == "messages" and finished.api == "beta":
                continue  # its accumulator knows neither these blocks nor their deltas
            asked = {"model": "claude-haiku-4-5", "max_tokens": 9}
            asked["messages"] = [{"role": "user", "content": name}]
            with messages.stream(**asked) as stream:
                read[name] = stream.get_final_message(), messages.create(**asked)
    different = [name for name, (final, _) in read.items() if _held(final) != _source(name)]
    # The defaults of absent fields included, it is the answer to a call without a stream.
    different += [name for name, (final, whole) in read.items() if _dump(final) != _dump(whole)]
    return {"read": len(read), "different": " ".join(different)}


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


@rule("a tool's input is streamed")
def _(input: str) -> dict[str, str]:
    block = b'{"type": "tool_use", "id": "toolu_1", "name": "f", "input": %b}' % input.encode()
    message = b'{"content": [%b], "usage": {}}' % block
    events = [event.value for event in parse_events(b"".join(events_of(message)))]
    [start] = [each["content_block"] for each in events if "content_block" in each]
    assert start["input"] == {}, start
    first, *others = (each["delta"]["partial_json"] for each in _block_deltas(events))
    return {"first_delta": first, "others": "".join(others)}


@rule("what is not a message is refused before its first event")
def _(bytes: str) -> None:
    try:
        events_of(bytes.encode())
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _block_deltas(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == "content_block_delta"]


@then("each delta of each finished message is valid alone, and has {most:d} bytes or less")
def _(context: Context, most: int) -> None:
    long = [name for name in MESSAGES if name.startswith(("a long", "long"))]
    assert len(long) >= 10
    for name, finished in MESSAGES.items():
        deltas = _block_deltas(_events(finished))
        assert name not in long or len(deltas) > 3, name
        for event in deltas:
            delta = event["delta"]
            for field in ("text", "thinking", "partial_json"):
                # Half of a surrogate pair has no bytes, and raises here.
                assert len(delta.get(field, "").encode()) <= most, name
            # Clients parse the input as far as it has come.
            assert not _HALF_AN_ESCAPE.search(delta.get("partial_json", "")[-40:]), (name, delta)


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


# The SDK's types


@rule("the SDK's types and ours differ")
def _(place: str, type: str) -> dict[str, str]:
    """What a type lists: its fields, or the kinds of a union; and what stands at its place."""
    first, *others = place.split(".")
    messages = MESSAGES.values()
    objects = [_events(each)[-2] if first == "message_delta" else each.value for each in messages]
    for name in others:
        inner = [each[name] for each in objects if each.get(name)]
        objects = [each for one in inner for each in (one if isinstance(one, list) else [one])]
    model = getattr(beta, type, None) or getattr(beta_raw_message_delta_event, type)
    if get_args(model):
        listed, found = _kinds(model), {each["type"] for each in objects}
    else:
        listed, found = {*model.model_fields}, {name for each in objects for name in each}
    return {
        "we_lack": " ".join(sorted(listed - found)),
        "it_lacks": " ".join(sorted(found - listed)),
    }


def _kinds(union: Any) -> set[str]:
    """Return the types of a union of models that is discriminated by `type`."""
    members = get_args(get_args(union)[0])
    return {get_args(member.model_fields["type"].annotation)[0] for member in members}
