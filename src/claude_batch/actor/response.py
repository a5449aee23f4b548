"""`ActorResponse` and `ActorResult`: answers that are decoded on first access."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

import msgspec
from typing_extensions import TypeVar

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.output import (
    LabelledField,
    OutputFormat,
    labelled_fields,
    parse_json,
    texts_of,
)
from claude_batch.actor.request import ActorRequest, json_context
from claude_batch.core.answer_parts import Citation, Usage
from claude_batch.core.errors import (
    ActorError,
    AnswerError,
    MalformedAnswerError,
    OutputValidationError,
    error_type,
)
from claude_batch.core.quantities import usd
from claude_batch.wire.messages import (
    DecodedMessage,
    UnreadableLine,
    citations_of_block,
    decode_message,
)

if TYPE_CHECKING:
    from anthropic.types import Message


OutputT = TypeVar("OutputT", default=Any)
OutputT_co = TypeVar("OutputT_co", default=Any, covariant=True)

_UNFINISHED = ("tool_use", "pause_turn")
"""Stop reasons after which the final answer is still to come."""

_UNREAD: Any = object()


def time_of(seconds: float | None) -> datetime | None:
    """Convert seconds since the epoch to a time in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


class ActorResponse(Generic[OutputT_co]):
    """One answer. Keeps the API's bytes; equal, hashable and picklable by value.

    `reused` and `answered` describe its origin; two equal answers may differ in them.

    ``ActorResponse[Invoice]`` is an answer to a request with ``output_format=Invoice``.

    Every property but ``raw``, ``batch_id``, ``via``, ``attempt``, ``reused``, ``answered`` and the
    cost raises `MalformedAnswerError` if the bytes are not a Message (``raw`` still returns them).
    """

    __slots__ = (
        "_answered",
        "_attempt",
        "_batch_id",
        "_context",
        "_cost",
        "_decoded",
        "_output",
        "_parsed",
        "_raw",
        "_reused",
        "_turns",
    )

    def __init__(
        self,
        raw: bytes,
        *,
        batch_id: str | None = None,
        attempt: int = 1,
        cost: int | None = None,
        turns: int = 1,
        output: OutputFormat[OutputT_co] | None = None,
        reused: bool = False,
        answered: float | None = None,
        context: Any = None,
    ) -> None:
        """``raw`` is the JSON of the API's Message object; ``cost`` is nano-dollars.

        ``output`` parses `parsed_output`. ``answered`` is seconds since the epoch. Raises
        ``TypeError`` if ``raw`` is not bytes.
        """
        if not isinstance(cast("object", raw), bytes):
            raise TypeError(f"raw must be bytes, not {type(raw).__name__}; encode the Message")
        self._raw = raw
        self._batch_id = batch_id
        self._attempt = attempt
        self._cost = cost
        self._turns = turns
        self._decoded: DecodedMessage | None = None
        self._output = output
        self._reused = reused
        self._answered = answered
        self._context = context
        self._parsed: Any = _UNREAD

    @property
    def raw(self) -> bytes:
        """The Message object's JSON, byte for byte as the API sent it."""
        return self._raw

    @property
    def batch_id(self) -> str | None:
        """The API's id of the answer's batch; None for a live answer."""
        return self._batch_id

    @property
    def via(self) -> Literal["batch", "live"]:
        """``batch``, or ``live`` for the answer to a live call, at the full price."""
        return "live" if self._batch_id is None else "batch"

    @property
    def attempt(self) -> int:
        """Which attempt (of the last turn) succeeded, counted from 1."""
        return self._attempt

    @property
    def turns(self) -> int:
        """Number of answers it took, the last one included.

        Pauses, tool calls, and answers that were requested again because they did not have the
        requested format also count.
        """
        return self._turns

    @property
    def cost(self) -> int | None:
        """The cost with all turns, in nano-dollars (10⁻⁹ USD); None if the price is unknown."""
        return self._cost

    @property
    def cost_usd(self) -> Decimal | None:
        """`cost` in dollars, exactly."""
        return None if self._cost is None else usd(self._cost)

    @property
    def reused(self) -> bool:
        """True if the call, `submit` or `respond_all` that returns it sent no request for it.

        The answer was in the ledger before, or it is the answer to an equal request. In a run that
        is opened by its id, only the latter counts.
        """
        return self._reused

    @property
    def answered(self) -> datetime | None:
        """When the answer's batch ended, or the live call was answered, in UTC."""
        return time_of(self._answered)

    @property
    def context(self) -> Any:
        """`ActorRequest.context` of the request, or None."""
        return self._context

    @property
    def id(self) -> str:
        """The API's id of the message."""
        return self._message().id

    @property
    def text(self) -> str:
        """All text blocks, joined."""
        return "".join(
            str(block.get("text") or "") for block in self.content if block.get("type") == "text"
        )

    @property
    def parsed_output(self) -> OutputT_co:
        """The answer as an object of the ``output_format``; without one, the JSON in its text.

        For an answer in labelled fields (used with citations) without ``output_format``: a mapping
        of the labels to their texts.

        Parsed once, and the same object each time. Raises `OutputValidationError` for an answer
        that does not have the format: cut short, refused, a tool call, or of another shape.
        """
        if self._parsed is _UNREAD:
            self._parsed = self._parse()
        return self._parsed

    @property
    def citations(self) -> list[Citation]:
        """Each passage that the answer cites, in the answer's order."""
        return [citation for block in self.content for citation in citations_of_block(block)]

    @property
    def field_citations(self) -> dict[str, list[Citation]]:
        """The citations of each field, for a format that was requested with citations.

        Keys are paths in the object: ``number``, ``seller.name``, ``items[0].price``. A field
        without any citation has an empty list. Empty for an answer that is not in labelled fields.
        """
        found: dict[str, list[Citation]] = {}
        for field in self._labelled_fields():
            found.setdefault(field.label, []).extend(field.citations)
        return found

    @property
    def content(self) -> list[dict[str, Any]]:
        """The content blocks, as the API has them."""
        return self._message().content

    @property
    def stop_reason(self) -> str | None:
        """Why the model stopped: ``end_turn``, ``max_tokens``, ``tool_use``, ``refusal``, …"""
        return self._message().stop_reason

    @property
    def stop_sequence(self) -> str | None:
        """The stop sequence that ended the answer, if any."""
        return self._message().stop_sequence

    @property
    def model(self) -> str:
        """The model that answered."""
        return self._message().model

    @property
    def usage(self) -> Usage:
        """Token counts, those of the prompt cache included."""
        return self._message().usage

    @property
    def message(self) -> Message:
        """The SDK's ``Message`` (imports ``anthropic``); new, and as lenient as the SDK's own."""
        from anthropic.types import Message

        self._message()
        try:
            value: dict[str, Any] = msgspec.json.decode(self._raw)
        except (msgspec.DecodeError, RecursionError) as error:
            # The error is in a field not used here, such as one that is newer than this version.
            raise self._unreadable(error) from None
        return Message.construct(**value)

    def to_dict(self, *, parsed: bool = False) -> dict[str, Any]:
        """Return plain values, as in an output line: text, content, stop_reason, model, usage, …

        ``parsed`` adds `parsed_output` as JSON values, and `field_citations` if the answer has
        fields. It is None for a text that was asked for without a format. Raises what they raise.
        """
        message = self._message()
        values: dict[str, Any] = {
            "text": self.text,
            "content": message.content,
            "stop_reason": message.stop_reason,
            "model": message.model,
            "usage": message.usage.to_dict(),
            "batch_id": self._batch_id,
            "attempt": self._attempt,
            "via": self.via,
            "reused": self._reused,
            "cost_usd": None if self._cost is None else self._cost / 1e9,
        }
        return values | self.parsed_values() if parsed else values

    def parsed_values(self) -> dict[str, Any]:
        """Return what ``parsed`` adds to `to_dict`."""
        values = {"parsed": self._parsed_value()}
        if fields := self.field_citations:
            values["field_citations"] = {
                name: [asdict(citation) for citation in citations]
                for name, citations in fields.items()
            }
        return values

    def _parsed_value(self) -> Any:
        if (output := self._output) is not None:
            value = self.parsed_output
            try:
                return output.to_json(value)
            except ValueError as error:
                words = f"cannot be written as JSON from {output.name}"
                raise self._invalid(words, str(error)) from error
        try:
            return self._read()
        except ValueError:
            return None  # a text for people

    def _message(self) -> DecodedMessage:
        if self._decoded is None:
            try:
                self._decoded = decode_message(self._raw)
            except UnreadableLine as error:
                raise self._unreadable(error) from None
        return self._decoded

    def _unreadable(self, error: Exception) -> MalformedAnswerError:
        return MalformedAnswerError(
            f"the answer cannot be read as a Message ({error}); its bytes are in `raw`",
            raw=self._raw,
            batch_id=self._batch_id,
            problem=str(error),
        )

    def with_output(self, output: OutputFormat[OutputT]) -> ActorResponse[OutputT]:
        """Return the answer with an output format: itself if it has it, else not parsed yet."""
        if self._output is output:
            return cast("ActorResponse[OutputT]", self)
        return self._with(output=output)

    def with_context(self, context: Any) -> ActorResponse[OutputT_co]:
        """Return the same answer, with the context of its request."""
        return self._with(context=context)

    def after(self, before: ActorResponse, turns: int) -> ActorResponse[OutputT_co]:
        """Return the same answer as the last one of a conversation with earlier costs."""
        last, earlier = self._cost, before.cost
        cost = None if last is None or earlier is None else last + earlier
        return self._with(cost=cost, turns=turns)

    def _fields(self) -> dict[str, Any]:
        """Return the arguments with which an equal response is made, not decoded yet."""
        return {
            "raw": self._raw,
            "batch_id": self._batch_id,
            "attempt": self._attempt,
            "cost": self._cost,
            "turns": self._turns,
            "output": self._output,
            "reused": self._reused,
            "answered": self._answered,
            "context": self._context,
        }

    def _with(self, **changes: Any) -> ActorResponse[Any]:
        return ActorResponse(**(self._fields() | changes))

    def validate(self) -> None:
        """Raise `OutputValidationError` if the answer is final and does not match its format."""
        if self.stop_reason not in _UNFINISHED:
            _ = self.parsed_output

    def _labelled_fields(self) -> list[LabelledField]:
        if self._output is None:
            return labelled_fields(self.content)
        labels = self._output.labels
        return [] if labels is None else labels.fields(self.content)

    def _read(self) -> Any:
        """Return the value in the answer. Raises ``ValueError`` if there is none."""
        output = self._output
        read = parse_json if output is None else output.parse
        if fields := self._labelled_fields():
            return texts_of(fields) if output is None else output.of_fields(fields)
        try:
            return read(self.text)
        except ValueError:
            # Text before a server tool's call is not part of the answer.
            texts = [block["text"] for block in self.content if block.get("type") == "text"]
            if len(texts) < 2:
                raise
            return read(texts[-1])

    def _parse(self) -> Any:
        output = self._output
        try:
            return self._read()
        except ValueError as error:
            problem, cause = str(error), error.__cause__
        asked = "" if output is None else f" {output.name}"
        reason = self.stop_reason
        if reason in ("max_tokens", "model_context_window_exceeded"):
            remedy = "raise `max_tokens`" if reason == "max_tokens" else "shorten the prompt"
            why = f"it was truncated ({reason}); {remedy}"
        elif reason == "refusal":
            why = "the model refused to answer"
        elif reason in _UNFINISHED:
            why = f"it is not finished ({reason})"
        elif output is None:
            why = (
                f"{problem}. If no format was requested (`output_format`, or an actor's "
                "`response_format`), read its `.text`"
            )
        else:
            why = problem
        raise self._invalid(f"is not valid{asked or ' JSON'}", why) from cause

    def _invalid(self, words: str, why: str) -> OutputValidationError:
        # The error can then be pickled, even if the type of its format or its context cannot.
        context = None if json_context(self._context) is None else self._context
        plain = self._with(output=None, context=context)
        return OutputValidationError(
            f"the answer {words}: {why}. It was billed; its text is kept",
            text=self.text,
            stop_reason=self.stop_reason,
            batch_id=self._batch_id,
            response=plain,
            problem=why,
        )

    def _value(self) -> tuple[bytes, str | None, int, int | None, int]:
        return self._raw, self._batch_id, self._attempt, self._cost, self._turns

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ActorResponse):
            return NotImplemented
        return self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ActorResponse, **self._fields()), ()

    def __repr__(self) -> str:
        words = self._raw[:60].decode("utf-8", "replace")
        return f"ActorResponse({words!r}…, batch_id={self._batch_id!r}, attempt={self._attempt})"


