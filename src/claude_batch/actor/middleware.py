"""Middleware: what may change a request before it is encoded, and a response before it is given.

Each is an object with one or both of the methods of `Middleware`. On the way in they are called in
the order in which they were given, on the way back in the reverse; a fault in one fails that
request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, cast

from claude_batch.actor.request import ActorRequest
from claude_batch.actor.response import ActorResponse
from claude_batch.core.errors import MiddlewareError

__all__ = ["Middleware", "Middlewares"]


class Middleware:
    """A middleware that changes nothing: a base to derive from, which nobody is obliged to.

    Both methods are plain functions, not coroutines. They may be called on several threads at
    once: on the one that asks and the one that takes the answer; a slow one holds up its caller
    and nobody else. Results that another process reads pass through the middleware of that process.
    """

    def before_request(self, actor: str, request: ActorRequest, /) -> ActorRequest:
        """The request to encode in place of this one, which may be the same.

        ``actor`` is the actor's name. The key stays the caller's, whatever comes back. What comes
        back is what the identity of a run is made of: middleware that adds the time of day makes
        each run a new one. Whatever is raised fails this request with a `MiddlewareError`, and
        nothing is sent for it.
        """
        return request

    def after_response(
        self, actor: str, key: str | None, response: ActorResponse, /
    ) -> ActorResponse:
        """The response to hand over in place of this one, which may be the same.

        ``key`` is the request's, where it has one. It is called each time that an answer is given:
        the ledger keeps what the API said. Whatever is raised fails this request with a
        `MiddlewareError`; the answer stays in the ledger.
        """
        return response


class Middlewares:
    """All middleware of a provider; false where there is none."""

    def __init__(self, middleware: Iterable[object]) -> None:
        """Raises ``TypeError`` for an object with neither method."""
        self._before: list[tuple[str, Callable[..., Any]]] = []
        self._after: list[tuple[str, Callable[..., Any]]] = []
        for each in middleware:
            before: Any = getattr(each, "before_request", None)
            after: Any = getattr(each, "after_response", None)
            if not callable(before) and not callable(after):
                raise TypeError(
                    f"middleware: {each!r} has neither a method before_request nor after_response"
                )
            name = type(each).__name__
            if callable(before):
                self._before.append((name, before))
            if callable(after):
                self._after.insert(0, (name, after))

    def __bool__(self) -> bool:
        return bool(self._before or self._after)

    def before(self, actor: str, request: ActorRequest) -> ActorRequest:
        """The request to encode. Raises `MiddlewareError`."""
        for name, change in self._before:
            try:
                changed: object = change(actor, request)
            except Exception as error:
                raise _failed(name, "before_request", request.key, error) from error
            if not isinstance(changed, ActorRequest):
                raise _misshapen(name, "before_request", request.key, changed)
            # The caller finds its answer by the key.
            request = changed if changed.key == request.key else replace(changed, key=request.key)
        return request

    def after(self, actor: str, key: str | None, response: ActorResponse) -> ActorResponse:
        """The response to hand over. Raises `MiddlewareError`."""
        for name, change in self._after:
            try:
                changed: object = change(actor, key, response)
            except Exception as error:
                raise _failed(name, "after_response", key, error) from error
            if not isinstance(changed, ActorResponse):
                raise _misshapen(name, "after_response", key, changed)
            response = cast("ActorResponse", changed)
        return response


_Stage = Literal["before_request", "after_response"]

_KEPT: dict[_Stage, str] = {
    "before_request": "nothing was sent for it",
    "after_response": "the answer is kept in the ledger, and a live one is lost",
}


def _failed(name: str, stage: _Stage, key: str | None, error: Exception) -> MiddlewareError:
    words = f"the middleware {name} failed in {stage}: {type(error).__name__}: {error}"
    return MiddlewareError(f"{words}; {_KEPT[stage]}", middleware=name, stage=stage, key=key)


def _misshapen(name: str, stage: _Stage, key: str | None, value: object) -> MiddlewareError:
    wanted = "an ActorRequest" if stage == "before_request" else "an ActorResponse"
    words = f"the middleware {name} gave {type(value).__name__} in {stage}, not {wanted}"
    return MiddlewareError(f"{words}; {_KEPT[stage]}", middleware=name, stage=stage, key=key)
