"""Every error that claude-batch raises on purpose, in one tree.

::

    ActorError
    ├── ActorConfigurationError     an actor's YAML, a setting or a flag is wrong
    ├── ProviderNotFoundError       no provider of that name is registered
    ├── InvalidRequestError         a request that was refused before anything was sent
    │   ├── KeyConflictError        the same key was used for other params or headers
    │   └── PreflightError          the API refuses what a run's requests have in common
    ├── AccountHaltedError          sending stopped because of the key or the account
    ├── BudgetExceededError         the request does not fit into a budget
    ├── BatchTimeoutError           max_wait passed; the batches may still end
    ├── BatchRequestError           the result is errored, expired or canceled
    ├── MissingResultError          the batch ended without a result for the request
    ├── SubmissionUnknownError      it is unknown whether the API accepted the request
    ├── AnswerError                 an answer arrived and was billed, but is not reliable
    │   ├── MalformedAnswerError        it is not in a documented format
    │   ├── OutputValidationError       it does not match the requested format
    │   ├── AnswerRefusedError          the model declined
    │   ├── ContextWindowExceededError  it filled the model's context window
    │   └── ConversationStoppedError    its conversation could not continue
    │       ├── TurnLimitError              max_turns is reached
    │       ├── ToolInterruptedError        a tool may have run, but its result is lost
    │       └── TurnsForgottenError         the ledger was restored, and lacks earlier turns
    ├── MiddlewareError             a middleware failed at a request or its response
    ├── LiveRequestError            a live (not batched) call failed
    ├── RunNotFoundError            the ledger has no such run, or several
    ├── LedgerError                 the ledger cannot be opened, read or written
    └── EngineStoppedError          the engine ended while a caller waited

All can be pickled, and come back with their fields. Messages say what happened, to which item,
what was kept, and what to do next.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, TypeVar, cast

HaltReason = Literal[
    "credentials",
    "billing",
    "permission",
    "spend_limit",
    "refused",
    "unexplained",
    "ledger_behind",
    "other_key",
]
"""Why sending stopped. ``refused``: the API refuses whole batches without naming a request.
``unexplained``: a workspace declared exclusive holds another client's batch. ``ledger_behind``: the
ledger was restored or copied, and lacks POSTs that were sent from it. ``other_key``: a run waits in
the workspace of another key.
"""

STATUS_OF_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP status that the API sends with each error type."""

CanceledBy = Literal["api", "run", "calls", "deadline"]
"""Who cancelled a request. ``api``: somebody else, who canceled its batch in the Console or with
another program. ``run`` and ``calls``: the user, who cancelled its run or its call. ``deadline``:
claude-batch, because the deadline of its run was near.
"""

_E = TypeVar("_E", bound="ActorError")
_X = TypeVar("_X", bound=BaseException)


def _restore(cls: type[_E], message: str, fields: dict[str, Any]) -> _E:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(fields)
    return error


def request_name(key: str | None, position: int) -> str:
    """Return the name of a request in messages: its key, else its 0-based ``position``."""
    return f"request {key!r}" if key is not None else f"request at position {position}"


class ActorError(Exception):
    """Base class of every exception that claude-batch raises."""

    cost: int | None = None
    """What was billed for the request although it failed, in nano-dollars, as for the first turns
    of its conversation; None if nothing was billed, or if it is unknown.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword-only fields cannot be rebuilt by ``cls(*args)``.
        return _restore, (type(self), str(self), dict(self.__dict__))


class ActorConfigurationError(ActorError):
    """An actor's YAML, a setting or a flag is wrong; the message names file, line and remedy."""

    def __init__(
        self,
        message: str,
        *,
        source: str | None = None,
        line: int | None = None,
        setting: str | None = None,
    ) -> None:
        place = source or setting or ""
        if line is not None:
            place = f"{place}:{line}" if place else f"line {line}"
        super().__init__(f"{place}: {message}" if place else message)
        self.source = source
        """The file (or ``<string>``) that contains the error, if known."""
        self.line = line
        """The 1-based line of the error, if known."""
        self.setting = setting
        """The keyword with the wrong value, if it is one; the message begins with it."""


