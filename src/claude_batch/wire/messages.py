"""Result lines and Message objects, decoded only as far as each reader needs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from claude_batch.core.usage import Usage
from claude_batch.wire.errors import LineDisposition, classify_line

__all__ = [
    "DecodedMessage",
    "LineError",
    "OutputMessage",
    "ResultLine",
    "UnreadableLine",
    "decode_line",
    "decode_message",
    "error_of_line",
    "message_of_line",
    "output_of_line",
]

Outcome = Literal["succeeded", "errored", "canceled", "expired"]


class UnreadableLine(ValueError):
    """A line of a results stream that is no result as the API documents it."""


class LineError(msgspec.Struct, frozen=True, gc=False):
    """The API's own words for why a request ended ``errored``."""

    type: str
    message: str
    request_id: str | None
    details: dict[str, Any] | None


class ResultLine(msgspec.Struct, frozen=True, gc=False):
    """What collection needs to know of a line; the line itself is stored as it came."""

    custom_id: str
    outcome: Outcome
    disposition: LineDisposition
    usage: Usage | None
    error: LineError | None
    model: str | None = None
    """The model that answered; None where none did."""


class _CacheCreation(msgspec.Struct, gc=False):
    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class _ServerToolUse(msgspec.Struct, gc=False):
    web_search_requests: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _CacheCreation | None = None
    server_tool_use: _ServerToolUse | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None

    def public(self) -> Usage:
        written = self.cache_creation_input_tokens or 0
        hour = five = 0
        if self.cache_creation is not None:
            hour = self.cache_creation.ephemeral_1h_input_tokens or 0
            five = self.cache_creation.ephemeral_5m_input_tokens or 0
        # The five-minute lifetime is the API's default where the answer does not tell.
        five = max(five, written - hour)
        written = five + hour
        searches = self.server_tool_use.web_search_requests if self.server_tool_use else 0
        return Usage(
            input_tokens=self.input_tokens or 0,
            output_tokens=self.output_tokens or 0,
            cache_creation_input_tokens=written,
            cache_read_input_tokens=self.cache_read_input_tokens or 0,
            cache_creation_5m_input_tokens=five,
            cache_creation_1h_input_tokens=hour,
            web_search_requests=searches or 0,
            service_tier=self.service_tier,
            inference_geo=self.inference_geo,
            speed=self.speed,
        )


class _LineMessage(msgspec.Struct, gc=False):
    usage: _Usage
    model: str = ""
    stop_reason: str | None = None


_STOPS: dict[str | None, LineDisposition] = {
    "pause_turn": LineDisposition.PAUSED,
    "tool_use": LineDisposition.TOOLS,
    "refusal": LineDisposition.REFUSED,
    "model_context_window_exceeded": LineDisposition.WINDOW_EXCEEDED,
}
"""What a success asks for whose reason to stop is none of an answer's ordinary ends."""


class _InnerError(msgspec.Struct, gc=False):
    type: str = "api_error"
    message: str = ""
    details: dict[str, Any] | None = None


class _OuterError(msgspec.Struct, gc=False):
    # The error of a line is nested twice: {"type": "error", "error": {"type", "message"}, …}.
    error: _InnerError
    request_id: str | None = None


class _Result(msgspec.Struct, gc=False):
    type: Outcome
    message: _LineMessage | None = None
    error: _OuterError | None = None


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    result: _Result


class _RawResult(msgspec.Struct, gc=False):
    message: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _RawLine(msgspec.Struct, gc=False):
    result: _RawResult


class _Message(msgspec.Struct, gc=False):
    usage: _Usage
    id: str = ""
    model: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None
    content: list[dict[str, Any]] = []


class DecodedMessage(msgspec.Struct, frozen=True):
    """A Message object, as far as an `ActorResponse` shows it."""

    id: str
    model: str
    stop_reason: str | None
    stop_sequence: str | None
    content: list[dict[str, Any]]
    usage: Usage


class _Text(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""


class OutputMessage(msgspec.Struct, gc=False):
    """A Message object as an output file shows it: content and usage as the API sent them."""

    content: msgspec.Raw
    usage: msgspec.Raw
    model: str = ""
    stop_reason: str | None = None
    text: str = ""


class _OutputResult(msgspec.Struct, gc=False):
    message: OutputMessage


class _OutputLine(msgspec.Struct, gc=False):
    result: _OutputResult


_output_decoder = msgspec.json.Decoder(_OutputLine)
_texts_decoder = msgspec.json.Decoder(list[_Text])
_line_decoder = msgspec.json.Decoder(_Line)
_raw_line_decoder = msgspec.json.Decoder(_RawLine)
_message_decoder = msgspec.json.Decoder(_Message)


def decode_line(line: bytes) -> ResultLine:
    """Decode ``custom_id``, outcome, usage and error of one line of a results stream.

    Raises `UnreadableLine` for anything that is not a result as the API documents it.
    """
    try:
        decoded = _line_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableLine(str(error)) from None
    result = decoded.result
    if result.type == "succeeded":
        if result.message is None:
            raise UnreadableLine("a succeeded line without a message")
        message = result.message
        usage = message.usage.public()
        disposition = _STOPS.get(message.stop_reason, LineDisposition.FINAL)
        return ResultLine(decoded.custom_id, "succeeded", disposition, usage, None, message.model)
    if result.type == "errored":
        if result.error is None:
            raise UnreadableLine("an errored line without an error")
        inner = result.error.error
        fault = LineError(inner.type, inner.message, result.error.request_id, inner.details)
        disposition = classify_line(inner.type, inner.message, inner.details)
        return ResultLine(decoded.custom_id, "errored", disposition, None, fault)
    disposition = LineDisposition.RETRY if result.type == "expired" else LineDisposition.FINAL
    return ResultLine(decoded.custom_id, result.type, disposition, None, None)


def message_of_line(line: bytes) -> bytes:
    """The bytes of the Message object in a succeeded line, as the API sent them."""
    return bytes(_raw_line_decoder.decode(line).result.message)


def output_of_line(line: bytes) -> OutputMessage:
    """What an output file shows of a succeeded line; ``text`` is all its text blocks, joined."""
    message = _output_decoder.decode(line).result.message
    blocks = _texts_decoder.decode(message.content)
    message.text = "".join([block.text for block in blocks if block.type == "text"])
    return message


def error_of_line(line: bytes) -> bytes:
    """The bytes of the error body in an errored line, as the API sent them."""
    return bytes(_raw_line_decoder.decode(line).result.error)


def decode_message(raw: bytes) -> DecodedMessage:
    """Decode a Message object. Raises `UnreadableLine` where it is none."""
    try:
        message = _message_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableLine(str(error)) from None
    return DecodedMessage(
        message.id,
        message.model,
        message.stop_reason,
        message.stop_sequence,
        message.content,
        message.usage.public(),
    )
