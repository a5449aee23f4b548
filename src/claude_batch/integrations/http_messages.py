"""The Messages API's HTTP, without a network: a call that is read, and the response to its outcome.

The SDK and libraries on top of it handle only the API's responses, so every outcome becomes one.
Each has ``x-should-retry: false``, because a client's retry must not submit a request again that is
in the ledger.

A finished Message also becomes server-sent events. Their order and shapes are those of the
streaming API: https://platform.claude.com/docs/en/build-with-claude/streaming. Values keep the
bytes that the API sent, so numbers keep their digits. Only the parts of a message that become
separate events are decoded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

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
from claude_batch.core.quantities import decimal_usd, format_duration, parse_duration
from claude_batch.core.states import RequestState
from claude_batch.ledger.queries import Answer
from claude_batch.providers.mapping import result_of
from claude_batch.wire.encoding import EncodedRequest, encode_params
from claude_batch.wire.error_table import STATUS_OF_TYPE
from claude_batch.wire.messages import error_of_line, message_of_line, request_id_of_line

# Calls --------------------------------------------------------------------------------------------

FAILURE_TTL: Final = "claude-batch-failure-ttl"
"""Header of a call that takes precedence over the setting; 0 sends a new request at once."""

_BODY: Final = msgspec.json.Decoder(dict[str, Any])

_LONE_SURROGATE: Final = re.compile(
    rb"""(?<!\\)(?:\\\\)*
    ( \\u[dD][89abAB][0-9a-fA-F]{2} (?!\\u[dD][c-fC-F])
    | (?<!\\u[dD][89abAB][0-9a-fA-F]{2}) \\u[dD][c-fC-F][0-9a-fA-F]{2}
    )""",
    re.VERBOSE,
)
"""An escape of JSON for half of a character, with the escaped backslashes before it."""


class MessagesCall(NamedTuple):
    """A call as the ledger stores it."""

    encoded: EncodedRequest
    stream: bool
    """Whether the caller wants the answer as server-sent events."""


def read_call(
    body: bytes,
    headers: Mapping[str, str],
    *,
    defaults: Mapping[str, Any],
    user_profile: str | None = None,
) -> MessagesCall:
    """Encode the params of a call's body. Raises `InvalidRequestError`.

    The names of ``headers`` are lower case. ``defaults`` are parameters for a body without them,
    and ``user_profile`` is for a call that names none.
    """
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise InvalidRequestError(
            f"the body has the content-encoding {encoding[:100]!r}; send it uncompressed"
        )
    try:
        params = _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if (found := _LONE_SURROGATE.search(body)) is not None:
            # The decoder's error may be that of a body that was cut off.
            raise InvalidRequestError(
                f"a text of the body has the lone surrogate {found[1].decode()}, which is half of "
                "a character and cannot be written as UTF-8; remove it"
            ) from None
        raise InvalidRequestError(f"the body is not a JSON object: {error}") from None
    if "betas" in params:
        # The API refuses it in a body. Only Python callers may give betas with the params.
        raise InvalidRequestError(
            "betas: Extra inputs are not permitted; send betas in the header anthropic-beta"
        )
    stream = params.pop("stream", None)
    if not isinstance(stream, bool | None):
        # A client cannot read an answer of the other form, which is paid for.
        raise InvalidRequestError("`stream` is neither true nor false")
    if params.get("user_profile_id") is not None:
        user_profile = None
    betas = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",")]
    encoded = encode_params(
        params,
        defaults=defaults,
        betas=[beta for beta in betas if beta],
        api_version=headers.get("anthropic-version"),
        user_profile=headers.get("anthropic-user-profile-id", user_profile),
    )
    return MessagesCall(encoded, bool(stream))


def read_failure_ttl(headers: Mapping[str, str], default: float) -> float:
    """Return for how many seconds a call takes an equal one's failure.

    Raises `InvalidRequestError`.
    """
    given = headers.get(FAILURE_TTL)
    try:
        return default if given is None else parse_duration(given)
    except ValueError as error:
        raise InvalidRequestError(f"{FAILURE_TTL}: {error}") from None


LONGEST_KEY: Final = 255
"""Characters of an Idempotency-Key, and of a label of the gateway."""


def read_word(name: str, value: str | None) -> str | None:
    """Return the value of a header that is a key or a label. Raises `InvalidRequestError`."""
    if value is not None and not (0 < len(value) <= LONGEST_KEY and value.isprintable()):
        raise InvalidRequestError(f"{name}: write 1 to {LONGEST_KEY} printable characters")
    return value


def read_idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the key of a call, which joins the request of that key. Raises `InvalidRequestError`.

    The SDK sends such a header only if its caller sets it.
    """
    return read_word("idempotency-key", headers.get("idempotency-key"))


