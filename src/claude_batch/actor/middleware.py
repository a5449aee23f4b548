"""Middleware: change a request before it is encoded, and a response before it is returned.

Each middleware is an object with one or both of the methods of `Middleware`. Requests pass in the
given order, responses in reverse order. An exception in one fails only that request. The providers
decide on which thread a method runs, and for how long.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

import msgspec

from claude_batch.actor.request import ActorRequest
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import MiddlewareError
from claude_batch.core.settings import read_timeout
from claude_batch.core.user_functions import check_takes, described, is_async


class Middleware:
    """A middleware that changes nothing; deriving from it is optional.

    Plain methods are called on threads that all providers of the process share, with the context
    variables of the caller, several at once. ``async def`` methods are awaited on the caller's
    event loop, or on a loop in a thread if the caller has none; they must not block. So is what a
    plain method returns if it is awaitable, as that of a decorated ``async def`` method. Results
    that another process reads pass through the middleware of that process.
    """

    def before_request(
        self, actor: str, request: ActorRequest, /
    ) -> ActorRequest | Awaitable[ActorRequest]:
        """Return the request to encode in place of this one, or this one.

        ``actor`` is the actor's name. The caller's key is kept, whatever is returned; so is its
        context, unless the returned request has another one. The returned request is part of the
        run's identity: middleware that adds the time of day makes each run a new one. An exception
        fails this request with a `MiddlewareError`, and nothing is sent for it.
        """
        return request

    def after_response(
        self, actor: str, key: str | None, response: ActorResponse, /
    ) -> ActorResponse | Awaitable[ActorResponse]:
        """Return the response to pass on in place of this one, or this one.

        ``key`` is the request's key, if it has one; ``response.context`` is the request's context.
        The method is called each time an answer is
        returned, because the ledger stores the API's original answer. An exception, or a timeout
        after the provider's ``middleware_timeout``, fails this request with a `MiddlewareError`.
        The answer stays in the ledger: the same call, or the run's results, return it again at no
        cost.
        """
        return response


class PostProcessor(Protocol):
    """A function that receives each result before its caller does, such as to store it elsewhere.

    It is called for answers and failures, after all middleware. What it returns is ignored, but an
    awaitable is awaited. An exception, or a timeout after the provider's ``post_process_timeout``,
    is logged and changes nothing: the caller receives the result. It is called on threads and loops
    as a middleware is, and again if the same results are read again. An answer to a request with an
    ``output_format`` is parsed before.
    """

    def __call__(self, result: ActorResult[Any], /) -> object:
        """Process a result; an awaitable that is returned is awaited."""
        ...


Stage: TypeAlias = Literal["before_request", "after_response"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

TIMEOUT = 60.0
"""Default ``middleware_timeout``: seconds that ``after_response`` may take."""


class Passage(msgspec.Struct, Generic[_T]):
    """A request, a response or a result on its way through the user's functions."""

    actor: str
    key: str | None
    value: _T
    kept: str
    """Text that describes what is safe if the middleware fails."""
    error: MiddlewareError | None = None


