"""Transactions of submission: from the intent to POST a batch to the outcome of the POST."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Connection, bindparam, case, exists, insert, select, update

from claude_batch.core.errors import LedgerError
from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import charges, transitions
from claude_batch.ledger.batch_contents import batch, part_off, recount
from claude_batch.ledger.portable_sql import of_workspace, update_row
from claude_batch.ledger.schema import batches, lanes, params, requests, results, workspaces
from claude_batch.ledger.store import Deposed, Ledger, Record, plain_rows

EPOCH_STEP = 1 << 31
"""Least rise of an epoch: 63 bits have room for more than a billion drivers."""

INTERRUPTED = "the sending process ended before the API's answer"

_IS_BEHIND = exists().where(
    lanes.c.id == batches.c.lane_id,
    workspaces.c.id == lanes.c.workspace_id,
    workspaces.c.behind.is_not(None),
)
"""Condition of a workspace behind its high-water mark; it stops every intent, whatever the driver
does.
"""


def begin_epoch(tx: Connection, workspace_id: int) -> int:
    """Raise the epoch of a workspace for a new driver; return the new epoch.

    Its last digits are random. A server that took the place of another may have forgotten the last
    commits, and would give an epoch again that counts only upwards.
    """
    rise = EPOCH_STEP + secrets.randbelow(EPOCH_STEP)
    return tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(epoch=workspaces.c.epoch + rise)
        .returning(workspaces.c.epoch)
    ).scalar_one()


def intend(
    tx: Connection, batch_id: int, *, snapshot: Sequence[str], server_time: float, now: float
) -> int:
    """Store the intent to POST; return the number of this sending of the batch."""
    posts: int | None = tx.scalar(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == BatchState.PACKED, ~_IS_BEHIND)
        .values(
            state=BatchState.SUBMITTING,
            posts=batches.c.posts + 1,
            snapshot=json.dumps(list(snapshot)),
            server_time=server_time,
            intended=now,
            armed=None,
        )
        .returning(batches.c.posts)
    )
    if posts is None:
        raise LedgerError(
            f"the ledger's batch {batch_id} may not be sent, because the ledger is behind its "
            "high-water mark. Recover it with: `claude-batch ledger recover`"
        )
    return posts


def mark_armed(tx: Connection, batch_id: int, posts: int, now: float) -> None:
    """Mark a sending of a batch as armed: from here on the API may accept it.

    ``posts`` is its number, as `intend` returned it. Raises `Deposed` if that sending is not under
    way any more.
    """
    armed = tx.execute(
        update(batches)
        .where(
            batches.c.id == batch_id,
            batches.c.state == BatchState.SUBMITTING,
            batches.c.posts == posts,
        )
        .values(armed=now)
    )
    if not armed.rowcount:
        raise Deposed


def mark_submitted(
    tx: Connection, batch_id: int, remote_id: str, *, now: float, next_check: float
) -> bool:
    """Record the id under which the API accepted a batch.

    Returns False, and changes nothing, if another batch of the workspace has that id already. If
    the batch has it, an earlier try was stored, and the batch may have been collected since. If the
    batch has another id, another process has sent it: raises `Deposed`.
    """
    mine = batch(tx, batch_id)
    others = select(batches.c.id).where(
        batches.c.remote_id == remote_id,
        batches.c.id != batch_id,
        of_workspace(batches.c.lane_id, mine.workspace_id),
    )
    if tx.scalar(others.limit(1)) is not None:
        return False
    stored = tx.execute(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.remote_id.is_(None))
        .values(
            state=BatchState.IN_PROGRESS,
            remote_id=remote_id,
            # It served to find an unknown sending. With the ids of a thousand batches in each row,
            # every later read and write of the rows would move them all.
            snapshot=None,
            submitted=now,
            # A batch that was cancelled meanwhile is due at once.
            next_check=case((batches.c.cancel_requested.is_not(None), now), else_=next_check),
            broken_uploads=0,
            note=None,
        )
    )
    if not stored.rowcount and mine.remote_id != remote_id:
        raise Deposed
    return True


def mark_definite_no(
    tx: Connection, batch_id: int, *, note: str, broken_upload: bool = False
) -> int:
    """Record that the API certainly did not accept the batch, so that it can be sent again.

    Returns how many uploads in a row broke before they were armed.
    """
    broken: int = tx.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(
            state=BatchState.PACKED,
            armed=None,
            note=note,
            broken_uploads=(batches.c.broken_uploads + 1) if broken_upload else 0,
        )
        .returning(batches.c.broken_uploads)
    ).scalar_one()
    if transitions.reserve_anew(tx, batch_id):
        charges.reserve(tx, batch_id)
    return broken


def mark_unknown(tx: Connection, batch_id: int, *, note: str, now: float) -> None:
    """Record that the API may have accepted the batch.

    The batch is not sent again until that is disproved.
    """
    update_row(
        tx,
        batches,
        batch_id,
        state=BatchState.UNKNOWN,
        note=note,
        unknown_since=now,
        settling_from=None,
        settled=None,
        next_check=now,
    )


def sending_workspaces(tx: Connection) -> list[int]:
    """Return the workspaces in which a POST is under way, or was when its process ended."""
    return list(
        tx.scalars(
            select(lanes.c.workspace_id)
            .join(batches, batches.c.lane_id == lanes.c.id)
            .where(batches.c.state == BatchState.SUBMITTING)
            .distinct()
        )
    )


def settle_interrupted(
    tx: Connection, workspace_id: int, *, now: float, note: str = INTERRUPTED
) -> list[Record]:
    """Settle the POSTs that the last driver left: never completed, or of unknown outcome.

    A POST that was not armed never sent its tail. Call this only with the leader lock held, or if
    nobody holds it and the epoch rises in this transaction. Returns the unknown batches: id, armed,
    request_count.
    """
    rows = tx.execute(
        select(batches.c.id, batches.c.armed, batches.c.request_count).where(
            batches.c.state == BatchState.SUBMITTING, of_workspace(batches.c.lane_id, workspace_id)
        )
    ).all()
    for row in rows:
        if row.armed is None:
            mark_definite_no(tx, row.id, note=note)
        else:
            mark_unknown(tx, row.id, note=note, now=now)
    return [row for row in rows if row.armed is not None]


def fail_packed(
    tx: Connection, batch_id: int, lines: Mapping[int, bytes], *, error_type: str, now: float
) -> None:
    """End requests of a batch that was not accepted as errored, and remove them from the batch.

    ``lines`` has their result lines by row number.
    """
    # They must not count towards the completeness of the other requests' batch.
    batch_id = part_off(tx, batch_id, list(lines), now)
    sendings = transitions.reject(tx, list(lines), posts=batch(tx, batch_id).posts)
    tx.execute(
        insert(results),
        [
            {
                "request_seq": seq,
                "sending": sendings[seq],
                "batch_id": batch_id,
                "outcome": RequestState.ERRORED,
                "disposition": "final",
                "error_type": error_type,
                "raw": raw,
            }
            for seq, raw in lines.items()
        ],
    )
    recount(tx, batch_id)


def members(tx: Connection, batch_id: int, first: int, most: int) -> Sequence[Record]:
    """Return requests of a batch from a 0-based index of its body on, at most ``most``.

    Each has ``seq``, ``id`` and ``sendings``.
    """
    return tx.execute(
        select(requests.c.seq, requests.c.id, requests.c.sendings)
        .where(requests.c.batch_id == batch_id)
        .order_by(requests.c.seq)
        .offset(first)
        .limit(most)
    ).all()


_BODY = (
    select(requests.c.seq, requests.c.id, requests.c.sendings, params.c.body)
    .join(params, params.c.request_seq == requests.c.seq)
    .where(requests.c.batch_id == bindparam("batch"), requests.c.seq > bindparam("after"))
    .order_by(requests.c.seq)
)


_PAGE_BYTES = 1 << 20


def body_pages(ledger: Ledger, batch_id: int) -> Iterator[list[tuple[str, int, bytes]]]:
    """Yield the requests of a batch as pages of ``(id, sendings, params)``, in body order.

    Each page holds about `_PAGE_BYTES` and is read in a separate short transaction.
    """
    after = 0
    while True:
        page: list[tuple[str, int, bytes]] = []
        size = 0
        with ledger.read() as tx:
            # The rows are lazy, so rows beyond the page are not read.
            rows = plain_rows(tx, _BODY, {"batch": batch_id, "after": after})
            for seq, identifier, sendings, body in rows:
                page.append((identifier, sendings, body))
                size += len(body)
                after = seq
                if size >= _PAGE_BYTES:
                    break
            rows.close()
        if not page:
            return
        yield page
