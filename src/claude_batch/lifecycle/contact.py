"""A driver's contact with the API: whether it answers, and whose workspace the key belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable

from claude_batch.ledger import workspaces
from claude_batch.ledger.high_water import is_known, posts_of
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.lifecycle.driver_context import DriverContext, DriverPart
from claude_batch.wire.batches_client import (
    LIST_PATH,
    ApiError,
    BatchesClient,
    Unreachable,
    base_url_advice,
    unreachable_words,
)
from claude_batch.wire.retry_policy import CONTACT

_log = logging.getLogger(__name__)


def workspace_of(tx: Transaction, ledger: Ledger, client: BatchesClient) -> int:
    """Return the row of the workspace of a client's key; name it, if the API has answered."""
    fingerprint = ledger.fingerprint(client.credential)
    here = workspaces.ensure_workspace(tx, client.base_url, fingerprint, ledger.has_leader)
    if client.workspace is None:
        return here
    return workspaces.name_workspace(tx, here, fingerprint, client.workspace, ledger.has_leader)


class Contact(DriverPart):
    """Whether the API has answered this process, and the workspace of the process's key."""

    def __init__(self, context: DriverContext, changed: Callable[[], None]) -> None:
        """Set up; the ledger gets a row for the workspace of the client's key.

        ``changed`` is called after each possible change of the ledger.
        """
        super().__init__(context)
        self._changed = changed
        self._fingerprint = self._ledger.fingerprint(self._client.credential)
        with self._ledger.write() as tx:
            context.workspace_id = workspaces.ensure_workspace(
                tx, self._client.base_url, self._fingerprint, self._ledger.has_leader
            )
        self.made: bool = False
        """Whether the API answered with this process's key the last time."""
        self.was_made: bool = False
        """Whether it has ever answered this process."""
        self.failures: int = 0
        """How often it could not be reached."""
        self.last_failure: str = ""
        """The reason of the last failure; a sentence with the base URL."""
        self.refused: bool = False
        """Whether the API has refused this process's key, and has never accepted it."""
        self.may_only_list: bool = False
        """Whether it refused a batch with this key, which a list call proves nothing about."""
        self._refused_in_a_row = 0
        """How often it has refused this process's key in `make`."""
        self.misplaced: bool = False
        """Whether a server answered, and has no Messages API below the base URL."""

    async def make(self) -> float:
        """Find the workspace by a list call with this driver's own key.

        Returns 0, or the seconds until the next attempt.
        """
        if self.made:
            return 0.0
        try:
            await self._client.list_page(limit=1)
        except ApiError as error:
            if error.fault.status == 404 and not self.was_made:
                # The path exists in every workspace, so this server has another one, or none.
                self.misplaced = True
                address = self._client.base_url.rstrip("/")
                return self._failed(
                    f"{address} is not the Messages API: it answers {LIST_PATH} with 404; "
                    f"{base_url_advice(address)}"
                )
            if not error.fault.from_api:
                return self._failed(unreachable_words(self._client.base_url, str(error)))
            if error.fault.account_reason is not None:
                return self._halt(error)
            # The answer is from the API, and later calls will report the same error.
        except Unreachable as error:
            return self._failed(unreachable_words(self._client.base_url, error.reason))
        mark = self._high_water.read()
        with self._ledger.write() as tx:
            here = workspace_of(tx, self._ledger, self._client)
            if is_known(mark, self._ledger.incarnations, posts_of(tx)):
                workspaces.adopt_refused(tx, here)
            self.lift_halt_of_other_key(tx, here)
        # After the write: readers of these attributes apply the workspace's halt to this driver.
        self._context.workspace_id, self.made, self.was_made = here, True, True
        self.misplaced = self.refused = False
        self._refused_in_a_row = 0
        self._changed()
        return 0.0

    def lose(self, *, may_only_list: bool) -> None:
        """Note that the API refuses this key, although it has accepted it before."""
        self.made, self.may_only_list = False, may_only_list

    def lift_halt_of_other_key(self, tx: Transaction, workspace_id: int) -> None:
        """Lift a halt for a refused key, if the API accepts this driver's key as far as is known.

        The halt is then about another key of the workspace, or about a list call. If this key was
        refused for a batch, only a probe can lift the halt.
        """
        is_halted = workspaces.workspace_row(tx, workspace_id).halt_reason == "credentials"
        if is_halted and not self.may_only_list:
            workspaces.clear_halt(tx, workspace_id)

    def is_halted(self) -> bool:
        """Whether sending in the workspace is halted now."""
        with self._ledger.read() as tx:
            row = workspaces.workspace_row(tx, self.workspace_id)
        return workspaces.halt_stands(row, self._ledger.now())

    def row_to_drive(self, tx: Transaction) -> int:
        """Return the row of the key's workspace, with the leader lock of `workspace_id` held.

        It is another row than `workspace_id` if that one was merged since, or is merged now,
        because a process drove it when `make` learned its name.
        """
        here = workspaces.present_workspace(tx, self.workspace_id)
        name = self._client.workspace
        is_held = here == self.workspace_id
        if is_held and name is not None and workspaces.workspace_row(tx, here).name is None:
            here = workspaces.name_workspace(tx, here, self._fingerprint, name)
        return here

    def _halt(self, error: ApiError) -> float:
        """Halt because of a refused key; return the seconds until the next attempt."""
        self._refused_in_a_row += 1
        pause = CONTACT(self._refused_in_a_row)
        if self._ledger.has_leader(self.workspace_id):
            # Another process drives with a key that works, so the workspace is not halted.
            return pause
        with self._ledger.write() as tx:
            self.halt(tx, self.workspace_id, error.fault)
            row = workspaces.workspace_row(tx, self.workspace_id)
        self.refused = not self.was_made
        self.may_only_list = False
        self._changed()
        # A halt that only the user lifts has no probe.
        return max(pause, (row.next_probe or 0.0) - self._ledger.now())

    def _failed(self, reason: str) -> float:
        self.failures += 1
        self.last_failure = reason
        _log.warning("%s", reason)
        self._changed()
        return CONTACT(self.failures)
