"""Every error that claude-batch raises on purpose, in one tree.

::

    ActorError
    ├── ActorConfigurationError     an actor's YAML, a setting or a flag is wrong
    ├── ProviderNotFoundError       no provider of that name is registered
    ├── InvalidRequestError         a request that was refused before anything was sent
    │   ├── KeyConflictError        the same key was used for other params
    │   └── PreflightError          the API refuses what a run's requests have in common
    ├── AccountHaltedError          sending stopped for a reason of the account
    ├── BudgetExceededError         no budget has room for it
    ├── BatchTimeoutError           max_wait passed; the batches may still end
    ├── BatchRequestError           the API's own outcome: errored, expired, canceled
    ├── MissingResultError          a batch ended without this request's line
    ├── SubmissionUnknownError      it cannot be known whether the API took the request
    ├── AnswerError                 an answer came, and is none to rely on
    │   ├── MalformedAnswerError        it breaks the API's own format
    │   ├── OutputValidationError       it is not of the shape that was asked for
    │   ├── AnswerRefusedError          the model declined
    │   ├── ContextWindowExceededError  it ends where the model's context window does
    │   └── ConversationStoppedError    its conversation could not go on to its end
    │       ├── TurnLimitError              max_turns passed
    │       └── ToolInterruptedError        a tool may have done its work, and told nobody
    ├── MiddlewareError             the user's middleware failed at a request or its response
    ├── LiveRequestError            a live (not batched) call failed
    ├── RunNotFoundError            the ledger has no such run
    ├── LedgerError                 the ledger cannot be opened, read or written
    └── EngineStoppedError          the engine ended while a caller waited

All can be pickled, and come back with their fields. Messages say what happened, to which item,
what was kept, and what to do next.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal, TypeVar

__all__ = [
    "AccountHaltedError",
    "ActorConfigurationError",
    "ActorError",
    "AnswerError",
    "AnswerRefusedError",
    "BatchRequestError",
    "BatchTimeoutError",
    "BudgetExceededError",
    "BudgetScope",
    "ContextWindowExceededError",
    "ConversationStoppedError",
    "EngineStoppedError",
    "HaltReason",
    "InvalidRequestError",
    "KeyConflictError",
    "LedgerError",
    "LedgerFault",
    "LiveRequestError",
    "MalformedAnswerError",
    "MiddlewareError",
    "MissingResultError",
    "OutputValidationError",
    "PreflightError",
    "ProviderNotFoundError",
    "RunNotFoundError",
    "SubmissionUnknownError",
    "ToolInterruptedError",
    "TurnLimitError",
    "request_name",
]

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
"""Why sending stopped. ``refused``: the API refuses whole batches and names no request.
``unexplained``: a workspace that is said to be exclusive holds a batch of somebody else.
``ledger_behind``: the ledger was restored or copied, and has forgotten what was sent from it.
``other_key``: a run waits in the workspace of another key."""

_E = TypeVar("_E", bound="ActorError")


def _restore(cls: type[_E], message: str, fields: dict[str, Any]) -> _E:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(fields)
    return error


def request_name(key: str | None, position: int) -> str:
    """How messages name a request: by its key, else by its 0-based ``position``."""
    return f"request {key!r}" if key is not None else f"request at position {position}"


class ActorError(Exception):
    """The root of the tree: catch this to catch everything that claude-batch raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword-only fields cannot be rebuilt by ``cls(*args)``.
        return _restore, (type(self), str(self), dict(self.__dict__))


class ActorConfigurationError(ActorError):
    """An actor's YAML, a setting or a flag is wrong; the message names file, line and remedy."""

    def __init__(self, message: str, *, source: str | None = None, line: int | None = None) -> None:
        place = source or ""
        if line is not None:
            place = f"{place}:{line}" if place else f"line {line}"
        super().__init__(f"{place}: {message}" if place else message)
        self.source = source
        """The file (or ``<string>``) that the fault stands in, where known."""
        self.line = line
        """The 1-based line of the fault, where known."""


class ProviderNotFoundError(ActorError):
    """No provider of that name is registered; ``known`` lists those that are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"no provider is called {name!r}; registered are: {', '.join(known) or 'none'}"
        )
        self.name = name
        self.known = known


class InvalidRequestError(ActorError):
    """A request was refused before anything was sent; nothing was paid for it."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(f"request {key!r}: {message}" if key is not None else message)
        self.reason = message
        """What is wrong, without the key before it."""
        self.key = key
        """The caller's key of the refused request, where it has one."""


class KeyConflictError(InvalidRequestError):
    """The key is already taken by a request with other params."""


class PreflightError(InvalidRequestError):
    """The API refused a request of a run when it was asked to count its tokens, which is free.

    Nothing of the run was kept or sent: every request like it would have failed, hours later.
    """

    def __init__(self, message: str, *, key: str | None = None, error_type: str | None) -> None:
        super().__init__(message, key=key)
        self.error_type = error_type
        """The API's own error type, for example ``invalid_request_error``."""


