"""Waiting callers: the future of each request, and its timeout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TypeVar

from claude_batch.core.errors import ActorError
from claude_batch.ledger import queries
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.store import Ledger

_T = TypeVar("_T")


def settle(future: Future[_T], outcome: _T | ActorError) -> bool:
    """Set a caller's result or error; return False if the caller has left."""
    # Without a check of `done()` before: callers on other threads may cancel at any moment.
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, ActorError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        return True
    return False


@dataclass(slots=True, eq=False)
class Waiter:
    """One caller that waits for one request."""

    future: Future[Answer]
    seq: int
    run_id: str
    workspace: object
    """The account; a halt of it ends the wait."""
    keeps: bool = False
    """Whether the request stays if the caller leaves before it is sent."""
    acknowledges: bool = False
    """Whether the caller itself acknowledges the answer."""
    timer: asyncio.TimerHandle = field(init=False, repr=False)


@dataclass(slots=True)
class _Cursor:
    after: tuple[int, int] = (0, 0)
    waiting: int = 0


@dataclass(slots=True)
class Waiting:
    """All waiters of an engine. Belongs to the engine's loop."""

    ledger: Ledger
    on_taken: Callable[[int], None]
    """Called with a request's row number when its answer has reached a caller."""
    on_let_go: Callable[[int], None]
    """Called with the row number when the last waiter is gone without an answer."""
    on_left: Callable[[int], None]
    """Called instead when the last caller has left and no caller wants the request kept."""
    _by_seq: dict[int, list[Waiter]] = field(default_factory=dict[int, list[Waiter]])
    _cursors: dict[str, _Cursor] = field(default_factory=dict[str, _Cursor])

    def add(
        self,
        waiter: Waiter,
        *,
        seconds: float,
        on_timeout: Callable[[Waiter], None],
    ) -> None:
        """Wait for a request, at most ``seconds``."""
        self._by_seq.setdefault(waiter.seq, []).append(waiter)
        self._cursors.setdefault(waiter.run_id, _Cursor()).waiting += 1
        loop = asyncio.get_running_loop()
        waiter.timer = loop.call_later(max(0.0, seconds), on_timeout, waiter)

    def deliver(self) -> None:
        """Deliver every new answer in the ledger to its waiters."""
        for run_id, cursor in list(self._cursors.items()):
            while cursor.waiting:
                with self.ledger.read() as tx:
                    answers = queries.answers_since(tx, [run_id], after=cursor.after)
                if not answers:
                    break
                for answer in answers:
                    assert answer.finished is not None
                    cursor.after = (answer.finished, answer.seq)
                    self._resolve(answer)

    def _resolve(self, answer: Answer) -> None:
        waiters = self._by_seq.pop(answer.seq, [])
        for waiter in waiters:
            self._release(waiter)
        told = [waiter for waiter in waiters if settle(waiter.future, answer)]
        if not all(waiter.acknowledges for waiter in told):
            self.on_taken(answer.seq)
        elif waiters and not told:
            self.on_let_go(answer.seq)

    def leave(self, waiter: Waiter) -> None:
        """Remove a caller that has left without an answer."""
        self._remove(waiter, self.on_let_go if waiter.keeps else self.on_left)

    def fail(self, waiters: Iterable[Waiter], error: Callable[[Waiter], ActorError]) -> None:
        """End waits with an error; the requests stay unchanged."""
        for waiter in list(waiters):
            # A caller that was cancelled just now has left by itself.
            if settle(waiter.future, error(waiter)):
                self._remove(waiter, self.on_let_go)
            else:
                self.leave(waiter)

    def _remove(self, waiter: Waiter, on_last: Callable[[int], None]) -> None:
        mine = self._by_seq.get(waiter.seq)
        if mine is None or waiter not in mine:
            return
        mine.remove(waiter)
        self._release(waiter)
        if not mine:
            del self._by_seq[waiter.seq]
            on_last(waiter.seq)
        elif waiter.keeps:
            # A later caller that leaves must not withdraw what this caller wanted to keep.
            for other in mine:
                other.keeps = True

    def of(self, workspace: object) -> list[Waiter]:
        """Return the waiters of one account."""
        return [w for waiters in self._by_seq.values() for w in waiters if w.workspace is workspace]

    def all(self) -> list[Waiter]:
        """Return every waiter."""
        return [waiter for waiters in self._by_seq.values() for waiter in waiters]

    def _release(self, waiter: Waiter) -> None:
        waiter.timer.cancel()
        self._cursors[waiter.run_id].waiting -= 1