class Step(msgspec.Struct, frozen=True):
    """One method of one middleware."""

    name: str
    """The name of the middleware's class."""
    stage: Stage
    change: Callable[..., Any]
    is_async: bool

    def call(self, passage: Passage[Any]) -> Any:
        """Call the method; an ``async def`` one returns an awaitable."""
        if self.stage == "before_request":
            return self.change(passage.actor, passage.value)
        return self.change(passage.actor, passage.key, passage.value)

    def settle(self, passage: Passage[Any], changed: object) -> None:
        """Store what the method returned for a passage."""
        wanted = ActorRequest if self.stage == "before_request" else ActorResponse
        if not isinstance(changed, wanted):
            words = (
                f"returned {type(changed).__name__} from {self.stage} instead of {wanted.__name__}"
            )
            passage.error = self._error(words, passage)
            return
        context = passage.value.context if changed.context is None else changed.context
        if isinstance(changed, ActorResponse):
            passage.value = changed if context is changed.context else changed.with_context(context)
        elif changed.key != passage.key or context is not changed.context:
            # The caller finds its answer by the key.
            passage.value = replace(changed, key=passage.key, context=context)
        else:
            passage.value = changed

    def fail(self, passage: Passage[Any], error: BaseException) -> None:
        """Record the exception that the method raised."""
        words = f"failed in {self.stage}: {described(error)}"
        passage.error = self._error(words, passage)
        passage.error.__cause__ = error

    def overrun(self, passage: Passage[Any], seconds: float) -> None:
        """Record that the method did not return in time."""
        words = f"did not return from {self.stage} within {seconds:g} s (middleware_timeout)"
        passage.error = self._error(words, passage)

    def _error(self, words: str, passage: Passage[Any]) -> MiddlewareError:
        return MiddlewareError(
            f"the middleware {self.name} {words}; {passage.kept}",
            middleware=self.name,
            stage=self.stage,
            key=passage.key,
        )


class PostStep(Step, frozen=True):
    """The user's function for results. Its faults are logged, because the result is safe."""

    def call(self, passage: Passage[Any]) -> Any:
        """Call the function."""
        return self.change(passage.value)

    def settle(self, passage: Passage[Any], changed: object) -> None:
        """Ignore what the function returned."""

    def fail(self, passage: Passage[Any], error: BaseException) -> None:
        """Log the exception that the function raised."""
        _log.error("post_process failed for %s", _named(passage), exc_info=error)

    def overrun(self, passage: Passage[Any], seconds: float) -> None:
        """Log that the function did not return in time."""
        _log.error(
            "post_process did not return within %g s for %s (post_process_timeout)",
            seconds,
            _named(passage),
        )


def _named(passage: Passage[Any]) -> str:
    result: ActorResult = passage.value
    key = f"the key {result.key!r}" if result.key is not None else f"position {result.position}"
    return f"the result of {passage.actor} with {key}, which is returned unchanged"


class Middlewares:
    """All middleware of a provider; false if there is none."""

    def __init__(
        self,
        middleware: Iterable[object],
        timeout: str | float = TIMEOUT,
        post_process: PostProcessor | None = None,
        post_process_timeout: str | float = TIMEOUT,
    ) -> None:
        """The timeouts are durations that limit each ``after_response`` and ``post_process``.

        Raises ``TypeError`` for a class, for an object with neither method, and for a method or
        function that takes other arguments; `ActorConfigurationError` for an invalid timeout.
        """
        self.timeout: float = read_timeout("middleware_timeout", timeout)
        self.post_timeout: float = read_timeout("post_process_timeout", post_process_timeout)
        self.post: list[Step] = []
        """The function that receives the results, if there is one."""
        if post_process is not None:
            if not callable(post_process):
                raise TypeError(f"post_process: {post_process!r} is not callable")
            check_takes("post_process", post_process, "result")
            self.post.append(
                PostStep("post_process", "after_response", post_process, is_async(post_process))
            )
        self.before: list[Step] = []
        """In the order in which they are called, as is `after`."""
        self.after: list[Step] = []
        if not isinstance(cast("object", middleware), Iterable):
            raise TypeError(f"middleware: {middleware!r} is not a list; give [{middleware!r}]")
        for each in middleware:
            if isinstance(each, type):
                raise TypeError(
                    f"middleware: {each!r} is a class; give an object of it: {each.__name__}()"
                )
            before: Any = getattr(each, "before_request", None)
            after: Any = getattr(each, "after_response", None)
            if not callable(before) and not callable(after):
                raise TypeError(
                    f"middleware: {each!r} has neither a method before_request nor after_response"
                )
            name = type(each).__name__
            if callable(before):
                check_takes("middleware", before, "actor", "request")
                self.before.append(Step(name, "before_request", before, is_async(before)))
            if callable(after):
                check_takes("middleware", after, "actor", "key", "response")
                self.after.insert(0, Step(name, "after_response", after, is_async(after)))

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self.post)
