"""The order of results: pages and outcomes of a run, and rejected requests in their places."""

from __future__ import annotations

import copy
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic

from claude_batch.actor.response import ActorResult, OutputT
from claude_batch.core.errors import BudgetExceededError, request_name
from claude_batch.core.states import RequestState
from claude_batch.ledger import queries
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.store import Ledger
from claude_batch.providers.mapping import billed_before, context_of

# Result cursor ------------------------------------------------------------------------------------

PAGE = 500
"""Number of results per page."""


class ResultGroup(Generic[OutputT]):
    """The results of a run with one outcome, in input order; read from the ledger each time."""

    def __init__(
        self,
        count: int,
        read_async: Callable[[], AsyncIterator[ActorResult[OutputT]]],
        read_sync: Callable[[], Iterator[ActorResult[OutputT]]],
    ) -> None:
        self._count = count
        self._read_async = read_async
        self._read_sync = read_sync

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ActorResult[OutputT]]:
        return self._read_sync()

    def __aiter__(self) -> AsyncIterator[ActorResult[OutputT]]:
        return self._read_async()

    def __repr__(self) -> str:
        return f"<{self._count} results>"


class Outcomes(Mapping[RequestState, ResultGroup[OutputT]]):
    """The results of a run by outcome. Looking up one that does not occur gives an empty group."""

    def __init__(self, groups: Mapping[RequestState, ResultGroup[OutputT]]) -> None:
        self._groups = groups

    def __getitem__(self, outcome: RequestState | str) -> ResultGroup[OutputT]:
        try:
            return self._groups[RequestState(outcome)]
        except (KeyError, ValueError):
            known = ", ".join(self._groups)
            raise KeyError(f"{outcome!r} is not an outcome; the outcomes are: {known}") from None

    def __contains__(self, outcome: object) -> bool:
        return any(outcome == each for each in self)

    def __iter__(self) -> Iterator[RequestState]:
        return (outcome for outcome, group in self._groups.items() if len(group))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ResultCursor:
    """Reads each result of a run once, in input order or in completion order."""

    def __init__(
        self,
        ledger: Ledger,
        run_id: str,
        total: int,
        result: Callable[[Answer], ActorResult],
        *,
        ordered: bool,
    ) -> None:
        """Start an iteration.

        ``total`` is the number of the run's requests; ``result`` converts one answer to a result.
        """
        self._ledger = ledger
        self._run_id = run_id
        self._total = total
        self._result = result
        self._ordered = ordered
        self._position = 0  # of the next result in order
        self._after = (0, 0)  # stamp and row number of the last one in completion order
        # In completion order: a byte per request that was yielded as held, and how many of those
        # have not ended since.
        self._given = bytearray()
        self._withheld = 0
        self._held_from = 0

    def read(self) -> tuple[list[ActorResult], int]:
        """Return the next available results; without any, also how many are still to come."""
        if self._ordered:
            page = self._in_order(None)
            return page, 0 if page else self._total - self._position
        while True:
            with self._ledger.read() as tx:
                answers = queries.answers_since(tx, self._run_id, after=self._after, limit=PAGE)
                left = 0 if answers else queries.unfinished(tx, self._run_id)
            if not answers:
                return [], max(0, left - self._withheld)
            self._after = (answers[-1].finished or 0, answers[-1].seq)
            if page := [self._result(answer) for answer in answers if not self._was_given(answer)]:
                return page, 0

    def read_held(self, error: BudgetExceededError) -> list[ActorResult]:
        """Return the next requests that a budget holds, as failed results; empty if none remain.

        In input order, the requests between them that have ended are included.
        """
        if self._ordered:
            return self._in_order(error)
        while True:
            with self._ledger.read() as tx:
                waiting = queries.waiting_by_position(
                    tx, self._run_id, start=self._held_from, limit=PAGE
                )
            if not waiting:
                self._held_from = 0
                return []
            self._held_from = waiting[-1].position + 1
            self._given = self._given or bytearray(self._total)
            page: list[ActorResult] = []
            for answer in waiting:
                if not self._given[answer.position]:
                    self._given[answer.position] = 1
                    self._withheld += 1
                    page.append(_held(answer, error))
            if page:
                return page

    def _in_order(self, held: BudgetExceededError | None) -> list[ActorResult]:
        page: list[ActorResult] = []
        answers = queries.answers_by_position(
            self._ledger, self._run_id, start=self._position, page_rows=PAGE
        )
        for answer in itertools.islice(answers, PAGE):
            if answer.state.is_final:
                page.append(self._result(answer))
            elif held is not None and answer.state in queries.WAITING:
                page.append(_held(answer, held))
            else:
                break
        self._position += len(page)
        return page

    def _was_given(self, answer: Answer) -> bool:
        """Return whether a request that has ended by now was yielded as held."""
        if not self._given or not self._given[answer.position]:
            return False
        self._given[answer.position] = 0
        self._withheld -= 1
        return True


def _held(answer: Answer, error: BudgetExceededError) -> ActorResult:
    name, before = request_name(answer.key, answer.position), answer.turns - 1
    unsent = f"{name} was not sent"
    if before:
        unsent = f"{name}: its next turn was not sent (the {billed_before(before)})"
    own = BudgetExceededError(
        f"{unsent}: {error}",
        scope=error.scope,
        budget_usd=error.budget_usd,
        needed_usd=error.needed_usd,
        run_id=error.run_id,
    )
    own.cost = answer.cost or None
    return ActorResult(
        key=answer.key, position=answer.position, error=own, context=context_of(answer)
    )


# Refused requests ---------------------------------------------------------------------------------


def at_input(result: ActorResult, refused: Sequence[int]) -> ActorResult:
    """Return a run's result at its input position; the run does not count refused requests.

    ``refused`` is `Beside.refused`. An error that names its position is adjusted too.
    """
    place, error = result.position + bisect_right(refused, result.position), result.error
    if place == result.position:
        return result
    if error is not None and result.key is None:
        run_name, name = (request_name(None, each) for each in (result.position, place))
        error = copy.copy(error)
        error.args = (str(error).replace(run_name, name, 1),)
    return replace(result, position=place, error=error)


def _before(
    result: ActorResult, left: deque[ActorResult], *, ordered: bool
) -> Iterator[ActorResult]:
    """Take the rejected requests that come before a result which has arrived."""
    while left and (not ordered or left[0].position < result.position):
        yield left.popleft()


async def merge(
    results: AsyncIterator[ActorResult] | None, refused: Sequence[ActorResult], *, ordered: bool
) -> AsyncIterator[ActorResult]:
    """Yield the results of a run, if any, and those of the rejected requests."""
    left = deque(refused)
    if results is not None:
        async for result in results:
            if left:
                for each in _before(result, left, ordered=ordered):
                    yield each
            yield result
    for each in left:
        yield each


def merge_sync(
    results: Iterator[ActorResult], refused: Sequence[ActorResult], *, ordered: bool
) -> Iterator[ActorResult]:
    """`merge` for a plain iterator."""
    left = deque(refused)
    for result in results:
        yield from _before(result, left, ordered=ordered)
        yield result
    yield from left
