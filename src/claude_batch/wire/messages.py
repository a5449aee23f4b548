"""Result lines and Message objects, decoded only as far as each reader needs.

A ``succeeded`` line was billed. If it breaks the API's own format, it is *malformed*: it ends its
request, is stored unchanged, and counts in the cost as far as its usage can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

import msgspec

from claude_batch.core.answer_parts import Citation, CitedPlace, Usage
from claude_batch.core.outcome import Disposition
from claude_batch.wire.error_table import classify_line
from claude_batch.wire.inbound import (
    LONGEST_ID,
    check_text,
    mapping_or_none,
    mappings,
    word_or_none,
)

# Answer citations ---------------------------------------------------------------------------------

_PLACES: dict[str, tuple[CitedPlace, str, str, str]] = {
    "char_location": ("characters", "document_index", "start_char_index", "end_char_index"),
    "page_location": ("pages", "document_index", "start_page_number", "end_page_number"),
    "content_block_location": (
        *("blocks", "document_index"),
        *("start_block_index", "end_block_index"),
    ),
    "search_result_location": (
        *("search_result", "search_result_index"),
        *("start_block_index", "end_block_index"),
    ),
    "web_search_result_location": ("web", "", "", ""),
}
# Source: `TextCitation` in anthropic 2.11.


def cites(messages: object) -> bool:
    """Return whether a document or search result in the messages has citations enabled."""
    return any(
        isinstance(settings, Mapping) and cast("Mapping[str, Any]", settings).get("enabled") is True
        for message in mappings(messages)
        for block in _blocks(message.get("content"))
        for settings in (block.get("citations"),)
    )


def _blocks(content: object) -> Iterator[Mapping[str, Any]]:
    for block in mappings(content):
        yield block
        if block.get("type") == "tool_result":
            yield from mappings(block.get("content"))


def citations_of_block(block: Mapping[str, Any]) -> tuple[Citation, ...]:
    """Return the citations of one text block of an answer; unknown kinds are left out."""
    claim = str(block.get("text") or "")
    found: list[Citation] = []
    for given in mappings(block.get("citations")):
        place = _PLACES.get(str(given.get("type")))
        if place is None:
            continue
        kind, index, start, end = place
        found.append(
            Citation(
                text=str(given.get("cited_text") or ""),
                claim=claim,
                kind=kind,
                document=given.get(index),
                title=given.get("document_title") or given.get("title"),
                start=given.get(start),
                end=given.get(end),
                file_id=given.get("file_id"),
                url=given.get("url") or given.get("source"),
            )
        )
    return tuple(found)


# Messages -----------------------------------------------------------------------------------------

Outcome = Literal["succeeded", "errored", "canceled", "expired"]

MOST_TOKENS = 100_000_000
"""Most tokens of one kind in an answer, a hundred times the largest context window.

A higher number is malformed. A million such answers still fit into the ledger's 64 bits of
nano-dollars."""
MOST_SEARCHES = 100_000
"""Most web searches of one answer, for the same reason."""


class UnreadableLine(ValueError):
    """A line of a results stream that is not a result as the API documents it."""


class LineError(msgspec.Struct, frozen=True, gc=False):
    """The API's error for a request that ended ``errored``."""

    type: str
    message: str
    request_id: str | None
    details: Mapping[str, Any] | None


class ResultLine(msgspec.Struct, frozen=True, gc=False):
    """The data of a line that collection needs; the line itself is stored unchanged."""

    custom_id: str
    outcome: Outcome
    disposition: Disposition
    usage: Usage | None = None
    error: LineError | None = None
    model: str | None = None
    """The model that answered, or `None` without an answer."""
    fault: str = ""
    """The problem of a malformed line."""


# Some gateways write 12 as 12.0.
_Number = int | float | None


def _tokens(number: _Number, most: int = MOST_TOKENS) -> int:
    """Return a number of tokens. Raises ``ValueError`` for an implausible number."""
    if not number:
        return 0
    whole = int(number)
    if whole != number or not 0 <= whole <= most:
        raise ValueError(f"{number} is not a plausible number of tokens")
    return whole


class _CacheCreation(msgspec.Struct, gc=False):
    ephemeral_5m_input_tokens: _Number = None
    ephemeral_1h_input_tokens: _Number = None


class _ServerToolUse(msgspec.Struct, gc=False):
    web_search_requests: _Number = None


