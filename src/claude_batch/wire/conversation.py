"""A conversation as a generator without I/O, and the params of its turns.

`converse` decides everything that follows an answer: another turn, calls of tools, a check of the
answer, or the end. It yields one step at a time and receives what came of it. The driver of batches
and the live provider drive the same generator: they send, store and run functions, and decide
nothing. A driver that takes over continues it from the state in the ledger.

The existing bytes of the params stay unchanged and come first. So the next turn begins with the
same prefix, which is in the API's prompt cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from claude_batch.core.outcome import Disposition, Outcome, Standing, next_step
from claude_batch.core.states import RequestState, Stop
from claude_batch.core.terminal import encodable
from claude_batch.core.user_functions import LONGEST_MESSAGE, described, shortened
from claude_batch.wire.inbound import mapping_or_none
from claude_batch.wire.schemas import UnusableSchema, validator_of

_MOST_PROBLEMS = 5
_LONGEST_PROBLEM = 300

_log = logging.getLogger(__name__)

Judge: TypeAlias = Callable[[bytes], str | None]
"""Returns the problem of an answer (a Message's JSON), or `None` if there is none."""


class ToolUse(msgspec.Struct, frozen=True):
    """One call of a client tool in an answer."""

    id: str
    name: str
    input: msgspec.Raw


class ToolOutcome(NamedTuple):
    """The result of a tool call."""

    tool_use_id: str
    content: bytes
    """Content of the result as JSON: a text, or a list of blocks."""
    is_error: bool


# The steps of a conversation, and the replies to them ------------------------------------------


class NextTurn(NamedTuple):
    """Send these params. The reply is the `Answer`."""

    params: bytes
    rejects: bool = False
    """Whether they ask again, because the answer did not match the response format."""


class Answer(NamedTuple):
    """The API's answer to a turn."""

    asks: Disposition
    message: bytes
    """The Message's JSON."""


class ToolCalls(NamedTuple):
    """Run these calls. The reply is a list of `ToolOutcome` in their order, or `Interrupted`."""

    uses: list[ToolUse]


class Interrupted(NamedTuple):
    """A tool that had started when its process ended, and must not run again."""

    name: str
    is_forgotten: bool = False
    """Whether it may have run in a ledger of which a copy was restored, which cannot show it."""


class Check(NamedTuple):
    """Judge an answer. The reply is its problem, or `None`."""

    params: bytes
    message: bytes

    def problem(self, judge: Judge | None) -> str | None:
        """Return the problem that the caller's judge finds, or else the JSON schema of the params.

        Any exception of the judge is a problem of the answer, because its reader gets it, too.
        """
        if judge is None:
            problem = schema_problem(self.params, self.message)
        else:
            try:
                problem = judge(self.message)
            except BaseException as error:  # also `SystemExit`, which would end the driver
                problem = f"its validator raised {described(error)}"
        # The words go to the model and to the ledger, neither of which takes all text.
        return None if problem is None else shortened(encodable(problem))


class End(NamedTuple):
    """The conversation ends with its last answer. The last step; it takes no reply."""

    state: RequestState
    stopped: Stop | None = None
    note: str = ""
    """Why it stopped, in words."""

    @property
    def is_by_interruption(self) -> bool:
        """Whether a tool was interrupted, which only a process with the tools can see."""
        return self.stopped is Stop.TOOL_INTERRUPTED


Step: TypeAlias = NextTurn | ToolCalls | Check | End
Reply: TypeAlias = Answer | list[ToolOutcome] | Interrupted | str | None


class Terms(msgspec.Struct, frozen=True):
    """The limits that a run sets for its conversations."""

    max_turns: int
    validation_attempts: int
    tools: Collection[str] | None
    """Names of the functions that answer calls. `None`: it has none. Empty: they are unknown."""
    most_bytes: int | None = None
    """Most bytes of the params of a later turn."""
    is_forgotten: bool = False
    """Whether the params lack turns before the answer, because the ledger was restored."""


def converse(
    params: bytes,
    terms: Terms,
    *,
    answer: Answer | None = None,
    turns: int = 0,
    rejected: int = 0,
) -> Generator[Step, Reply, None]:
    """Have a conversation. The last step is its `End`.

    To enter it where it stands, pass its present ``params`` and the ``answer`` to them. ``turns``
    answers before this one led to another turn, and ``rejected`` did not match the response format.
    """
    yield (yield from _steps(params, terms, answer, turns, rejected))


def _steps(
    params: bytes, terms: Terms, answer: Reply, turns: int, rejected: int
) -> Generator[Step, Reply, End]:
    standing = Standing(
        converses=True,
        has_tools=terms.tools is not None,
        checks_format=terms.validation_attempts > 1,
    )
    if answer is None:
        answer = yield NextTurn(params)
    while True:
        assert isinstance(answer, Answer)
        asks, message = answer
        state = next_step(Outcome.SUCCEEDED, asks, standing).state
        if state is not RequestState.CONTINUING:
            return End(state)
        if asks is Disposition.FINAL:
            problem = yield Check(params, message)
            if problem is None:
                return End(RequestState.SUCCEEDED)
            assert isinstance(problem, str)
            rejected += 1
            if rejected >= terms.validation_attempts:
                return _stop(Stop.INVALID_OUTPUT, problem)
            if terms.is_forgotten:
                return _TURNS_FORGOTTEN
            params = after_rejection(params, message, correction(problem))
        else:
            uses = tool_uses(message) if asks is Disposition.TOOLS else None
            if uses is not None and _are_callers(uses, params, terms.tools or ()):
                return End(RequestState.SUCCEEDED)
            if terms.is_forgotten:
                return _TURNS_FORGOTTEN
            turns += 1
            if turns >= terms.max_turns:
                note = f"answer {turns} asks for another turn"
                return _stop(Stop.MAX_TURNS, f"{note}, but max_turns is {terms.max_turns}")
            if uses is None:
                params = after_pause(params, message)
            else:
                outcomes = yield ToolCalls(uses)
                if isinstance(outcomes, Interrupted):
                    return _stop(Stop.TOOL_INTERRUPTED, _words_of(outcomes))
                assert isinstance(outcomes, list)
                params = after_tools(params, message, outcomes)
        if terms.most_bytes is not None and len(params) > terms.most_bytes:
            note = f"its next turn has {len(params):,} bytes, more than a batch can carry"
            return _stop(Stop.TOO_LARGE, note)
        answer = yield NextTurn(params, rejects=asks is Disposition.FINAL)


def _words_of(interrupted: Interrupted) -> str:
    name, end = interrupted.name, "it is not marked as repeatable, so it was not run again"
    if interrupted.is_forgotten:
        return (
            "the ledger was restored from a copy, and after that copy was made the tool "
            f"{name} may have done its work; {end}"
        )
    return (
        f"the tool {name} had started when its process ended, so it may have done its work; {end}"
    )


def _stop(why: Stop, note: str) -> End:
    return End(RequestState.STOPPED, why, note)


_TURNS_FORGOTTEN = _stop(
    Stop.TURNS_FORGOTTEN,
    "its answer asks for another turn, but the ledger was restored from a copy that lacks, or may "
    "lack, turns before that answer",
)


def _are_callers(uses: list[ToolUse], params: bytes, ours: Collection[str]) -> bool:
    """Return whether the caller continues from an answer, because it calls the caller's tools.

    If the names of our tools are unknown, the owner of a call cannot be found, so it is not the
    caller's.
    """
    if not uses:
        return True
    others = declared_tools(params).difference(ours)
    return bool(ours) and any(use.name in others for use in uses)


# What an answer holds -----------------------------------------------------------------------------


class _Block(msgspec.Struct):
    # Checked when the answer arrived. Of duplicate keys, only the last was checked.
    type: Any = ""
    id: Any = None
    name: Any = None
    text: Any = None
    tool_use_id: Any = None
    input: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def is_blank(self) -> bool:
        return self.type == "text" and not (self.text or "").strip()


class _Message(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"[]")
    container: msgspec.Raw = msgspec.Raw(b"null")
    stop_reason: str | None = None


class _Container(msgspec.Struct):
    id: str


class _Named(msgspec.Struct):
    name: str = ""


class _Tools(msgspec.Struct):
    tools: list[_Named] | None = None


class _Format(msgspec.Struct):
    type: str = ""
    schema: msgspec.Raw = msgspec.Raw(b"true")


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None


class _Shaped(msgspec.Struct):
    output_config: _OutputConfig | None = None


class _ToolResult(msgspec.Struct, omit_defaults=True):
    type: str
    tool_use_id: str
    content: msgspec.Raw
    is_error: bool = False


class _MessageParam(msgspec.Struct):
    role: str
    content: Any


_encode = msgspec.json.Encoder().encode
_params = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_blocks = msgspec.json.Decoder(list[_Block])
_message = msgspec.json.Decoder(_Message)
_container = msgspec.json.Decoder(_Container)
_tools = msgspec.json.Decoder(_Tools)
_shaped = msgspec.json.Decoder(_Shaped)


def tool_uses(message: bytes) -> list[ToolUse]:
    """Return the calls of client tools in an answer, in its order."""
    blocks = _blocks.decode(_message.decode(message).content)
    return [ToolUse(b.id or "", b.name or "", b.input) for b in blocks if b.type == "tool_use"]


def possible_calls(message: bytes) -> dict[str, str]:
    """Return the calls that may have run for an answer: the tools' names by the calls' ids."""
    return {use.id: use.name for use in tool_uses(message)}


def declared_tools(params: bytes) -> frozenset[str]:
    """Return the names of the tools that a request offers."""
    return frozenset(tool.name for tool in _tools.decode(params).tools or ())


def after_pause(params: bytes, message: bytes) -> bytes:
    """Return the params that continue a paused turn."""
    answer = _message.decode(message)
    return _extended(params, _assistant(_sendable(answer.content)), answer.container)


def after_tools(params: bytes, message: bytes, outcomes: Iterable[ToolOutcome]) -> bytes:
    """Return the params with the result of each call of an answer, in its order."""
    answer = _message.decode(message)
    results = [
        _ToolResult("tool_result", each.tool_use_id, msgspec.Raw(each.content), each.is_error)
        for each in outcomes
    ]
    turns = [*_assistant(_sendable(answer.content)), _MessageParam("user", results)]
    return _unforced(_extended(params, turns, answer.container))


def after_rejection(params: bytes, message: bytes, words: str) -> bytes:
    """Return the params that report the problem of an answer to the model, and ask again."""
    answer = _message.decode(message)
    blocks = _sendable(answer.content)
    results = [block.tool_use_id for _, block in blocks]
    # A truncated call can never be answered, but the API requires an answer to each call. Results
    # of the API's own tools are in the answer itself.
    kept = [
        (raw, block)
        for raw, block in blocks
        if not str(block.type).endswith("tool_use") or block.id in results
    ]
    # The API accepts no message of the assistant that ends in a thought, nor a changed thought.
    if kept and kept[-1][1].type in ("thinking", "redacted_thinking"):
        kept = []
    return _extended(params, [*_assistant(kept), _MessageParam("user", words)], answer.container)


def _sendable(content: msgspec.Raw) -> list[tuple[msgspec.Raw, _Block]]:
    """Return an answer's blocks without blank texts, which the API writes but does not accept."""
    blocks = zip(_raws.decode(content), _blocks.decode(content), strict=True)
    return [(raw, block) for raw, block in blocks if not block.is_blank]


def _assistant(blocks: list[tuple[msgspec.Raw, _Block]]) -> list[_MessageParam]:
    """Return the message of the assistant that has these blocks; without any, there is none."""
    return [_MessageParam("assistant", [raw for raw, _ in blocks])] if blocks else []


def correction(problem: str) -> str:
    """Return the message to the model about an answer that does not have the requested form."""
    return (
        f"That answer cannot be used: {problem}. Answer again, in full and in the form that was "
        "asked for."
    )


LONGEST_CORRECTION: Final = len(correction("x" * LONGEST_MESSAGE))
"""Most bytes of that message."""


def _extended(params: bytes, new: list[_MessageParam], container: bytes) -> bytes:
    fields = _params.decode(params)
    messages = _raws.decode(fields["messages"])
    fields["messages"] = msgspec.Raw(
        _encode([*messages, *(msgspec.Raw(_encode(message)) for message in new)])
    )
    if (name := _container_id(container)) is not None:
        # The files that the model's code has made are in this container.
        own = mapping_or_none(msgspec.json.decode(fields.get("container", b"null")))
        place = name if own is None else {**own, "id": name}
        fields["container"] = msgspec.Raw(_encode(place))
    return _encode(fields)


def _unforced(params: bytes) -> bytes:
    """Return the params with a free choice of tools.

    A forced choice would have every answer call a tool, so that the conversation could never end.
    """
    if b'"tool_choice"' not in params:
        return params
    fields = _params.decode(params)
    choice = mapping_or_none(msgspec.json.decode(fields.get("tool_choice", b"null")))
    if choice is None or choice.get("type") not in ("any", "tool"):
        return params
    kept = {key: value for key, value in choice.items() if key not in ("type", "name")}
    fields["tool_choice"] = msgspec.Raw(_encode({"type": "auto", **kept}))
    return _encode(fields)


def _container_id(container: bytes) -> str | None:
    """Return the id of an answer's container; `None` if it is missing or unreadable."""
    try:
        return _container.decode(container).id
    except (msgspec.DecodeError, RecursionError):
        return None


@lru_cache(maxsize=64)
def _warn_once(schema: bytes, why: str) -> None:
    _log.warning(
        "answers cannot be validated by their schema, and are accepted unchanged: %s",
        why,
        extra={"for_people": True},
    )


def has_format(params: bytes) -> bool:
    """Return whether params ask for a response format."""
    config = _shaped.decode(params).output_config
    return config is not None and config.format is not None


def schema_problem(params: bytes, message: bytes) -> str | None:
    """Return what is wrong with an answer by the JSON schema of its params; `None` if nothing.

    Also `None` if the params have no schema, or one that cannot be used, because the answer is
    billed.
    """
    config = _shaped.decode(params).output_config
    if config is None or config.format is None:
        return None
    answer = _message.decode(message)
    if answer.stop_reason == "max_tokens":
        return "it was truncated by max_tokens"
    texts = [block.text or "" for block in _blocks.decode(answer.content) if block.type == "text"]
    try:
        value: Any = msgspec.json.decode("".join(texts))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        try:
            # The text before a call of a server tool is not part of the answer.
            value = msgspec.json.decode(texts[-1] if len(texts) > 1 else "")
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return f"it is not valid JSON: {error}"
    schema = bytes(config.format.schema)
    try:
        validator = validator_of(schema)
    except UnusableSchema as error:
        _warn_once(schema, str(error))
        return None
    problems: list[str] = []
    try:
        for fault in validator.iter_errors(value):
            place = ".".join(map(str, fault.absolute_path))
            words = shortened(fault.message, _LONGEST_PROBLEM)
            problems.append(f"{place}: {words}" if place else words)
            if len(problems) == _MOST_PROBLEMS:
                break
    except RecursionError:
        _warn_once(schema, "it is nested too deeply")
        return None
    except ArithmeticError as error:  # a number of the answer or schema is too large for a float
        _warn_once(schema, str(error))
        return None
    return "; ".join(problems) or None