class ProviderNotFoundError(ActorError):
    """No provider of that name is registered; ``known`` lists the registered ones."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"no provider is called {name!r}; registered are: {', '.join(known) or 'none'}"
        )
        self.name = name
        self.known = known


class InvalidRequestError(ActorError):
    """A request was refused before anything was sent; it was not billed."""

    def __init__(
        self, message: str, *, key: str | None = None, position: int | None = None
    ) -> None:
        if key is not None:
            name = f"request {key!r}: "
        else:
            name = "" if position is None else f"{request_name(None, position)}: "
        super().__init__(name + message)
        self.reason = message
        """The problem, without the request's name before it."""
        self.key = key
        """The caller's key of the refused request, if it has one."""
        self.position = position
        """The 0-based position of a request without a key among those of its run; None if it was
        not given with others."""
        self.unpriced_model: str | None = None
        """The request's model, if a budget needs its price and none is known."""

    def naming(self, key: str | None, position: int | None = None) -> InvalidRequestError:
        """Return this error with the name of its request, unless it has a name already."""
        if self.key is not None or type(self) is not InvalidRequestError:
            return self
        named = InvalidRequestError(self.reason, key=key, position=position)
        named.unpriced_model = self.unpriced_model
        return named


class KeyConflictError(InvalidRequestError):
    """The key is already used by a request with other params or headers."""


class PreflightError(InvalidRequestError):
    """The API refused a request of a run when it counted the request's tokens, which is free.

    Nothing of the run was kept or sent. Every similar request would have failed, hours later.
    """

    def __init__(self, message: str, *, key: str | None = None, error_type: str | None) -> None:
        super().__init__(message, key=key)
        self.error_type = error_type
        """The API's own error type, for example ``invalid_request_error``."""


class AccountHaltedError(ActorError):
    """Sending stopped for a reason of the account; the request stays queued.

    No request is marked as failed for it. Once the cause is removed, ``claude-batch resume`` (or
    the same call again) continues.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: HaltReason,
        error_type: str | None = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason: HaltReason = reason
        self.error_type = error_type
        """The API's own error type, for example ``authentication_error``."""
        self.run_id = run_id
        """The run that waits in the ledger; None if nothing was stored."""


BudgetScope = Literal["run", "actor", "day"]
"""Scope of a budget: one run, all runs of an actor, or all runs on a day (UTC)."""