# Responses ----------------------------------------------------------------------------------------

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
"""The API's type for a halt that the API caused."""

_HALTED_HERE: Final = "permission_error"
"""The type for a halt that claude-batch caused, which only the user can end. Retry layers do not
repeat its status, 403."""


def response_of(answer: Answer, *, stream: bool, failure_ttl: float = 0.0) -> httpx2.Response:
    """Return the response to a call whose request is final; ``stream``: as events.

    ``failure_ttl``: for how many seconds equal calls get the same failure.
    """
    if answer.state is not RequestState.SUCCEEDED or answer.raw is None:
        error = result_of(answer).error
        assert error is not None
        return failure(error, answer, failure_ttl=failure_ttl)
    message = message_of_line(answer.raw)
    content = b"".join(events_of(message)) if stream else message
    kind = "text/event-stream; charset=utf-8" if stream else "application/json"
    headers = {"content-type": kind, **origin_headers(answer.batch_id, answer)}
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
        **origin_headers(batch_id, answer),
    }
    if request_id is not None:
        headers["request-id"] = request_id
    if isinstance(error, BatchRequestError) and error.outcome == "errored" and answer is not None:
        assert answer.raw is not None
        body = error_of_line(answer.raw)
    else:
        # The words of other errors are unknown, and may hold what no caller may see.
        message = (
            str(error)
            if isinstance(error, ActorError)
            else f"claude-batch failed: {type(error).__name__}; its log says more"
        )
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
    details: dict[str, Any] | None = None
    request_id: str | None = None
    batch_id = error.batch_id if isinstance(error, BatchRequestError | MissingResultError) else None
    match error:
        case BatchRequestError(outcome="errored"):
            kind, request_id = error.error_type or "api_error", error.request_id
        case BatchRequestError(outcome="canceled"):
            kind = CANCELED
        case BatchRequestError():
            kind = "timeout_error"
        case BatchTimeoutError():
            kind, batch_id = "timeout_error", next(iter(error.batch_ids), None)
            request_id = f"batch:{batch_id or error.run_id}"
        case KeyConflictError():
            kind = "conflict_error"
        case InvalidRequestError():
            kind = "invalid_request_error"
        case BudgetExceededError():
            kind = "billing_error"
        case AccountHaltedError():
            # The status identifies the reason; the API's own type for it may be a generic 400.
            kind = _HALTED.get(error.reason, _HALTED_HERE)
            details = {"reason": error.reason, "error_type": error.error_type}
        case ActorError():
            kind = "api_error"
        case _:
            _log.error("a call through the client failed", exc_info=error)
            kind = "api_error"
    return kind, details, batch_id, request_id


def origin_headers(batch_id: str | None, answer: Answer | None) -> dict[str, str]:
    """Return headers that identify the origin of an answer, as far as it is known."""
    headers: dict[str, str] = {}
    if batch_id is not None:
        # Result lines of a batch have no request id; this value can be searched for.
        headers["request-id"] = f"batch:{batch_id}"
        headers["claude-batch-batch-id"] = batch_id
    if answer is not None:
        if batch_id is None and answer.state is RequestState.SUCCEEDED and answer.raw is not None:
            request_id = request_id_of_line(answer.raw)
            if request_id is not None:
                headers["request-id"] = request_id
        headers["claude-batch-attempt"] = str(answer.attempt)
        headers["claude-batch-via"] = answer.via
        if answer.cost is not None:
            headers["claude-batch-cost-usd"] = decimal_usd(answer.cost)
        if answer.reused:
            headers["claude-batch-reused"] = "true"
    return headers


# Server-sent events -------------------------------------------------------------------------------

LARGEST_DELTA: Final = 16 * 1024
"""Most bytes of text, thinking or tool input in one event."""

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

_STOP_FIELDS: Final = ("stop_reason", "stop_sequence", "stop_details")
"""Fields of a message that are null until ``message_delta``."""

