"""What a provider does with the ledger that it has open, whoever asked and whatever was asked."""

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

__all__ = ["Opened"]


class Opened(Closing):
    """Opens a ledger with the first use of it, drives it, looks into it and closes it."""

    def __init__(self, entrance: Entrance, *, drive: bool) -> None:
        self._entrance = entrance
        self._drive = drive

    @property
    def closed(self) -> bool:
        """True after `close`: it answers no more."""
        return self._entrance.closed

    @property
    def settings(self) -> LedgerSettings:
        """The settings of the ledger, as keywords and environment give them."""
        return self._entrance.settings

    # For this room only; both wait while the first use opens the ledger.

    @property
    def _engine(self) -> Engine:
        return self._entrance.engine()

    def _door(self) -> Door:
        return self._entrance.door()

    def opening(self) -> Future[Entered]:
        """Open the ledger, where it is not open yet, without blocking whoever asks."""
        return self._entrance.opening()

    def close(self) -> None:
        """Give the engine back. The last provider of a ledger parks what is not finished: batches
        go on at the API, and the next process collects them."""
        self._entrance.close()

    @property
    def contact(self) -> Contact:
        """Whether the API has answered this process yet, and what went wrong where it has not."""
        return self._door().driver.contact

    @property
    def drives(self) -> bool:
        """True where this process drives the ledger, or takes its seat as soon as it is free."""
        return self._drive and self._entrance.entered is not None

    @property
    def version(self) -> int:
        """Rises with every change of the ledger that this process has seen."""
        return self._engine.version

    @property
    def address(self) -> str:
        """The API's base URL in use."""
        return self._door().client.base_url

    def answers(self, run_id: str, *, start: int = 0) -> Iterator[Answer]:
        """A run's requests in order, as the ledger holds them, undecoded: for output files.

        ``start`` is the position of the first one.
        """
        return queries.answers_by_position(self._engine.ledger, run_id, start=start)

    def missing_tools(self, run_id: str) -> str | None:
        """Why nothing of a run goes on in this process: all that is open of it are conversations
        that wait for tools which this process does not have, or must not import. None otherwise.
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
        """The runs that are unfinished, or whose output is not written yet; oldest first."""
        with self._engine.ledger.read() as tx:
            return delivery.outstanding_runs(tx)

    def resume(self) -> None:
        """Drive the ledger, lifting a halt of this key's workspace."""
        self._door()
        self._engine.resume()

    def advance_sync(self) -> bool:
        """One pass over everything that is due; False where another process drives."""
        return self._engine.advance(self._door()).result()

    def prune(
        self, *, older_than: str | float = "30d", runs: Sequence[str] = (), dry_run: bool = False
    ) -> Pruned:
        """Remove runs that were delivered so long ago from the ledger, or just ``runs`` by id.

        Uploaded documents that no other run names are deleted at the API. What is unfinished,
        undelivered or unknown stays; what is removed is asked, and paid for, anew when it is asked
        again. Waits. Raises `RunNotFoundError`, and `InvalidRequestError` for one of ``runs`` that
        must stay, with nothing removed.
        """
        seconds = parse_duration(older_than)
        return prune(self._engine, self._door, older_than=seconds, run_ids=runs, dry_run=dry_run)
