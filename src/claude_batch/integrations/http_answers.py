"""Map the outcome of a call to the HTTP response, or event stream, of the Messages API.

Every value keeps the bytes that the API sent, so an accumulator reassembles the same message. Order
and shapes are those of the streaming API:
https://platform.claude.com/docs/en/build-with-claude/streaming

The SDK and libraries on top of it handle only the API's responses, so every outcome becomes one.
Each has ``x-should-retry: false``, because a client's retry must not submit a request again that is
in the ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import httpx2
import msgspec

from claude_batch.core.errors import (
    AccountHaltedError,
    ActorError,
    BatchRequestError,
    BatchTimeoutError,
    BudgetExceededError,
    HaltReason,
    InvalidRequestError,
    KeyConflictError,
    MissingResultError,
)
from claude_batch.core.quantities import decimal_usd, format_duration
from claude_batch.core.states import RequestState
from claude_batch.ledger.queries import Answer
from claude_batch.providers.mapping import result_of
from claude_batch.wire.error_table import STATUS_OF_TYPE
from claude_batch.wire.messages import error_of_line, message_of_line

# Event stream -------------------------------------------------------------------------------------

_Fields = dict[str, msgspec.Raw]

_fields = msgspec.json.Decoder(_Fields)
_blocks = msgspec.json.Decoder(list[_Fields])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_word = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode

_NULL: Final = msgspec.Raw(b"null")
_EMPTY_TEXT: Final = msgspec.Raw(b'""')
_EMPTY_LIST: Final = msgspec.Raw(b"[]")
_EMPTY_OBJECT: Final = msgspec.Raw(b"{}")
_NOTHING: Final = (_NULL, _EMPTY_TEXT, _EMPTY_LIST)

_TOLD_AT_THE_END: Final = ("stop_reason", "stop_sequence", "stop_details", "container")
"""Fields of a message that a stream sends only in ``message_delta``."""

_COUNTED_AT_THE_END: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "server_tool_use",
    "output_tokens_details",
    "iterations",
    "fallback_credit",
)
"""Fields of ``usage`` that ``message_delta`` has (`BetaMessageDeltaUsage` of the SDK)."""

_TAKE_INPUT: Final = ("tool_use", "server_tool_use", "mcp_tool_use")
"""Blocks whose ``input`` comes in deltas (the SDK's ``TRACKS_TOOL_INPUT``)."""


def events_of(message: bytes) -> bytes:
    """Return all events of a Message object's JSON, ``message_start`` to ``message_stop``.

    Raises `msgspec.DecodeError` if the bytes are not a Message.
    """
    return b"".join(_events(_fields.decode(message)))


def _events(message: _Fields) -> Iterator[bytes]:
    usage = _fields.decode(message["usage"])
    opening: dict[str, Any] = {**message, "content": [], "usage": {**usage, "output_tokens": 0}}
    for name in _TOLD_AT_THE_END:
        if name in opening:
            opening[name] = None
    yield _event("message_start", {"message": opening})
    for index, block in enumerate(_blocks.decode(message.get("content", _EMPTY_LIST))):
        start, deltas = _taken_apart(_word.decode(block["type"]), block)
        yield _event("content_block_start", {"index": index, "content_block": start})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ending: dict[str, Any] = {
        "delta": {name: message[name] for name in _TOLD_AT_THE_END if name in message},
        "usage": {name: usage[name] for name in _COUNTED_AT_THE_END if name in usage},
    }
    if "context_management" in message:
        ending["context_management"] = message["context_management"]
    yield _event("message_delta", ending)
    yield _event("message_stop", {})


def _taken_apart(kind: str, block: _Fields) -> tuple[_Fields, list[dict[str, Any]]]:
    """Split a block into its start event and the deltas for the rest.

    A block of any other kind, including future ones, is sent whole in its start event.
    """
    start = dict(block)
    deltas: list[dict[str, Any]] = []

    def take(name: str, left: msgspec.Raw) -> msgspec.Raw | None:
        value = block.get(name, left)
        if value in _NOTHING:
            return None
        start[name] = left
        return value

    if kind == "text":
        if (text := take("text", _EMPTY_TEXT)) is not None:
            deltas.append({"type": "text_delta", "text": text})
        # Anything but a list is not citations, and is sent with the start event.
        is_list = bytes(block.get("citations", _EMPTY_LIST)).startswith(b"[")
        if is_list and (citations := take("citations", _EMPTY_LIST)) is not None:
            deltas += [
                {"type": "citations_delta", "citation": each} for each in _items.decode(citations)
            ]
    elif kind == "thinking":
        if (thinking := take("thinking", _EMPTY_TEXT)) is not None:
            deltas.append({"type": "thinking_delta", "thinking": thinking})
        if (signature := take("signature", _EMPTY_TEXT)) is not None:
            deltas.append({"type": "signature_delta", "signature": signature})
    elif kind in _TAKE_INPUT:
        start["input"] = _EMPTY_OBJECT
        text_of_input = bytes(block.get("input", _EMPTY_OBJECT)).decode()
        deltas.append({"type": "input_json_delta", "partial_json": text_of_input})
    elif kind == "compaction":
        content = take("content", _NULL)
        encrypted = take("encrypted_content", _NULL)
        deltas.append(
            {"type": "compaction_delta", "content": content, "encrypted_content": encrypted}
        )
    return start, deltas


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))