_FINAL_USAGE: Final = (
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

_COMPACTED: Final = ("content", "encrypted_content")
"""Fields of a ``compaction`` block that its delta has."""

_LINE_BREAKS: Final = (
    (b"\n", b" "),
    (b"\r", b" "),
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
"""Line breaks, and how JSON spells the same value without them.

The first two occur only between JSON values. The others occur in texts, and would end an event
early in clients that split lines as `str.splitlines` does.
"""

_uncut = re.compile(
    rb"""(?:
        [^\\]+
      | \\[^u]
      | \\u(?![dD][89abAB])....
      | \\u[dD][89abAB]..(?:\\u....|(?=[^\\]|\\[^u]))
    )*""",
    re.VERBOSE | re.DOTALL,
)
"""The longest start of a JSON text that ends neither in an escape nor in a surrogate pair.

Not with possessive quantifiers: Python before 3.11.5 matches half of an alternative with them
(CPython issue 106052).
"""


def in_one_line(value: bytes) -> bytes:
    """Return the same JSON value without a line break, as the data of an event."""
    for line_break, instead in _LINE_BREAKS:
        value = value.replace(line_break, instead)
    return value


def events_of(message: bytes) -> Iterator[bytes]:
    """Return the events of a Message object's JSON, ``message_start`` to ``message_stop``.

    Each item is one whole event, so a large answer needs no second copy. Raises
    `msgspec.DecodeError` at once if the bytes are not a Message.
    """
    fields = _fields.decode(in_one_line(message))
    blocks = _blocks.decode(fields.get("content", _EMPTY_LIST))
    usage = _fields.decode(fields.get("usage", _NULL))
    kinds = [_word.decode(block.get("type", _NULL)) for block in blocks]
    return _events(fields, usage, list(zip(kinds, blocks, strict=True)))


def _events(message: _Fields, usage: _Fields, blocks: list[tuple[str, _Fields]]) -> Iterator[bytes]:
    opening: dict[str, Any] = {**message, "content": [], "usage": {**usage, "output_tokens": 0}}
    for name in _STOP_FIELDS:
        if name in opening:
            opening[name] = None
    yield _event("message_start", {"message": opening})
    for index, (kind, block) in enumerate(blocks):
        start, deltas = _split(kind, block)
        yield _event("content_block_start", {"index": index, "content_block": start})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ending: dict[str, Any] = {
        "delta": {name: message[name] for name in (*_STOP_FIELDS, "container") if name in message},
        "usage": {name: usage[name] for name in _FINAL_USAGE if name in usage},
    }
    if "context_management" in message:
        ending["context_management"] = message["context_management"]
    yield _event("message_delta", ending)
    yield _event("message_stop", {})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))


def _split(kind: str, block: _Fields) -> tuple[_Fields, Iterable[dict[str, Any]]]:
    """Split a block into its start event and its deltas.

    A block of any other kind, including future kinds, is sent whole in its start event.
    """
    start = dict(block)

    def take(name: str, empty: msgspec.Raw) -> msgspec.Raw:
        value = block.get(name, _NULL)
        # A value of another JSON type has no delta: it stays in the start event.
        if memoryview(value)[0] != memoryview(empty)[0]:
            return empty
        start[name] = empty
        return value

    match kind:
        case "text":
            text, citations = take("text", _EMPTY_TEXT), take("citations", _EMPTY_LIST)
            return start, chain(
                _deltas("text_delta", "text", _pieces_of_text(text)),
                _deltas("citations_delta", "citation", _items.decode(citations)),
            )
        case "thinking":
            thinking, signature = take("thinking", _EMPTY_TEXT), take("signature", _EMPTY_TEXT)
            # A client replaces its signature with each delta's, so the signature is not cut.
            signatures = () if signature == _EMPTY_TEXT else (signature,)
            return start, chain(
                _deltas("thinking_delta", "thinking", _pieces_of_text(thinking)),
                _deltas("signature_delta", "signature", signatures),
            )
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            value = take("input", _EMPTY_OBJECT)
            return start, _deltas("input_json_delta", "partial_json", _pieces_of_input(value))
        case "compaction":
            # A client replaces both fields. A null field differs from an absent one.
            fields = {name: block[name] for name in _COMPACTED if name in block}
            start.update(dict.fromkeys(fields, _NULL))
            return start, [{"type": "compaction_delta", "content": _NULL, **fields}]
        case _:
            return start, ()


def _deltas(kind: str, name: str, values: Iterable[object]) -> Iterator[dict[str, Any]]:
    return ({"type": kind, name: value} for value in values)


def _pieces_of_text(text: msgspec.Raw) -> Iterator[msgspec.Raw]:
    """Yield a JSON string in pieces that are JSON strings."""
    for piece in _cut(memoryview(text)[1:-1]):
        yield msgspec.Raw(b'"%b"' % piece)


def _pieces_of_input(value: msgspec.Raw) -> Iterator[str]:
    """Yield the JSON text of a tool's input in pieces, after the empty piece that the API sends.

    An empty input has only that piece. Vercel's AI SDK already has ``{}`` from the start event, and
    would read ``{}{}``.
    """
    yield ""
    if _fields.decode(value):
        for piece in _cut(memoryview(value)):
            yield str(piece, "utf-8")


def _cut(text: memoryview) -> Iterator[memoryview]:
    """Cut JSON text into pieces, but never inside a character or an escape."""
    start = 0
    while (end := start + LARGEST_DELTA) < len(text):
        while text[end] & 0b1100_0000 == 0b1000_0000:
            end -= 1  # this byte continues a character
        found = _uncut.match(text, start, end)
        assert found is not None
        yield text[start : found.end()]
        start = found.end()
    if start < len(text):
        yield text[start:]