class _Counts(msgspec.Struct, gc=False):
    input_tokens: _Number = None
    output_tokens: _Number = None
    cache_creation_input_tokens: _Number = None
    cache_read_input_tokens: _Number = None
    cache_creation: _CacheCreation | None = None

    def written(self) -> tuple[int, int]:
        """Return the tokens written to the prompt cache for five minutes, and for an hour."""
        hour = five = 0
        if (lifetimes := self.cache_creation) is not None:
            hour = _tokens(lifetimes.ephemeral_1h_input_tokens)
            five = _tokens(lifetimes.ephemeral_5m_input_tokens)
        # Five minutes is the API's default lifetime if the answer does not name it.
        return max(five, _tokens(self.cache_creation_input_tokens) - hour), hour


class _Iteration(_Counts, gc=False):
    type: str = ""
    model: str | None = None

    def public(self, inference_geo: str | None) -> Usage:
        five, hour = self.written()
        return Usage(
            input_tokens=_tokens(self.input_tokens),
            output_tokens=_tokens(self.output_tokens),
            cache_creation_input_tokens=five + hour,
            cache_read_input_tokens=_tokens(self.cache_read_input_tokens),
            cache_creation_5m_input_tokens=five,
            cache_creation_1h_input_tokens=hour,
            inference_geo=inference_geo,
        )


class _Usage(_Counts, gc=False):
    server_tool_use: _ServerToolUse | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    iterations: list[_Iteration] | None = None

    def public(self) -> Usage:
        asked, answered = self.input_tokens, self.output_tokens
        # Most answers have nothing else, and this runs for every line.
        if (
            type(asked) is int
            and type(answered) is int
            and 0 <= asked <= MOST_TOKENS
            and 0 <= answered <= MOST_TOKENS
            and not (self.cache_read_input_tokens or self.cache_creation_input_tokens)
            and not (self.server_tool_use or self.iterations)
            and (
                (lifetimes := self.cache_creation) is None
                or not (lifetimes.ephemeral_5m_input_tokens or lifetimes.ephemeral_1h_input_tokens)
            )
        ):
            return Usage(
                input_tokens=asked,
                output_tokens=answered,
                service_tier=self.service_tier,
                inference_geo=self.inference_geo,
                speed=self.speed,
            )
        five, hour = self.written()
        read, asked, answered = (
            _tokens(self.cache_read_input_tokens),
            _tokens(self.input_tokens),
            _tokens(self.output_tokens),
        )
        advisors: tuple[tuple[str, Usage], ...] = ()
        compactions: tuple[Usage, ...] = ()
        beside = 0
        for each in self.iterations or ():
            # These are billed, and not part of the other numbers (the SDK's
            # `BetaUsage.iterations`; "Advisor tool", usage and billing).
            if each.type not in ("compaction", "advisor_message"):
                continue
            more = each.public(self.inference_geo)
            beside += more.input_tokens + more.output_tokens + more.cache_read_input_tokens
            beside += more.cache_creation_input_tokens
            if each.type == "advisor_message":
                advisors += ((each.model or "", more),)
            else:
                compactions += (more,)
                five += more.cache_creation_5m_input_tokens
                hour += more.cache_creation_1h_input_tokens
                read += more.cache_read_input_tokens
                asked += more.input_tokens
                answered += more.output_tokens
        _tokens(beside)  # their sum is plausible, too
        searches = self.server_tool_use.web_search_requests if self.server_tool_use else 0
        return Usage(
            input_tokens=asked,
            output_tokens=answered,
            cache_creation_input_tokens=five + hour,
            cache_read_input_tokens=read,
            cache_creation_5m_input_tokens=five,
            cache_creation_1h_input_tokens=hour,
            web_search_requests=_tokens(searches, MOST_SEARCHES),
            service_tier=self.service_tier,
            inference_geo=self.inference_geo,
            speed=self.speed,
            is_missing=self.input_tokens is None or self.output_tokens is None,
            advisors=advisors,
            compactions=compactions,
        )


class _Message(msgspec.Struct, gc=False):
    usage: _Usage
    # Decoded whole, as readers of the answer do. So an invalid block (a number out of range, a lone
    # surrogate) is found here, and not when the answer is used.
    content: list[dict[str, Any]]
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