# Http answers -------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)

CANCELED: Final = "request_canceled"
"""Error type of a canceled request; the Messages API has none for it."""

_STATUS: Final = {
    **STATUS_OF_TYPE,
    # "Client closed request", which the SDK has a class for. Retry layers of other libraries repeat
    # 408, 409, 425, 429 and 5xx whatever `x-should-retry` says, and would submit a canceled request
    # again.
    CANCELED: 499,
}

_HALTED: Final[dict[HaltReason, str]] = {
    "credentials": "authentication_error",
    "billing": "billing_error",
    "permission": "permission_error",
    "spend_limit": "rate_limit_error",
    "refused": "invalid_request_error",
}


def response_of(answer: Answer, *, stream: bool, failure_ttl: float = 0.0) -> httpx2.Response:
    """Return the response to a call whose request is final; ``stream``: as events.

    ``failure_ttl``: for how many seconds equal calls get the same failure.
    """
    if answer.state is not RequestState.SUCCEEDED or answer.raw is None:
        error = result_of(answer).error
        assert error is not None
        return failure(error, answer, failure_ttl=failure_ttl)
    message = message_of_line(answer.raw)
    content = events_of(message) if stream else message
    kind = "text/event-stream; charset=utf-8" if stream else "application/json"
    headers = {"content-type": kind, **_origin(answer.batch_id, answer)}
    return httpx2.Response(200, headers=headers, content=content)


def failure(
    error: Exception, answer: Answer | None = None, *, failure_ttl: float = 0.0
) -> httpx2.Response:
    """Return the response to a call that failed.

    An error that the API itself reported for a request keeps its body, byte for byte.
    """
    kind, details, batch_id, request_id = _described(error)
    headers = {
        "content-type": "application/json",
        "x-should-retry": "false",
        **_origin(batch_id, answer),
    }
    if request_id is not None:
        headers["request-id"] = request_id
    if isinstance(error, BatchRequestError) and error.outcome == "errored" and answer is not None:
        assert answer.raw is not None
        body = error_of_line(answer.raw)
    else:
        message = str(error) if isinstance(error, ActorError) else f"claude-batch failed: {error!r}"
        if answer is not None and failure_ttl:
            message += (
                f". For {format_duration(failure_ttl)}, an equal call gets this failure without a "
                "request, unless it has the header `claude-batch-failure-ttl: 0`"
            )
        fault = {"type": kind, "message": message, **({"details": details} if details else {})}
        body = msgspec.json.encode(
            {"type": "error", "error": fault, "request_id": headers.get("request-id")}
        )
    return httpx2.Response(_STATUS.get(kind, 500), headers=headers, content=body)


def _described(error: Exception) -> tuple[str, dict[str, Any] | None, str | None, str | None]:
    """Return an error's API type, further details, its batch and its request id."""
    match error:
        case BatchRequestError(outcome="errored"):
            return error.error_type or "api_error", None, error.batch_id, error.request_id
        case BatchRequestError(outcome="canceled"):
            return CANCELED, None, error.batch_id, None
        case BatchRequestError():
            return "timeout_error", None, error.batch_id, None
        case BatchTimeoutError():
            known = error.batch_ids[0] if error.batch_ids else None
            return "timeout_error", None, known, f"batch:{known or error.run_id}"
        case KeyConflictError():
            return "conflict_error", None, None, None
        case InvalidRequestError():
            return "invalid_request_error", None, None, None
        case BudgetExceededError():
            return "billing_error", None, None, None
        case AccountHaltedError():
            # The status identifies the reason; the API's own type for it may be a generic 400.
            details = {"reason": error.reason, "error_type": error.error_type}
            return _HALTED[error.reason], details, None, None
        case MissingResultError():
            return "api_error", None, error.batch_id, None
        case ActorError():
            return "api_error", None, None, None
        case _:
            _log.error("a call through the client failed", exc_info=error)
            return "api_error", None, None, None


def _origin(batch_id: str | None, answer: Answer | None) -> dict[str, str]:
    """Return headers that identify the origin of an answer, as far as it is known."""
    headers: dict[str, str] = {}
    if batch_id is not None:
        # Result lines of a batch have no request id; this value can be searched for.
        headers["request-id"] = f"batch:{batch_id}"
        headers["claude-batch-batch-id"] = batch_id
    if answer is not None:
        headers["claude-batch-attempt"] = str(answer.attempt)
        headers["claude-batch-via"] = answer.via
        if answer.cost is not None:
            headers["claude-batch-cost-usd"] = decimal_usd(answer.cost)
        if answer.reused:
            headers["claude-batch-reused"] = "true"
    return headers