def read_as(response: ActorResponse, output: OutputFormat[Any] | None) -> ActorResponse:
    """Return a response in a format. Raises `OutputValidationError` if it does not have it."""
    if output is None:
        return response
    read = response.with_output(output)
    read.validate()
    return read


class OutputJudge(msgspec.Struct, frozen=True):
    """Checks an answer (a Message's JSON) against an output format."""

    output: OutputFormat[Any]

    def __call__(self, message: bytes) -> str | None:
        """Return the error for the model to read, or None if the answer is valid."""
        answer = ActorResponse(message, output=self.output)
        if answer.stop_reason == "max_tokens":
            return "it was truncated by max_tokens"
        try:
            _ = answer.parsed_output
        except OutputValidationError as error:
            return error.problem
        return None


@lru_cache(maxsize=128)
def judge_of(output: OutputFormat[Any]) -> OutputJudge:
    """Return the judge of a format, one object for each, because calls are grouped by it."""
    return OutputJudge(output)


def output_of(
    actor: ActorConfiguration, asked: ActorRequest | None = None
) -> OutputFormat[Any] | None:
    """Return the parser of an answer: of the request's own ``output_format``, or of the call's."""
    if asked is not None and asked.output_format is not None:
        return asked.output
    return actor.judge.output if isinstance(actor.judge, OutputJudge) else None