_STOPS: dict[str | None, Disposition] = {
    "pause_turn": Disposition.PAUSED,
    "tool_use": Disposition.TOOLS,
    "refusal": Disposition.REFUSED,
    "model_context_window_exceeded": Disposition.WINDOW_EXCEEDED,
}


def disposition_of(stop_reason: str | None) -> Disposition:
    """Return what a success with this stop reason asks for."""
    return _STOPS.get(stop_reason, Disposition.FINAL)


class _InnerError(msgspec.Struct, gc=False):
    type: str = "api_error"
    message: str | None = None
    details: Any = None


class _OuterError(msgspec.Struct, gc=False):
    # The error of a line is nested twice: {"type": "error", "error": {"type", "message"}, …}.
    error: _InnerError
    request_id: str | None = None


class _Result(msgspec.Struct, gc=False):
    type: Outcome
    message: _Message | None = None
    error: _OuterError | None = None


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    result: _Result


class _RawResult(msgspec.Struct, gc=False):
    message: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _RawLine(msgspec.Struct, gc=False):
    result: _RawResult


class DecodedMessage(msgspec.Struct, frozen=True):
    """A Message object, with the fields that an `ActorResponse` shows."""

    id: str
    model: str
    stop_reason: str | None
    stop_sequence: str | None
    content: list[dict[str, Any]]
    usage: Usage


_NULL = msgspec.Raw(b"null")


class _Text(msgspec.Struct, gc=False):
    # Checked when the line arrived. Of duplicate keys, only the last was checked.
    type: Any = ""
    text: msgspec.Raw = _NULL


class OutputMessage(msgspec.Struct, gc=False):
    """A Message object for an output file, each field as JSON, as the API sent it."""

    content: msgspec.Raw
    usage: msgspec.Raw
    model: msgspec.Raw = _NULL
    stop_reason: msgspec.Raw = _NULL

    def text(self) -> bytes | msgspec.Raw:
        """Return all its text blocks, joined, as one JSON string."""
        blocks = _texts_decoder.decode(self.content)
        if len(blocks) == 1 and blocks[0].type == "text":
            return blocks[0].text
        # The contents of two JSON strings, joined, are the content of one string.
        joined = b"".join([bytes(each.text)[1:-1] for each in blocks if each.type == "text"])
        return b'"%b"' % joined


class _OutputResult(msgspec.Struct, gc=False):
    message: OutputMessage


class _OutputLine(msgspec.Struct, gc=False):
    result: _OutputResult


class _Origin(msgspec.Struct, gc=False):
    request_id: str | None = None


_origin_decoder = msgspec.json.Decoder(_Origin)
_output_decoder = msgspec.json.Decoder(_OutputLine)
_texts_decoder = msgspec.json.Decoder(list[_Text])
_line_decoder = msgspec.json.Decoder(_Line)
_raw_line_decoder = msgspec.json.Decoder(_RawLine)
_message_decoder = msgspec.json.Decoder(_Message)


def decode_line(line: bytes) -> ResultLine:
    """Decode ``custom_id``, outcome, usage and error of one line of a results stream.

    A success that breaks the API's format has the disposition ``malformed``, and an outcome that
    the API does not document ``undocumented``. Raises `UnreadableLine` for anything else that is
    not a result as the API documents it.
    """
    try:
        check_text(line)
        decoded = _line_decoder.decode(line)
        result = decoded.result
        if result.type == "succeeded":
            message = result.message
            if message is None:
                raise ValueError("a succeeded line without a message")
            _check_blocks(message.content)
            usage = message.usage.public()
            asks = disposition_of(message.stop_reason)
            return ResultLine(decoded.custom_id, "succeeded", asks, usage, model=message.model)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return _malformed(line, error)
    if result.type == "errored":
        if result.error is None:
            raise UnreadableLine("an errored line without an error")
        inner = result.error.error
        words, details = inner.message or "", mapping_or_none(inner.details)
        request_id = word_or_none(result.error.request_id)
        return _errored(decoded.custom_id, LineError(inner.type, words, request_id, details))
    return _not_run(decoded.custom_id, result.type)


def _errored(custom_id: str, fault: LineError) -> ResultLine:
    disposition = classify_line(fault.type, fault.message, fault.details)
    return ResultLine(custom_id, "errored", disposition, error=fault)


def _not_run(custom_id: str, outcome: Literal["canceled", "expired"]) -> ResultLine:
    disposition = Disposition.RETRY if outcome == "expired" else Disposition.FINAL
    return ResultLine(custom_id, outcome, disposition)