class AccountHaltedError(ActorError):
    """Sending stopped for a reason of the account; the request stays queued.

    Nothing is marked failed for it: once the cause is gone, ``claude-batch resume`` (or the same
    call again) goes on.
    """

    def __init__(self, message: str, *, reason: HaltReason, error_type: str | None = None) -> None:
        super().__init__(message)
        self.reason: HaltReason = reason
        self.error_type = error_type
        """The API's own error type, for example ``authentication_error``."""


BudgetScope = Literal["run", "actor", "day"]
"""Whose spending a budget bounds: one run's, all runs' of an actor, or a day's (UTC) of all."""


class BudgetExceededError(ActorError):
    """What was asked does not fit into a budget; nothing of it was sent.

    For a single call: it alone can cost more than the whole budget, and was not stored. For a run:
    it is held, everything is kept, and ``claude-batch budget`` with a higher sum goes on with it.
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
        """What must be set aside for the smallest request that waits, in dollars."""
        self.run_id = run_id
        """The run that is held; None for a single call."""


class BatchTimeoutError(ActorError):
    """``max_wait`` passed before the answer came."""

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
    ) -> None:
        super().__init__(message)
        self.outcome: Literal["errored", "expired", "canceled"] = outcome
        self.error_type = error_type
        """The API's own type, for example ``overloaded_error``; None for expired and canceled."""
        self.error_message = error_message
        """The API's own message; None for expired and canceled."""
        self.request_id = request_id
        """The API's ``request_id`` of the error, for support."""
        self.batch_id = batch_id


class MissingResultError(ActorError):
    """The batch ended and its results hold no readable line for this request.

    It may have been paid for, so it is sent again only on explicit order.
    """

    def __init__(self, message: str, *, batch_id: str | None = None) -> None:
        super().__init__(message)
        self.batch_id = batch_id


class SubmissionUnknownError(ActorError):
    """Whether the API accepted the batch that carries this request cannot be known.

    It may have been paid for, so it is sent again only on explicit order.
    """


class AnswerError(ActorError):
    """An answer came, and was paid for, but it is none to rely on."""

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
        """The answer's text, as far as it came."""
        self.stop_reason = stop_reason
        """Why the model stopped: ``end_turn``, ``max_tokens``, ``refusal``, …"""
        self.batch_id = batch_id
        """The API's id of the batch that it came from; None for a live answer."""
        self.response = response
        """The answer itself, an `ActorResponse`, where there is no more to say of it."""


class OutputValidationError(AnswerError):
    """An answer came, and was paid for, but is not of the shape that was asked for.

    It was cut by ``max_tokens``, or does not validate; the message says which, and where.
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
        """What is wrong, without the rest of the message."""


class MalformedAnswerError(AnswerError):
    """The server answered with success, so it was paid for, but in no form that the API documents.

    Its ``text`` is empty. The same request may succeed if it is asked again, for money.
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
        """The result line as it came: JSON, as far as it is any. `ClaudeProvider` has the body."""
        self.problem = problem
        """What is wrong with it, without the rest of the message."""


class AnswerRefusedError(AnswerError):
    """The model declined to answer (``stop_reason`` ``refusal``); ``text`` is what it said first.

    The same prompt would be declined again: it is not sent again by itself.
    """


class ContextWindowExceededError(AnswerError):
    """Prompt and answer filled the model's context window; ``text`` is the answer up to there."""


class ConversationStoppedError(AnswerError):
    """A conversation could not go on to its end; ``response`` is the last answer."""


class TurnLimitError(ConversationStoppedError):
    """The last answer that ``max_turns`` allows asks for another turn."""


class ToolInterruptedError(ConversationStoppedError):
    """A tool had started when its process ended, and is not marked ``repeatable``.

    It may have done its work, so it was not run again.
    """


class MiddlewareError(ActorError):
    """A middleware failed at one request or its response; all others are untouched.

    What it raised is the ``__cause__``.
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
        """The name of its class."""
        self.stage: Literal["before_request", "after_response"] = stage
        self.key = key
        """The caller's key of the request, where it has one."""


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
        """The HTTP status, None where no answer came."""
        self.error_type = error_type
        self.request_id = request_id
        self.may_be_billed = may_be_billed
        """True if the API may have processed the call, and billed it, without an answer that
        arrived. Ask again only if paying twice is acceptable."""


class RunNotFoundError(ActorError):
    """The ledger has no run of that id."""


LedgerFault = Literal["unusable", "full", "busy", "damaged", "version", "conflict"]
"""What is wrong with a ledger. ``full`` and ``busy`` pass: the disk is full or fails, or another
process holds it. ``damaged``: the file is. ``version``: another claude-batch wrote it.
``conflict``: a value contradicts what the ledger holds, which no repetition mends."""


class LedgerError(ActorError):
    """The ledger cannot be opened, read or written; what it holds is untouched."""

    def __init__(self, message: str, *, fault: LedgerFault = "unusable") -> None:
        super().__init__(message)
        self.fault: LedgerFault = fault

    @property
    def passes(self) -> bool:
        """True where the same call goes on once room is made, or the other process has ended."""
        return self.fault in ("full", "busy")


class EngineStoppedError(ActorError):
    """The engine ended while a caller waited; what was queued stays in the ledger."""