def answer_in(error: ActorError) -> dict[str, Any]:
    """Return what an output line shows of the answer of a failure; empty if there is none."""
    if not isinstance(error, AnswerError):
        return {}
    shown: dict[str, Any] = {"text": error.text, "stop_reason": error.stop_reason}
    if error.response is None:
        return {**shown, "batch_id": error.batch_id}
    names = ("model", "usage", "batch_id", "attempt", "via")
    values = error.response.to_dict()
    return shown | {name: values[name] for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorResult(Generic[OutputT_co]):
    """The outcome of one of many requests: exactly one of a response and an error."""

    key: str | None
    """The caller's key of the request, if it has one."""
    position: int
    """The request's position among those submitted together, from 0."""
    response: ActorResponse[OutputT_co] | None = None
    error: ActorError | None = None
    reused: bool = dataclass_field(default=False, compare=False)
    """As `ActorResponse.reused`; a failure may be an old one, too."""
    answered: datetime | None = dataclass_field(default=None, compare=False)
    """When the answer's batch ended, or the live call was answered, in UTC.

    None if the API has returned nothing for the request.
    """
    context: Any = dataclass_field(default=None, compare=False)
    """`ActorRequest.context` of the request, or None."""

    def __post_init__(self) -> None:
        if (self.response is None) == (self.error is None):
            raise ValueError("a result has either a response or an error")

    @property
    def ok(self) -> bool:
        """True if there is a response."""
        return self.error is None

    @property
    def text(self) -> str | None:
        """The answer's text, as `ActorResponse.text`; None if the request failed."""
        return None if self.response is None else self.response.text

    @property
    def cost(self) -> int | None:
        """What the request cost, with all turns and attempts, in nano-dollars.

        None if the price is unknown, or if the request failed and nothing was billed.
        """
        billed = self.error if self.response is None else self.response
        return None if billed is None else billed.cost

    @property
    def cost_usd(self) -> Decimal | None:
        """`cost` in dollars, exactly."""
        return None if self.cost is None else usd(self.cost)

    def unwrap(self) -> ActorResponse[OutputT_co]:
        """Return the response, or raise the error."""
        if self.response is not None:
            return self.response
        assert self.error is not None
        raise self.error

    def to_dict(self, *, parsed: bool = False) -> dict[str, Any]:
        """Return plain values, as in an output line; ``parsed`` as in `ActorResponse.to_dict`."""
        name = str(self.position + 1) if self.key is None else self.key
        # As in the ledger, only a JSON value is written.
        is_plain = self.context is not None and json_context(self.context) is not None
        beside = {"context": self.context} if is_plain else {}
        if self.response is not None:
            return {"id": name, "ok": True, **self.response.to_dict(parsed=parsed), **beside}
        assert self.error is not None
        error = {"type": error_type(self.error), "message": str(self.error)}
        cost = {} if self.cost is None else {"cost_usd": self.cost / 1e9}
        return {"id": name, "ok": False, "error": error, **answer_in(self.error), **cost, **beside}

    def with_context(self, context: Any) -> ActorResult[OutputT_co]:
        """Return the same result, and its response, with the context of the request."""
        response = None if self.response is None else self.response.with_context(context)
        return replace(self, response=response, context=context)

    def with_output(self, output: OutputFormat[OutputT] | None) -> ActorResult[OutputT]:
        """Return the same result with a parsed and validated answer; or with the parse error.

        Without an ``output``, return it unchanged.
        """
        if output is None:
            return cast("ActorResult[OutputT]", self)
        response, error = self.response, self.error
        if response is not None:
            try:
                response = read_as(response, output)
            except ActorError as fault:
                response, error = None, fault
        return replace(cast("ActorResult[OutputT]", self), response=response, error=error)