class BudgetExceededError(ActorError):
    """A request does not fit into a budget; it was not sent.

    A single call that alone can cost more than the whole budget was not stored, and has no
    ``run_id``. Otherwise the run, or the run of the single call, is held and everything is kept.
    Raise the amount with ``claude-batch budget`` to continue it.
    """

    def __init__(
        self,
        message: str,
        *,
        scope: BudgetScope,
        budget_usd: Decimal,
        needed_usd: Decimal,
        run_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.scope: BudgetScope = scope
        self.budget_usd = budget_usd
        """The whole budget, in dollars."""
        self.needed_usd = needed_usd
        """The reservation of the smallest waiting request, in dollars."""
        self.run_id = run_id
        """The run that is held; None if nothing was stored."""


class BatchTimeoutError(ActorError):
    """``max_wait`` passed before the answer arrived."""

    def __init__(self, message: str, *, run_id: str, batch_ids: tuple[str, ...]) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.batch_ids = batch_ids
        """The API's ids of the batches that had not ended; empty if none was submitted yet."""


class BatchRequestError(ActorError):
    """The API answered this request of a batch with ``errored``, ``expired`` or ``canceled``."""

    def __init__(
        self,
        message: str,
        *,
        outcome: Literal["errored", "expired", "canceled"],
        error_type: str | None = None,
        error_message: str | None = None,
        request_id: str | None = None,
        batch_id: str | None = None,
        canceled_by: CanceledBy | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome: Literal["errored", "expired", "canceled"] = outcome
        self.error_type = error_type
        """The API's own error type, for example ``overloaded_error``; None for expired and
        canceled.
        """
        self.error_message = error_message
        """The API's own message; None for expired and canceled."""
        self.request_id = request_id
        """The API's ``request_id`` of the error, for support."""
        self.batch_id = batch_id
        self.canceled_by: CanceledBy | None = canceled_by
        """Who cancelled it; None if it was not canceled."""


class MissingResultError(ActorError):
    """The batch ended and its results hold no readable line for this request.

    The request may have been billed, so it is sent again only on explicit order.
    """

    def __init__(self, message: str, *, batch_id: str | None = None) -> None:
        super().__init__(message)
        self.batch_id = batch_id


class SubmissionUnknownError(ActorError):
    """It is unknown whether the API accepted the batch that carries this request.

    The request may have been billed, so it is sent again only on explicit order.
    """


class AnswerError(ActorError):
    """An answer arrived and was billed, but is not reliable."""

    def __init__(
        self,
        message: str,
        *,
        text: str,
        stop_reason: str | None = None,
        batch_id: str | None = None,
        response: Any = None,
    ) -> None:
        super().__init__(message)
        self.text = text
        """The answer's text, possibly incomplete."""
        self.stop_reason = stop_reason
        """Why the model stopped: ``end_turn``, ``max_tokens``, ``refusal``, …"""
        self.batch_id = batch_id
        """The API's id of the batch that it came from; None for a live answer."""
        self.response = response
        """The whole answer, an `ActorResponse`; None if the error does not carry it."""
        self.cost: int | None = getattr(response, "cost", None)


class OutputValidationError(AnswerError):
    """An answer arrived and was billed, but does not match the requested format.

    It was cut by ``max_tokens``, or does not validate. The message names the reason and the place.
    """

    def __init__(
        self,
        message: str,
        *,
        text: str,
        stop_reason: str | None = None,
        batch_id: str | None = None,
        response: Any = None,
        problem: str = "",
    ) -> None:
        super().__init__(
            message, text=text, stop_reason=stop_reason, batch_id=batch_id, response=response
        )
        self.problem = problem
        """The problem, without the rest of the message."""


class MalformedAnswerError(AnswerError):
    """The server reported success, so it billed the answer, but the format is not documented.

    ``text`` is empty. The same request may succeed if it is sent again, and is billed again.
    """

    def __init__(
        self,
        message: str,
        *,
        raw: bytes,
        batch_id: str | None = None,
        problem: str = "",
    ) -> None:
        super().__init__(message, text="", batch_id=batch_id)
        self.raw = raw
        """The result line as received, which may not be valid JSON. `ClaudeProvider` and
        an `ActorResponse` set the body.
        """
        self.problem = problem
        """The problem, without the rest of the message."""


class AnswerRefusedError(AnswerError):
    """The model declined to answer (``stop_reason`` ``refusal``).

    ``text`` is the output before the refusal. The request is not retried automatically, because the
    model would decline the same prompt again.
    """


class ContextWindowExceededError(AnswerError):
    """Prompt and answer filled the model's context window; ``text`` is the answer up to there."""


class ConversationStoppedError(AnswerError):
    """A conversation stopped before its end; ``response`` is the last answer."""


class TurnLimitError(ConversationStoppedError):
    """The last answer that ``max_turns`` allows asks for another turn."""


class ToolInterruptedError(ConversationStoppedError):
    """A tool had started when its process ended, and is not marked ``repeatable``.

    The tool may have completed its work, so it was not run again. The same holds for a tool that
    may have run before its ledger was restored from a copy.
    """


class TurnsForgottenError(ConversationStoppedError):
    """An answer asks for another turn, but the restored ledger may lack turns before it."""


class MiddlewareError(ActorError):
    """A middleware failed at one request or its response; other requests are not affected.

    The middleware's exception is the ``__cause__``.
    """

    def __init__(
        self,
        message: str,
        *,
        middleware: str,
        stage: Literal["before_request", "after_response"],
        key: str | None = None,
    ) -> None:
        super().__init__(f"request {key!r}: {message}" if key is not None else message)
        self.middleware = middleware
        """The name of the middleware's class."""
        self.stage: Literal["before_request", "after_response"] = stage
        self.key = key
        """The caller's key of the request, if it has one."""


class LiveRequestError(ActorError):
    """A live call to the Messages API failed, after the provider's own retries."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        error_type: str | None = None,
        request_id: str | None = None,
        may_be_billed: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; None if no response arrived."""
        self.error_type = error_type
        self.request_id = request_id
        self.may_be_billed = may_be_billed
        """True if the API may have processed and billed the call, although no answer arrived. Retry
        only if paying twice is acceptable.
        """


class RunNotFoundError(ActorError):
    """The ledger has no run with that id, or several whose ids begin with it.

    Also raised if the run is removed while it is read.
    """


LedgerFault = Literal["unusable", "full", "busy", "unreachable", "damaged", "version", "conflict"]
"""The problem with a ledger. ``full``, ``busy`` and ``unreachable`` are temporary: the disk is full
or fails, another process holds the ledger, or its server does not answer. ``damaged``: the file is
damaged or gone. ``version``: another claude-batch wrote it. ``conflict``: a value contradicts the
ledger's content, which no retry repairs.
"""


class LedgerError(ActorError):
    """The ledger cannot be opened, read or written; its content is unchanged."""

    def __init__(self, message: str, *, fault: LedgerFault = "unusable") -> None:
        super().__init__(message)
        self.fault: LedgerFault = fault

    @property
    def passes(self) -> bool:
        """True if the same call works once the disk has space, or the other process has ended,
        or the server answers again."""
        return self.fault in ("full", "busy", "unreachable")


class EngineStoppedError(ActorError):
    """The engine ended while a caller waited; queued requests stay in the ledger."""


class BadInput(Exception):
    """An input file that cannot be used; the message names file, line and item.

    It is not in the tree, because only commands and tasks read input files.
    """


_TYPES: dict[type, str] = {
    AnswerError: "invalid_output",
    AnswerRefusedError: "refusal",
    ContextWindowExceededError: "model_context_window_exceeded",
    MalformedAnswerError: "malformed_answer",
    TurnLimitError: "max_turns",
    ToolInterruptedError: "tool_interrupted",
    TurnsForgottenError: "turns_forgotten",
    ConversationStoppedError: "too_large",
    SubmissionUnknownError: "submission_unknown",
    LiveRequestError: "no_answer",
    AccountHaltedError: "halted",
    BudgetExceededError: "budget_exceeded",
    MiddlewareError: "middleware",
    InvalidRequestError: "invalid_request",
    KeyConflictError: "key_conflict",
    ActorError: "missing_result",
}
"""A class that is not listed, such as one of a plug-in, has the type of its base."""


def error_type(error: ActorError) -> str:
    """Return the API's error type if there is one, else a type for what happened."""
    if isinstance(error, BatchRequestError):
        return error.error_type or error.outcome
    if isinstance(error, LiveRequestError | AccountHaltedError) and error.error_type is not None:
        return error.error_type
    return next(_TYPES[each] for each in type(error).__mro__ if each in _TYPES)


def for_one_caller(error: _X) -> _X:
    """Return an error as one of several callers raises it: a copy, if it is an `ActorError`.

    Each raise adds to an object's traceback. The traceback of an object that ten thousand callers
    share would have the frames of all of them, and hold their requests.
    """
    if not isinstance(error, ActorError):
        return error
    own = copy.copy(error).with_traceback(error.__traceback__)
    own.__cause__, own.__suppress_context__ = error.__cause__, error.__suppress_context__
    return own


def first_cause(error: BaseException) -> BaseException:
    """Return the first exception of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
