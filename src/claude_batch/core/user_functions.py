"""Functions of the user that decide something, and cannot do harm.

Such a function runs on a thread of its own. If it raises, returns nonsense, or does not return in
time, the default decides in its place, and a line in the log says so. What may be decided at all
is up to the caller: no function is asked whether a request that may have been billed is sent again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.core.outcome import Disposition
from claude_batch.core.terminal import encodable

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

SECONDS = 5.0
"""Seconds that a function may take. If it takes longer, the process does not call it again."""


def described(error: BaseException) -> str:
    """Return the type and message of a user's exception, as UTF-8 text: ``KeyError: 'total'``."""
    kind = type(error).__name__
    try:
        words = encodable(str(error))
    except Exception as fault:  # of its own `__str__`
        words = f"its message cannot be read ({type(fault).__name__})"
    return f"{kind}: {words}" if words else kind


LONGEST_MESSAGE: Final = 2_000
"""Most bytes of a message to the model about an answer or a call of a tool."""


def shortened(words: str, most: int = LONGEST_MESSAGE) -> str:
    """Return a text without its middle if its UTF-8 has more than ``most`` bytes.

    The text may quote a whole answer or a list of valid values, and each later turn repeats it.
    """
    encoded = words.encode()
    if len(encoded) <= most:
        return words
    half = most // 2 - 4
    start, end = (part.decode(errors="ignore") for part in (encoded[:half], encoded[-half:]))
    return f"{start} [...] {end}"


def ends_the_caller(error: BaseException) -> bool:
    """Return whether an exception is meant for the caller rather than raised by its function.

    Everything else is a failure of the function. A `SystemExit` would end other calls, too.
    """
    if isinstance(error, KeyboardInterrupt):  # Ctrl-C reaches the main thread alone
        return threading.current_thread() is threading.main_thread()
    if isinstance(error, asyncio.CancelledError):
        # If the caller is not being cancelled, something that its function awaited was.
        try:
            task = asyncio.current_task()
        except RuntimeError:  # a thread without an event loop
            return False
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit)


def is_async(function: object) -> bool:
    """Return whether calling an object returns a coroutine: ``async def``, or its ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object may have one
    )


def check_takes(name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise ``TypeError`` if a function cannot be called with so many arguments.

    The faults of such a function are only logged, so a wrong signature would be noticed late.
    ``arguments`` are their names, for the message. A function without a readable signature passes.
    """
    try:
        # A wrapper may pass on other arguments than it receives.
        signature = inspect.signature(function, follow_wrapped=False)
        takes = str(signature)
    except Exception:  # some built-ins have none, and an object of the user may fail
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise TypeError(
            f"{name}: {function!r} takes {takes}, but is called with ({', '.join(arguments)})"
        ) from None


LONGEST_PAUSE = 3600.0
"""Longest pause in seconds that a `PaceStrategy` may ask for."""

Classification: TypeAlias = Literal["retry", "final", "account"]
"""What an error means for its request."""


class RequestFault(NamedTuple):
    """An error with which the API answered a request, and for which it bills nothing."""

    error_type: str
    """The API's type, such as ``invalid_request_error``."""
    message: str
    details: Mapping[str, Any] | None
    """The API's details, if it sent any."""
    status: int | None
    """The HTTP status of a live call's answer; None for a line of a batch's results."""
    default: Classification
    """What the error means without a `Classifier`."""

    def with_retry_on(self, retry_on: str | None) -> RequestFault:
        """Return the fault with the default that a run's ``retry_on`` gives it.

        ``retry_on`` are types of errors, separated by commas.
        """
        if self.default == "final" and retry_on and self.error_type in retry_on.split(", "):
            return self._replace(default="retry")
        return self


class Classifier(Protocol):
    """A function that decides what an error of a request means.

    ``retry``: the request is sent again, while ``max_attempts`` allows it. ``final``: it has
    failed. ``account``: the account is at fault. Then the request returns to the queue, and sending
    halts until a probe is accepted or ``claude-batch resume`` is run. None: the default.

    It is called by the process that drives the ledger, and must be quick: after `SECONDS` seconds
    the default decides, and the process does not call it again. Equal errors may be asked once.
    It is not asked about errors that the API defines as the account's, about refusals for the rate
    of live calls, or about answers that may hide a billed one.
    """

    def __call__(self, fault: RequestFault, /) -> Classification | None:
        """Return what the error means."""
        ...


