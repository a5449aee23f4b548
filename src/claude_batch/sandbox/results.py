"""The lines of a batch's results, generated while they are sent, and the stream's faults."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import msgspec
from msgspec import UNSET

from .answers import Answer, asks_json, is_plain, plain_answer
from .api_errors import ApiError, error_body, line_error
from .fault_plan import (
    AnyAction,
    ContradictingLines,
    CountedLines,
    CutBetweenLines,
    CutInsideLine,
    DoubledLines,
    ForeignLines,
    GarbageLine,
    UnknownFields,
)
from .state import FILE_MARK, SUCCEEDED, Batch, Files, answer_and_usage
from .token_usage import Usage
from .validation import Request, passed_params

CHUNK = 64 * 1024
"""Minimum bytes of one write, except the last."""

UNKNOWN_FIELD: dict[str, Any] = {
    "sandbox_unknown_field": {"why": "the API may add fields", "values": [1, None]}
}

_encode = msgspec.json.encode
_PLAIN = (
    b'{"custom_id":"%b","result":{"type":"succeeded","message":{"model":"%b","id":"msg_%b%06d",'
    b'"type":"message","role":"assistant","content":[{"type":"text","text":%b}],'
    b'"stop_reason":"%b","stop_sequence":null,"stop_details":null,"container":null,'
    b'"diagnostics":null,"usage":{"input_tokens":%d,"cache_creation_input_tokens":0,'
    b'"cache_read_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":0,'
    b'"ephemeral_1h_input_tokens":0},"output_tokens":%d,"service_tier":"batch",%b}}}}\n'
)
_PLAIN_USAGE = {
    False: b'"inference_geo":"not_available"',
    True: b'"inference_geo":"global","output_tokens_details":{"thinking_tokens":0}',
}
"""The end of a plain answer's usage, by whether its model is a newer one."""


def usage_json(request: Request, given: Answer, usage: Usage, tier: str) -> dict[str, Any]:
    """Return the `usage` object of a message."""
    of_model: dict[str, Any] = {"inference_geo": "not_available"}
    if request.model.newer:
        of_model["inference_geo"] = request.params.inference_geo or "global"
        of_model["output_tokens_details"] = {"thinking_tokens": given.thinking_tokens}
    if request.params.speed is not UNSET:
        of_model["speed"] = request.params.speed
    return {**usage.as_json(tier), **of_model, **given.usage}


def message_json(
    message_id: str, request: Request, given: Answer, usage: Usage, tier: str
) -> dict[str, Any]:
    """Return the API's message object."""
    return {
        "model": request.model.id,
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "content": given.content,
        "stop_reason": given.stop_reason,
        "stop_sequence": given.stop_sequence,
        "stop_details": given.stop_details,
        "container": None,
        "diagnostics": None,
        "usage": usage_json(request, given, usage, tier),
    }


def _passed(batch: Batch, position: int, files: Files) -> Request:
    raw = batch.entries[position].params
    request = passed_params(raw)
    if FILE_MARK in bytes(raw):
        files.put_into(request, batch.context, processed=True)
    return request


def line(batch: Batch, position: int, seed: int, files: Files) -> bytes:
    """Return the result line of one request of an ended batch, newline included."""
    ending = batch.ending(position)
    if ending.outcome == "succeeded":
        try:
            return _succeeded(batch, position, seed, files)
        except Exception as error:  # the other lines can be read all the same
            batch.fail(position, error)
            ending = batch.ending(position)
    result: dict[str, Any] = {"type": ending.outcome}
    if ending.error is not None:
        result["error"] = line_error(ending.error, f"{batch.id[9:]}{position:06d}")
    return _encode({"custom_id": batch.entries[position].custom_id, "result": result}) + b"\n"


def _succeeded(batch: Batch, position: int, seed: int, files: Files) -> bytes:
    entry = batch.entries[position]
    ending = batch.ending(position)
    request = _passed(batch, position, files)
    if (
        ending is SUCCEEDED
        and not batch.cites
        and is_plain(request)
        and not (batch.names_json and asks_json(request))
    ):
        text, reason, tokens = plain_answer(request, seed)
        model = request.model
        return _PLAIN % (
            entry.custom_id.encode(), model.id.encode(), batch.id[9:].encode(), position,
            _encode(text), reason.encode(), request.input_tokens, tokens,
            _PLAIN_USAGE[model.newer],
        )  # fmt: skip
    given, usage = answer_and_usage(request, ending, seed)
    message = message_json(f"msg_{batch.id[9:]}{position:06d}", request, given, usage, "batch")
    result = {"type": "succeeded", "message": message}
    return _encode({"custom_id": entry.custom_id, "result": result}) + b"\n"


