"""Ledger operations that every provider with an open ledger has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from claude_batch.core.durations import parse_duration
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger import conversations, delivery, queries
from claude_batch.ledger.delivery import Outstanding
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.doors import Door
from claude_batch.lifecycle.driver import Contact
from claude_batch.lifecycle.engine import Engine
from claude_batch.providers.closable import Closing
from claude_batch.providers.entrance import Entered, Entrance
from claude_batch.providers.prune import Pruned, prune


class Opened(Closing):
    """Opens a ledger on first use, drives it, inspects it and closes it."""

    def __init__(self, entrance: Entrance, *, drive: bool) -> None:
        self._entrance = entrance
        self._drive = drive

    @property
    def closed(self) -> bool:
        """Return True after `close`; the provider then rejects all calls."""
        return self._entrance.closed

    @property
    def settings(self) -> LedgerSettings:
        """Return the ledger settings from keywords and environment."""
        return self._entrance.settings

    # For this package only; both wait while the first use opens the ledger.

    @property
    def _engine(self) -> Engine:
        return self._entrance.engine()

    def _door(self) -> Door:
        return self._entrance.door()

    def opening(self) -> Future[Entered]:
        """Open the ledger if it is not open yet, without blocking the caller."""
        return self._entrance.opening()

    def close(self) -> None:
        """Release the engine.

        The last provider of a ledger parks unfinished runs: batches continue at the API, and the
        next process collects them.
        """
        self._entrance.close()

    @property
    def contact(self) -> Contact:
        """Return whether the API has answered this process yet, and if not, what went wrong."""
        return self._door().driver.contact

    @property
    def drives(self) -> bool:
        """Return True if this process is the driver, or becomes it once the leader lock is free."""
        return self._drive and self._entrance.entered is not None

    @property
    def version(self) -> int:
        """Return a number that increases with every ledger change that this process has seen."""
        return self._engine.version

    @property
    def address(self) -> str:
        """Return the API base URL in use."""
        return self._door().client.base_url

    def answers(self, run_id: str, *, start: int = 0) -> Iterator[Answer]:
        """Yield a run's requests in order, undecoded as in the ledger, for output files.

        ``start`` is the position of the first request.
        """
        return queries.answers_by_position(self._engine.ledger, run_id, start=start)

    def missing_tools(self, run_id: str) -> str | None:
        """Return why a run makes no progress in this process, or None if it can.

        The reason is that all its unfinished requests are conversations that wait for tools which
        this process does not have, or must not import.
        """
        why = self._engine.workbench.why_not(run_id)
        if why is None:
            return None
        with self._engine.ledger.read() as tx:
            counts = queries.request_counts(tx, run_id)
            waiting = conversations.continuing_counts(tx, run_id)[1]
        left = sum(count for state, count in counts.items() if not state.is_final)
        return why if left == waiting else None

    def outstanding(self) -> list[Outstanding]:
        """Return the runs that are unfinished or whose output is not written yet, oldest first."""
        with self._engine.ledger.read() as tx:
            return delivery.outstanding_runs(tx)

    def resume(self) -> None:
        """Drive the ledger, and lift a halt of this key's workspace."""
        self._door()
        self._engine.resume()

    def advance_sync(self) -> bool:
        """Run one pass over everything that is due; return False if another process drives."""
        return self._engine.advance(self._door()).result()

    def prune(
        self, *, older_than: str | float = "30d", runs: Sequence[str] = (), dry_run: bool = False
    ) -> Pruned:
        """Remove runs from the ledger that were delivered that long ago, or only ``runs`` by id.

        Uploaded documents that no other run uses are deleted at the API. Unfinished, undelivered
        and unknown requests stay. A removed request is sent, and paid for, again if it is submitted
        again. Blocks. Raises `RunNotFoundError`, and `InvalidRequestError` for one of ``runs`` that
        must stay; then nothing is removed.
        """
        seconds = parse_duration(older_than)
        return prune(self._engine, self._door, older_than=seconds, run_ids=runs, dry_run=dry_run)