def _readable_error(error: object) -> LineError:
    """Return what can be read of an error that is not in the API's format.

    An errored request is not billed, whatever its error is.
    """
    outer = mapping_or_none(error) or {}
    inner = mapping_or_none(outer.get("error"))
    if inner is None and outer.get("type") != "error":
        inner = outer  # nested once
    fields = inner or {}
    kind, words, request_id = fields.get("type"), fields.get("message"), outer.get("request_id")
    if not isinstance(words, str):
        words = next((each for each in (error, outer.get("error")) if isinstance(each, str)), "")
    details = mapping_or_none(fields.get("details"))
    code = None if details is None else details.get("error_code")
    return LineError(
        _valid(kind)[:LONGEST_ID] if isinstance(kind, str) else _InnerError().type,
        _valid(words),
        word_or_none(request_id) if isinstance(request_id, str) else None,
        {"error_code": _valid(code)} if isinstance(code, str) else None,
    )


def _valid(text: str) -> str:
    """Return a text without lone surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _check_blocks(content: list[dict[str, Any]]) -> None:
    """Raise ``ValueError`` for a block without the required fields of its type.

    A type that is not known may use the same names for other values.
    """
    for block in content:
        kind, text = block.get("type"), block.get("text")
        if kind == "text" and isinstance(text, str) and len(block) == 2:
            continue  # nearly every block of most answers
        if not isinstance(kind, str):
            raise ValueError("a block without a type")
        is_call = kind.endswith("tool_use")
        for name in ("text",) if kind == "text" else ("id", "name") if is_call else ():
            if name in block and not isinstance(block[name], str | None):
                raise ValueError(f"a block whose {name} is not a text")
        if kind == "text" and text is None:
            raise ValueError("a text block without text")
        if kind == "tool_use" and not (block.get("id") and block.get("name")):
            raise ValueError("a tool's call without an id or a name")


# A quote in a JSON string is escaped, so these are keys of the line or of an object in it.
_ids = re.compile(rb'(?<!\\)"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
_successes = re.compile(rb'(?<!\\)"type"\s*:\s*"succeeded"')


def _malformed(line: bytes, error: Exception) -> ResultLine:
    """Return the readable part of a line that the strict decoder refuses.

    Raises `UnreadableLine` unless the line names its request and an outcome. A line that was
    damaged in transit may arrive intact when it is fetched again.
    """
    why = str(error)[:200]
    try:
        value = _lenient(line) or {}
    except ValueError:
        raise UnreadableLine(why) from None
    except RecursionError:
        return _too_deep(line, why)
    result = mapping_or_none(value.get("result")) or {}
    custom_id, kind = value.get("custom_id"), result.get("type")
    if not isinstance(custom_id, str) or not isinstance(kind, str):
        raise UnreadableLine(why) from None
    if kind == "errored":
        if result.get("error") is None:
            raise UnreadableLine(why) from None
        return _errored(custom_id, _readable_error(result["error"]))
    if kind == "canceled" or kind == "expired":
        return _not_run(custom_id, kind)
    asks = Disposition.MALFORMED
    if kind != "succeeded":
        # It may be one that is billed, so it is neither retried nor fetched again.
        asks, why = Disposition.UNDOCUMENTED, f"a result of the type {_valid(kind)[:64]!r}"
    message = mapping_or_none(result.get("message")) or {}
    usage, model = _usage_of(message), _model_of(message)
    return ResultLine(custom_id, "succeeded", asks, usage, model=model, fault=why)


def _lenient(data: bytes) -> Mapping[str, Any] | None:
    """Return a JSON object as far as it is valid; `None` for another JSON value.

    Raises ``ValueError``. More lenient than msgspec: it accepts lone surrogates, control
    characters, and (as floats) numbers of any size.
    """
    text = data.decode("utf-8", "replace")
    return mapping_or_none(json.loads(text, parse_int=float, strict=False))


def _model_of(message: Mapping[str, Any]) -> str | None:
    model = message.get("model")
    return model if isinstance(model, str) and model.isprintable() else None


def _usage_of(message: Mapping[str, Any]) -> Usage | None:
    try:
        return msgspec.convert(message.get("usage"), _Usage).public()
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None


class MalformedMessage(msgspec.Struct, frozen=True):
    """A successful answer to a live call that breaks the API's format, and was billed."""

    problem: str
    usage: Usage | None
    """`None` if it cannot be read."""
    model: str | None


