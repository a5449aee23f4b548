"""The API's list of batches, and proof that a batch belongs to this ledger."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from claude_batch.ledger import unknown_batches, workspaces
from claude_batch.ledger.store import Ledger
from claude_batch.wire.batches_client import ApiError, BatchesClient, RemoteBatch, Unreachable
from claude_batch.wire.encoding import parse_custom_id
from claude_batch.wire.messages import UnreadableLine, decode_line

# Proof of ownership -------------------------------------------------------------------------------

FOREIGN_LINES = 1000
"""Number of foreign lines after which a batch counts as foreign without further reading."""


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield lists of whole lines, without their ends; the last line needs no newline."""
    pending: list[bytes] = []
    async for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            pending.append(chunk)
            continue
        pending.append(head)
        lines = [line for line in b"".join(pending).split(b"\n") if line.strip()]
        pending = [tail] if tail else []
        if lines:
            yield lines
    rest = b"".join(pending)
    if rest.strip():
        yield [rest]


@dataclass(frozen=True, slots=True)
class Proof:
    """Evidence from an ended batch's results: its owner, or why it is not known yet."""

    owner: int | None = None
    """Id of the ledger's batch whose sending it is."""
    foreign: bool = False
    missing: bool = False
    """Whether the API answered with 404."""
    fetched: bool = False
    """Whether the results were read to their end without evidence."""
    note: str | None = None


async def prove(ledger: Ledger, client: BatchesClient, remote_id: str) -> Proof:
    """Read an ended batch's results until one of our ``custom_id``s proves that it is ours.

    A foreign line proves less: one that strayed into our results must not make us pay for them
    again. So a batch is foreign only if its results end, or continue for long, without one of ours.
    Nothing is stored, because the lines may belong to somebody else.
    """
    foreign: Proof | None = None
    count = 0
    try:
        async with client.results(remote_id) as chunks:
            async for lines in split_lines(chunks):
                for raw in lines:
                    count += 1
                    if count > FOREIGN_LINES:
                        return foreign or Proof(note=f"{FOREIGN_LINES} results are unreadable")
                    try:
                        line = decode_line(raw)
                    except UnreadableLine:
                        continue
                    proof = _owner(ledger, line.custom_id)
                    if proof.owner is not None:
                        return proof
                    foreign = foreign or proof
    except ApiError as error:
        return Proof(missing=error.fault.status == 404, note=str(error))
    except Unreachable as error:
        return Proof(note=error.reason)
    return foreign or Proof(fetched=True, note="its results hold no readable custom_id")


def _owner(ledger: Ledger, identifier: str) -> Proof:
    parts = parse_custom_id(identifier)
    if parts is None or parts[1] not in ledger.incarnations:
        return Proof(foreign=True, note="its results belong to another client")
    with ledger.read() as tx:
        owner = unknown_batches.owner_of(tx, parts[0], parts[2])
    if owner is None:
        return Proof(foreign=True, note="its results belong to a sending that was given up")
    return Proof(owner=owner)


# Batch list ---------------------------------------------------------------------------------------

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
        name: str | None = workspaces.workspace_row(tx, workspace_id).name
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
