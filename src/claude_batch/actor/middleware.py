"""Middleware: change a request before it is encoded, and a response before it is returned.

Each middleware is an object with one or both of the methods of `Middleware`. Requests pass in the
given order, responses in reverse order. An exception in one fails only that request. The providers
decide on which thread a method runs, and for how long.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeAlias, cast

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

TIMEOUT = 60.0
"""Default ``middleware_timeout``: seconds that ``after_response`` may take."""


class Passage(msgspec.Struct):
    """A request or a response on its way through middleware."""

    actor: str
    key: str | None
    value: ActorRequest | ActorResponse | ActorResult
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

    def call(self, passage: Passage) -> Any:
        """Call the method; an ``async def`` one returns an awaitable."""
        if self.stage == "before_request":
            return self.change(passage.actor, passage.value)
        return self.change(passage.actor, passage.key, passage.value)

    def settle(self, passage: Passage, changed: object) -> None:
        """Store what the method returned for a passage."""
        wanted = ActorRequest if self.stage == "before_request" else ActorResponse
        if not isinstance(changed, wanted):
            words = (
                f"returned {type(changed).__name__} from {self.stage} instead of {wanted.__name__}"
            )
            passage.error = self._error(words, passage)
            return
        context = passage.value.context
        if isinstance(changed, ActorRequest):
            if changed.key != passage.key:
                # The caller finds its answer by the key.
                changed = replace(changed, key=passage.key)
            if changed.context is None and context is not None:
                changed = replace(changed, context=context)
            passage.value = changed
        else:
            response = cast("ActorResponse", changed)
            keeps = context is None or response.context is not None
            passage.value = response if keeps else response.with_context(context)

    def fail(self, passage: Passage, error: BaseException) -> None:
        """Record the exception that the method raised."""
        words = f"failed in {self.stage}: {described(error)}"
        passage.error = self._error(words, passage)
        passage.error.__cause__ = error

    def overrun(self, passage: Passage, seconds: float) -> None:
        """Record that the method did not return in time."""
        words = f"did not return from {self.stage} within {seconds:g} s (middleware_timeout)"
        passage.error = self._error(words, passage)

    def _error(self, words: str, passage: Passage) -> MiddlewareError:
        return MiddlewareError(
            f"the middleware {self.name} {words}; {passage.kept}",
            middleware=self.name,
            stage=self.stage,
            key=passage.key,
        )


class PostStep(Step, frozen=True):
    """The user's function for results. Its faults are logged, because the result is safe."""

    def call(self, passage: Passage) -> Any:
        """Call the function."""
        return self.change(passage.value)

    def settle(self, passage: Passage, changed: object) -> None:
        """Ignore what the function returned."""

    def fail(self, passage: Passage, error: BaseException) -> None:
        """Log the exception that the function raised."""
        _log.error("post_process failed for %s", _named(passage), exc_info=error)

    def overrun(self, passage: Passage, seconds: float) -> None:
        """Log that the function did not return in time."""
        _log.error(
            "post_process did not return within %g s for %s (post_process_timeout)",
            seconds,
            _named(passage),
        )


def _named(passage: Passage) -> str:
    result = passage.value
    assert isinstance(result, ActorResult)
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