class PaceStrategy(Protocol):
    """A function that decides how long live calls pause after a refusal for the rate (429, 529).

    ``refusals`` counts the pauses since the last answer, from 1. ``retry_after`` is what the API
    asks for in seconds, if it does. All calls of the process to the model pause together. The
    result is in seconds, from 0 to an hour. The default is what the API asks for, or else 1, 2, 4 …
    60 seconds. None: the default. It must be quick, as a `Classifier`.
    """

    def __call__(self, refusals: int, retry_after: float | None, /) -> float | None:
        """Return the seconds of the pause."""
        ...


class UserFunction(Generic[_T]):
    """One function of the user, with the check of what it returns."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        check: Callable[[Any], _T],
        *arguments: str,
    ) -> None:
        """``check`` returns the decision, or raises ``ValueError``.

        Raises `ActorConfigurationError` for an ``async def`` function, and ``TypeError`` for an
        object that cannot be called with ``arguments``, which are names.
        """
        if not callable(function):
            raise TypeError(f"{name}: {function!r} is not callable")
        if is_async(function):
            raise ActorConfigurationError(f"{name}: {function!r} is asynchronous; use a plain one")
        check_takes(name, function, *arguments)
        self.name: str = name
        self.function: Callable[..., Any] = function
        self._check = check
        self._hung = False

    async def ask(self, *arguments: object) -> _T | None:
        """Return the decision, or None if the default decides. Raises nothing."""
        if self._hung:
            return None
        future: Future[tuple[Any, BaseException | None]] = Future()
        thread = threading.Thread(
            target=self._run,
            args=(future, arguments),
            name=f"claude-batch-{self.name}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:
            _log.error("%s was not called: %s; the default is used", self.name, error)
            return None
        waiting = asyncio.wrap_future(future)
        done, _ = await asyncio.wait([waiting], timeout=SECONDS)
        if not done:
            self._hung = True
            waiting.cancel()
            _log.error(
                "%s did not return within %g s; this process uses the default from now on",
                self.name,
                SECONDS,
            )
            return None
        found, error = waiting.result()
        if error is not None:
            _log.error("%s failed; the default is used", self.name, exc_info=error)
            return None
        try:
            return None if found is None else self._check(found)
        except Exception as problem:  # a value may even fail when it is looked at
            _log.error("%s: %s; the default is used", self.name, problem)
            return None

    def _run(self, future: Future[Any], arguments: tuple[object, ...]) -> None:
        # Also SystemExit: it must not end the thread without a result.
        try:
            found = (self.function(*arguments), None)
        except BaseException as error:
            found = (None, error)
        if future.set_running_or_notify_cancel():
            future.set_result(found)


def _classification(found: Any) -> Disposition:
    if not isinstance(found, str) or found not in ("retry", "final", "account"):
        raise ValueError(f"it returned {found!r}, which is neither retry nor final nor account")
    return Disposition(found)


def _pause(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise ValueError(f"it returned {found!r}, which is not a number of seconds")
    if not 0 <= found <= LONGEST_PAUSE:
        raise ValueError(f"it returned {found!r} seconds; at most {LONGEST_PAUSE:g} is allowed")
    return float(found)


class UserFunctions(msgspec.Struct):
    """The functions of the user that one engine or one live provider asks."""

    classify: UserFunction[Disposition] | None = None
    pace: UserFunction[float] | None = None

    @classmethod
    def of(cls, classify: Classifier | None, pace: PaceStrategy | None) -> UserFunctions:
        """Return the given functions, checked."""
        return cls(
            None
            if classify is None
            else UserFunction("classify", classify, _classification, "fault"),
            None if pace is None else UserFunction("pace", pace, _pause, "refusals", "retry_after"),
        )

    def join(self, other: UserFunctions) -> None:
        """Take the functions of another user of the same ledger.

        Raises `ActorConfigurationError` if it brings another function in place of one.
        """
        pairs = ((self.classify, other.classify), (self.pace, other.pace))
        for mine, theirs in pairs:
            if mine is not None and theirs is not None and mine.function != theirs.function:
                raise ActorConfigurationError(
                    f"{mine.name}: the ledger is already open in this process with another "
                    "function; use the same one for all its providers"
                )
        self.classify = self.classify or other.classify
        self.pace = self.pace or other.pace

    async def disposition(self, fault: RequestFault) -> Disposition:
        """Return what an error means for a request for which nothing was billed."""
        default = Disposition(fault.default)
        if self.classify is None or default is Disposition.ACCOUNT:
            return default
        return await self.classify.ask(fault) or default
