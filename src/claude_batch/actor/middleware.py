"""Middleware: what may change a request before it is encoded, and a response before it is given.

Each is an object with one or both of the methods of `Middleware`. On the way in they are called in
the order in which they were given, on the way back in the reverse; a fault in one fails that
request alone. How they are called, on which thread and for how long, is the providers' part.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from claude_batch.actor.request import ActorRequest
from claude_batch.actor.response import ActorResponse
from claude_batch.core.durations import parse_duration
from claude_batch.core.errors import ActorConfigurationError, MiddlewareError

__all__ = ["TIMEOUT", "Middleware", "Middlewares", "Passage", "Step"]


class Middleware:
    """A middleware that changes nothing: a base to derive from, which nobody is obliged to.

    Plain methods are called on threads that all providers of the process share, with the context
    variables of the caller, several at once. ``async def`` methods are awaited on the caller's
    event loop, or on one in a thread where the caller has none; they must not block. Results that
    another process reads pass through the middleware of that process.
    """

    def before_request(
        self, actor: str, request: ActorRequest, /
    ) -> ActorRequest | Awaitable[ActorRequest]:
        """The request to encode in place of this one, which may be the same.

        ``actor`` is the actor's name. The key stays the caller's, whatever comes back. What comes
        back is what the identity of a run is made of: middleware that adds the time of day makes
        each run a new one. Whatever is raised fails this request with a `MiddlewareError`, and
        nothing is sent for it.
        """
        return request

    def after_response(
        self, actor: str, key: str | None, response: ActorResponse, /
    ) -> ActorResponse | Awaitable[ActorResponse]:
        """The response to hand over in place of this one, which may be the same.

        ``key`` is the request's, where it has one. It is called each time that an answer is given:
        the ledger keeps what the API said. Whatever is raised, and taking longer than the
        provider's ``middleware_timeout``, fails this request with a `MiddlewareError`. The answer
        stays in the ledger: the same call, or the run's results, give it again at no cost.
        """
        return response


Stage: TypeAlias = Literal["before_request", "after_response"]

TIMEOUT = 60.0
"""Seconds that ``after_response`` may take, unless ``middleware_timeout`` says otherwise."""


@dataclass(slots=True)
class Passage:
    """A request or a response on its way through middleware."""

    actor: str
    key: str | None
    value: ActorRequest | ActorResponse
    kept: str
    """Words that say what is safe where middleware fails."""
    error: MiddlewareError | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One method of one middleware."""

    name: str
    """The name of the middleware's class."""
    stage: Stage
    change: Callable[..., Any]
    is_async: bool

    def call(self, passage: Passage) -> Any:
        """Call the method; an ``async def`` one gives what is to be awaited."""
        if self.stage == "before_request":
            return self.change(passage.actor, passage.value)
        return self.change(passage.actor, passage.key, passage.value)

    def settle(self, passage: Passage, changed: object) -> None:
        """Note what the method made of a passage."""
        wanted = ActorRequest if self.stage == "before_request" else ActorResponse
        if not isinstance(changed, wanted):
            words = f"gave {type(changed).__name__} in {self.stage}, not an {wanted.__name__}"
            passage.error = self._error(words, passage)
        elif isinstance(changed, ActorRequest) and changed.key != passage.key:
            # The caller finds its answer by the key.
            passage.value = replace(changed, key=passage.key)
        else:
            passage.value = changed

    def fail(self, passage: Passage, error: Exception) -> None:
        """Note what the method raised."""
        words = f"failed in {self.stage}: {type(error).__name__}: {error}"
        passage.error = self._error(words, passage)
        passage.error.__cause__ = error

    def overrun(self, passage: Passage, seconds: float) -> None:
        """Note that the method did not return in time."""
        words = f"did not return from {self.stage} within {seconds:g} s (middleware_timeout)"
        passage.error = self._error(words, passage)

    def _error(self, words: str, passage: Passage) -> MiddlewareError:
        return MiddlewareError(
            f"the middleware {self.name} {words}; {passage.kept}",
            middleware=self.name,
            stage=self.stage,
            key=passage.key,
        )


class Middlewares:
    """All middleware of a provider; false where there is none."""

    def __init__(self, middleware: Iterable[object], timeout: str | float = TIMEOUT) -> None:
        """``timeout`` is a duration, which bounds each ``after_response``.

        Raises ``TypeError`` for an object with neither method, and `ActorConfigurationError` for a
        time-out that is none.
        """
        try:
            self.timeout: float = parse_duration(timeout)
        except ValueError as error:
            raise ActorConfigurationError(f"middleware_timeout: {error}") from None
        if not self.timeout:
            raise ActorConfigurationError("middleware_timeout: it must be more than 0")
        self.before: list[Step] = []
        """In the order in which they are called; likewise the next."""
        self.after: list[Step] = []
        for each in middleware:
            before: Any = getattr(each, "before_request", None)
            after: Any = getattr(each, "after_response", None)
            if not callable(before) and not callable(after):
                raise TypeError(
                    f"middleware: {each!r} has neither a method before_request nor after_response"
                )
            name = type(each).__name__
            if callable(before):
                is_async = inspect.iscoroutinefunction(before)
                self.before.append(Step(name, "before_request", before, is_async))
            if callable(after):
                is_async = inspect.iscoroutinefunction(after)
                self.after.insert(0, Step(name, "after_response", after, is_async))

    def __bool__(self) -> bool:
        return bool(self.before or self.after)