_MESSAGE_FIELDS = ("content", "usage", "stop_reason")


def read_malformed(raw: bytes, problem: str) -> MalformedMessage | None:
    """Return the readable part of a success that `decode_message` refuses.

    `None` for a body that is not recognizable as a Message. A body that is no JSON object, or has
    no field of a Message, may be the page of a proxy that never called the API.
    """
    try:
        value = _lenient(raw)
    except ValueError:
        return None
    except RecursionError:
        named = _is_message.search(raw) is not None
        return MalformedMessage(problem[:200], None, None) if named else None
    if value is None or value.get("type", "message") != "message":
        return None
    if "type" not in value and not any(name in value for name in _MESSAGE_FIELDS):
        return None
    return MalformedMessage(problem[:200], _usage_of(value), _model_of(value))


_is_message = re.compile(rb'(?<!\\)"type"\s*:\s*"message"')


def _too_deep(line: bytes, why: str) -> ResultLine:
    found = _ids.findall(line)
    if len(found) != 1 or _successes.search(line) is None:
        raise UnreadableLine(why)
    return ResultLine(found[0].decode(), "succeeded", Disposition.MALFORMED, fault=why)


def problem_of_line(line: bytes) -> tuple[str, bool]:
    """Return what is wrong with a malformed answer's line, and whether it reports a success."""
    try:
        found = decode_line(line)
    except UnreadableLine as error:
        # From a live call, whose request was known without the line.
        return str(error), True
    return found.fault, found.disposition is not Disposition.UNDOCUMENTED


def message_of_line(line: bytes) -> bytes:
    """Return the bytes of the Message object in a succeeded line, as the API sent them."""
    return bytes(_raw_line_decoder.decode(line).result.message)


def output_of_line(line: bytes) -> OutputMessage:
    """Return the data of a succeeded line for an output file, without a line break."""
    # Ledgers of earlier versions have carriage returns between the values.
    return _output_decoder.decode(line.replace(b"\r", b" ")).result.message


def error_of_line(line: bytes) -> bytes:
    """Return the bytes of the error body in an errored line, as the API sent them.

    An error that is not in the API's format is returned in it, as far as it can be read.
    """
    try:
        check_text(line)
        if _line_decoder.decode(line).result.error is not None:
            return bytes(_raw_line_decoder.decode(line).result.error)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    fault = decode_line(line).error
    assert fault is not None
    return _error_body(fault.type, fault.message, fault.request_id)


def succeeded_line(custom_id: str, message: bytes, request_id: str | None) -> bytes:
    """Return the message of a live call in the format of a result line.

    A batch's lines have no ``request_id``. Here it stands beside the result, and readers of lines
    ignore it.
    """
    return b'{"custom_id":"%b","result":{"type":"succeeded","message":%b}%b}' % (
        custom_id.encode(),
        message.replace(b"\n", b" ").replace(b"\r", b" "),  # JSON strings hold no raw line break
        b"" if request_id is None else b',"request_id":%b' % msgspec.json.encode(request_id),
    )


def request_id_of_line(line: bytes) -> str | None:
    """Return the API's id of the live call that a succeeded line is from, if the line has it."""
    return _origin_decoder.decode(line).request_id


def errored_line(custom_id: str, error_type: str, message: str, request_id: str | None) -> bytes:
    """Return an error outside a batch's results in the format of a result line.

    So one reader handles both.
    """
    outer = msgspec.Raw(_error_body(error_type, message, request_id))
    line = {"custom_id": custom_id, "result": {"type": "errored", "error": outer}}
    return msgspec.json.encode(line)


def _error_body(error_type: str, message: str, request_id: str | None) -> bytes:
    error = {"type": error_type, "message": message}
    return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})


def decode_message(raw: bytes) -> DecodedMessage:
    """Decode a Message object. Raises `UnreadableLine` if it is not one."""
    try:
        check_text(raw)
        message = _message_decoder.decode(raw)
        _check_blocks(message.content)
        usage = message.usage.public()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UnreadableLine(str(error)) from None
    return DecodedMessage(
        message.id or "",
        message.model or "",
        message.stop_reason,
        message.stop_sequence,
        message.content,
        usage,
    )
