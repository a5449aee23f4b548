"""The API's list of batches, read as far back as the caller needs."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from claude_batch.ledger import halts
from claude_batch.ledger.store import Ledger
from claude_batch.wire.batches_client import BatchesClient, RemoteBatch, Unreachable

_log = logging.getLogger(__name__)

MOST_PAGES = 1000
"""Most pages of one walk: a million batches. A longer list is treated as endless."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A completed walk of the list."""

    batches: dict[str, RemoteBatch]
    """Batches by id, newest first; includes some that are older than requested."""
    server_time: float
    """Server's time when the newest page was read."""
    workspace: str | None
    """Name of the workspace that answered, if the API reports it."""
    unreadable: int = 0
    """Number of entries that do not match the API's documentation; each may be any batch."""

    @property
    def ids(self) -> list[str]:
        """Ids of all batches seen."""
        return list(self.batches)


def is_evidence(ledger: Ledger, workspace_id: int, workspace: str | None) -> bool:
    """Return whether a workspace's list is evidence on ours: it is not another workspace's list."""
    with ledger.read() as tx:
        name: str | None = halts.halt_of(tx, workspace_id).name
    if name is None or workspace is None or name == workspace:
        return True
    _log.warning("the list is of the workspace %s, not of %s", workspace, name)
    return False


async def walk(
    client: BatchesClient,
    *,
    since: float | None = None,
    lookback: float = 0.0,
    wanted: Collection[str] = (),
) -> Listing:
    """Read the list from the newest batch back to batches created before ``since``.

    ``since`` is server time; without it, the walk goes back ``lookback`` seconds from now. The walk
    searches for batches in ``wanted`` until the list ends. Raises `ApiError` or `Unreachable`,
    because an incomplete walk is no evidence.
    """
    seen: dict[str, RemoteBatch] = {}
    missing = set(wanted)
    unreadable = 0
    page = await client.list_page()
    server_time = client.server_now()
    bound = server_time - lookback if since is None else since
    for _ in range(MOST_PAGES):
        before = len(seen)
        seen |= {batch.id: batch for batch in page.data}
        unreadable += page.unreadable
        missing -= seen.keys()
        dated = [created for batch in page.data if (created := batch.created) is not None]
        reached = bool(dated) and min(dated) < bound
        if (reached and not missing) or not page.has_more or page.last_id is None:
            return Listing(seen, server_time, client.workspace, unreadable)
        if len(seen) == before:
            break
        page = await client.list_page(after_id=page.last_id)
    raise Unreachable("the list of batches repeats itself, or does not end")
