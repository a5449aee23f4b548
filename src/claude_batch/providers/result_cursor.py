"""`ResultCursor`: the position of an iteration over a run's results, page by page."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from claude_batch.actor.response import ActorResult
from claude_batch.core.errors import BudgetExceededError, request_name
from claude_batch.ledger import queries
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.store import Ledger

PAGE = 500
"""Number of results per page."""


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
                answers = queries.answers_since(tx, [self._run_id], after=self._after, limit=PAGE)
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
        answers = queries.answers_by_position(self._ledger, self._run_id, start=self._position)
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
    own = BudgetExceededError(
        f"{request_name(answer.key, answer.position)} was not sent: {error}",
        scope=error.scope,
        budget_usd=error.budget_usd,
        needed_usd=error.needed_usd,
        run_id=error.run_id,
    )
    return ActorResult(key=answer.key, position=answer.position, error=own)