def usage_of(batch: Batch, position: int, seed: int, files: Files) -> dict[str, Any] | None:
    """Return the usage billed for one request, or `None` if it did not succeed."""
    ending = batch.ending(position)
    if ending.outcome != "succeeded":
        return None
    try:
        request = _passed(batch, position, files)
        given, usage = answer_and_usage(request, ending, seed)
    except Exception as error:
        batch.fail(position, error)
        return None
    return usage_json(request, given, usage, "batch")


def lines(batch: Batch, seed: int, files: Files) -> Iterator[bytes]:
    """Yield all result lines, in an order that depends only on the seed and the batch's number."""
    order = list(range(len(batch.entries)))
    random.Random(f"{seed}:{batch.ordinal}").shuffle(order)
    return (line(batch, position, seed, files) for position in order)


def chunks(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of at least `CHUNK`."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= CHUNK:
            yield b"".join(held)
            held.clear()
            size = 0
    if held:
        yield b"".join(held)


def spoiled(parts: Iterator[bytes], action: AnyAction) -> Iterator[bytes]:
    """Yield the lines, modified by the action of the fault plan."""
    match action:
        case CutInsideLine():
            yield from _cut_inside(parts, action.after_lines)
        case CutBetweenLines():
            yield from islice(parts, action.after_lines)
        case UnknownFields():
            for part in parts:
                yield _encode(with_unknown_fields(msgspec.json.decode(part))) + b"\n"
        case CountedLines():
            for number, part in enumerate(parts):
                if action.after_lines <= number < action.after_lines + action.count:
                    yield from _replaced(part, number, action)
                else:
                    yield part
        case _:
            yield from parts


def _cut_inside(parts: Iterator[bytes], after_lines: int) -> Iterator[bytes]:
    last = b""
    for number, part in enumerate(parts):
        if last:
            yield last
        last = part
        if number >= after_lines:
            break
    yield last[: len(last) // 2]


def _replaced(part: bytes, number: int, action: CountedLines) -> Iterator[bytes]:
    """Yield what takes the place of line `number`, counted from 0: nothing for a missing line."""
    if isinstance(action, DoubledLines):
        yield part
        yield part
    elif isinstance(action, ContradictingLines):
        false = contradiction(part, action)
        if action.replace:
            yield false
        else:
            yield from (false, part) if action.first else (part, false)
    elif isinstance(action, GarbageLine):
        yield part[: len(part) // 2] + b"\x00 this is not JSON\n"
        if not action.replace:
            yield part
    elif isinstance(action, ForeignLines):
        custom_id = f"foreign-{number}"
        yield _encode({"custom_id": custom_id, "result": {"type": "expired"}}) + b"\n"
        yield part


def contradiction(part: bytes, action: ContradictingLines) -> bytes:
    """Return a line for the same `custom_id` with another outcome."""
    line = msgspec.json.decode(part)
    if line["result"]["type"] == "succeeded":
        line["result"] = {"type": action.outcome}
        if action.outcome == "errored":
            error = ApiError(action.error, "An error that contradicts another line.")
            line["result"]["error"] = error_body(error, "req_sandbox_contradiction")
    else:
        text = {"type": "text", "text": "A line that contradicts another."}
        line["result"] = {
            "type": "succeeded",
            "message": {
                "id": "msg_sandbox_contradiction",
                "type": "message",
                "role": "assistant",
                "model": "sandbox",
                "content": [text],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "stop_details": None,
                "usage": Usage(1, 8).as_json("batch"),
            },
        }
    return _encode(line) + b"\n"


def with_unknown_fields(value: Any, inside: str = "") -> Any:
    """Return a copy of decoded JSON with an unknown field in every object but free-form ones."""
    if isinstance(value, list):
        return [with_unknown_fields(each, inside) for each in cast(list[Any], value)]
    if not isinstance(value, dict) or inside == "input":
        # The input of a tool call belongs to its schema, not to the API.
        return cast(Any, value)
    fields = cast(dict[str, Any], value)
    return {
        **{key: with_unknown_fields(each, key) for key, each in fields.items()},
        **UNKNOWN_FIELD,
    }
