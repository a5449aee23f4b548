"""Transactions of packing and submission: from queued requests to a batch the API has taken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    lanes,
    params,
    requests,
    results,
    runs,
    workspaces,
)
from claude_batch.ledger.store import Ledger, Record, next_stamp, plain_rows

__all__ = [
    "batch",
    "body_pages",
    "clear_halt",
    "due_lanes",
    "fail_packed",
    "halt",
    "halt_of",
    "intend",
    "mark_armed",
    "mark_definite_no",
    "mark_submitted",
    "mark_unknown",
    "next_packed",
    "pack",
    "queue_totals",
    "queued_of_lane",
    "split",
    "take_seat",
    "wait_until",
    "withdraw_cancelled",
]

_QUEUED = requests.c.state == RequestState.QUEUED
_ELIGIBLE = (_QUEUED, runs.c.stored.is_not(None))


def take_seat(tx: Connection, workspace_id: int) -> int:
    """Raise the epoch of a workspace for a new driver; returns the new epoch."""
    tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(epoch=workspaces.c.epoch + 1)
    )
    return tx.execute(
        select(workspaces.c.epoch).where(workspaces.c.id == workspace_id)
    ).scalar_one()


def due_lanes(tx: Connection, workspace_id: int) -> list[tuple[int, float]]:
    """Lanes with queued requests, each with the earliest time that one asks to be packed at."""
    rows = tx.execute(
        select(requests.c.lane_id, func.min(requests.c.due))
        .join(runs, runs.c.id == requests.c.run_id)
        .join(lanes, lanes.c.id == requests.c.lane_id)
        .where(*_ELIGIBLE, lanes.c.workspace_id == workspace_id)
        .group_by(requests.c.lane_id)
    )
    return [(int(lane), float(due)) for lane, due in rows]


_QUEUED_OF_LANE = (
    select(requests.c.seq, requests.c.size, requests.c.run_id)
    .join(runs, runs.c.id == requests.c.run_id)
    .where(*_ELIGIBLE, requests.c.lane_id == bindparam("lane"))
    .order_by(requests.c.seq)
)


def queued_of_lane(tx: Connection, lane_id: int) -> Iterator[tuple[int, int, str]]:
    """Queued requests of a lane in the order they came: row number, size and run id."""
    yield from plain_rows(tx, _QUEUED_OF_LANE, {"lane": lane_id})


def queue_totals(tx: Connection, lane_id: int) -> tuple[int, int, int]:
    """Of a lane's queued requests: their number, the bytes of their params, the last row number."""
    count, size, last = tx.execute(
        select(
            func.count(),
            func.coalesce(func.sum(requests.c.size), 0),
            func.coalesce(func.max(requests.c.seq), 0),
        )
        .select_from(requests)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(*_ELIGIBLE, requests.c.lane_id == lane_id)
    ).one()
    return count, size, last


def policies(tx: Connection, lane_id: int) -> dict[str, Record]:
    """The runs that have queued requests in a lane, with their policies, by run id."""
    queued = exists().where(requests.c.run_id == runs.c.id, _QUEUED, requests.c.lane_id == lane_id)
    rows = tx.execute(select(runs).where(runs.c.stored.is_not(None), queued))
    return {row.id: row for row in rows}


def pack(
    tx: Connection,
    lane_id: int,
    *,
    last_seq: int,
    count: int,
    params_bytes: int,
    poll_interval: float,
    max_poll_interval: float,
    now: float,
) -> int:
    """Bind a lane's queued requests up to ``last_seq`` to a new batch; returns its id."""
    batch_id = _insert_batch(
        tx, lane_id, count, params_bytes, poll_interval, max_poll_interval, now
    )
    eligible_runs = select(runs.c.id).where(runs.c.stored.is_not(None))
    tx.execute(
        update(requests)
        .where(
            _QUEUED,
            requests.c.lane_id == lane_id,
            requests.c.seq <= last_seq,
            requests.c.run_id.in_(eligible_runs),
        )
        .values(state=RequestState.PACKED, batch_id=batch_id)
    )
    _note_runs(tx, batch_id)
    return batch_id


def _insert_batch(
    tx: Connection,
    lane_id: int,
    count: int,
    params_bytes: int,
    poll_interval: float,
    max_poll_interval: float,
    now: float,
) -> int:
    result = tx.execute(
        insert(batches).values(
            lane_id=lane_id,
            state=BatchState.PACKED,
            request_count=count,
            params_bytes=params_bytes,
            poll_interval=poll_interval,
            max_poll_interval=max_poll_interval,
            created=now,
        )
    )
    key: Any = result.inserted_primary_key
    return int(key[0])


def _note_runs(tx: Connection, batch_id: int) -> None:
    tx.execute(delete(batch_runs).where(batch_runs.c.batch_id == batch_id))
    tx.execute(
        insert(batch_runs).from_select(
            ["batch_id", "run_id"],
            select(requests.c.batch_id, requests.c.run_id)
            .where(requests.c.batch_id == batch_id)
            .distinct(),
        )
    )


def batch(tx: Connection, batch_id: int) -> Record:
    """One batch with its lane's headers and workspace."""
    return tx.execute(
        select(
            batches, lanes.c.workspace_id, lanes.c.api_version, lanes.c.betas, lanes.c.user_profile
        )
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(batches.c.id == batch_id)
    ).one()


def next_packed(tx: Connection, workspace_id: int) -> int | None:
    """The oldest batch of a workspace that waits to be sent; None where none does."""
    return tx.scalar(
        select(batches.c.id)
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(batches.c.state == BatchState.PACKED, lanes.c.workspace_id == workspace_id)
        .order_by(batches.c.id)
        .limit(1)
    )


def withdraw_cancelled(tx: Connection, batch_id: int) -> bool:
    """Take cancelled requests out of a batch that was not sent; False where none is left.

    Its count and bytes are counted again.
    """
    mine = requests.c.batch_id == batch_id
    cancelled = select(runs.c.id).where(runs.c.cancelled.is_not(None))
    gone = tx.execute(
        update(requests)
        .where(
            mine,
            requests.c.state == RequestState.PACKED,
            requests.c.cancelled | requests.c.run_id.in_(cancelled),
        )
        .values(state=RequestState.CANCELED, batch_id=None, finished=next_stamp(tx))
    )
    if not gone.rowcount:
        return True
    return _recount(tx, batch_id)


def _recount(tx: Connection, batch_id: int) -> bool:
    count, size = tx.execute(
        select(func.count(), func.coalesce(func.sum(requests.c.size), 0)).where(
            requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED
        )
    ).one()
    values: dict[str, Any] = {"request_count": count, "params_bytes": size}
    if not count:
        values["state"] = BatchState.REJECTED
    tx.execute(update(batches).where(batches.c.id == batch_id).values(**values))
    _note_runs(tx, batch_id)
    return bool(count)


def intend(
    tx: Connection, batch_id: int, *, snapshot: Sequence[str], server_time: float, now: float
) -> int:
    """Put the intent to POST on disk; returns the number of this sending of the batch."""
    posts: int = tx.execute(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == BatchState.PACKED)
        .values(
            state=BatchState.SUBMITTING,
            posts=batches.c.posts + 1,
            snapshot=json.dumps(list(snapshot)),
            server_time=server_time,
            intended=now,
            armed=None,
        )
        .returning(batches.c.posts)
    ).scalar_one()
    return posts


def mark_armed(tx: Connection, batch_id: int, now: float) -> None:
    """From here on the POST may be accepted."""
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == BatchState.SUBMITTING)
        .values(armed=now)
    )


def mark_submitted(
    tx: Connection, batch_id: int, remote_id: str, *, now: float, next_check: float
) -> None:
    """The API took the batch and gave it an id."""
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(
            state=BatchState.IN_PROGRESS,
            remote_id=remote_id,
            submitted=now,
            next_check=next_check,
            broken_uploads=0,
            note=None,
        )
    )


def mark_definite_no(
    tx: Connection, batch_id: int, *, note: str, broken_upload: bool = False
) -> int:
    """The API has not taken the batch, for sure: it can be sent again.

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
    return broken


def mark_unknown(tx: Connection, batch_id: int, *, note: str) -> None:
    """The API may have taken the batch: it is not sent again."""
    tx.execute(
        update(batches).where(batches.c.id == batch_id).values(state=BatchState.UNKNOWN, note=note)
    )


def interrupted(tx: Connection, workspace_id: int) -> list[Record]:
    """Batches whose POST was under way when their driver ended: ``id`` and ``armed``."""
    return list(
        tx.execute(
            select(batches.c.id, batches.c.armed)
            .join(lanes, lanes.c.id == batches.c.lane_id)
            .where(batches.c.state == BatchState.SUBMITTING, lanes.c.workspace_id == workspace_id)
        )
    )


def split(tx: Connection, batch_id: int, now: float) -> tuple[int, int] | None:
    """Part a batch that is too large into two halves by bytes; None for a single request."""
    old = batch(tx, batch_id)
    rows = tx.execute(
        select(requests.c.seq, requests.c.size)
        .where(requests.c.batch_id == batch_id)
        .order_by(requests.c.seq)
    ).all()
    if len(rows) < 2:
        return None
    total, cut, first_bytes = old.params_bytes, 0, 0
    while cut < len(rows) - 1 and (cut == 0 or first_bytes + rows[cut].size <= total / 2):
        first_bytes += rows[cut].size
        cut += 1
    halves: list[int] = []
    for part, size in ((rows[:cut], first_bytes), (rows[cut:], total - first_bytes)):
        half = _insert_batch(
            tx,
            old.lane_id,
            len(part),
            size,
            old.poll_interval,
            old.max_poll_interval,
            now,
        )
        tx.execute(
            update(requests)
            .where(
                requests.c.batch_id == batch_id,
                requests.c.seq >= part[0].seq,
                requests.c.seq <= part[-1].seq,
            )
            .values(batch_id=half, sendings=requests.c.sendings + old.posts)
        )
        _note_runs(tx, half)
        halves.append(half)
    tx.execute(update(batches).where(batches.c.id == batch_id).values(state=BatchState.REJECTED))
    _note_runs(tx, batch_id)
    return halves[0], halves[1]


def fail_packed(tx: Connection, batch_id: int, seq: int, *, raw: bytes, error_type: str) -> None:
    """End one request of a batch that was not taken as errored, and take it out of the batch."""
    posts = batch(tx, batch_id).posts
    sending: int = tx.execute(
        update(requests)
        .where(requests.c.seq == seq)
        .values(
            state=RequestState.ERRORED,
            attempts=requests.c.attempts + 1,
            sendings=requests.c.sendings + posts,
            answered_by=requests.c.sendings + posts,
            finished=next_stamp(tx),
        )
        .returning(requests.c.answered_by)
    ).scalar_one()
    tx.execute(
        insert(results).values(
            request_seq=seq,
            sending=sending,
            batch_id=batch_id,
            outcome=RequestState.ERRORED,
            disposition="final",
            error_type=error_type,
            raw=raw,
        )
    )
    tx.execute(update(requests).where(requests.c.seq == seq).values(batch_id=None))
    _recount(tx, batch_id)


def seq_at(tx: Connection, batch_id: int, index: int) -> Record | None:
    """The request at a 0-based place of a batch's body: ``seq``, ``id``, ``sendings``."""
    return tx.execute(
        select(requests.c.seq, requests.c.id, requests.c.sendings)
        .where(requests.c.batch_id == batch_id)
        .order_by(requests.c.seq)
        .offset(index)
        .limit(1)
    ).first()


_BODY = (
    select(requests.c.seq, requests.c.id, requests.c.sendings, params.c.body)
    .join(params, params.c.request_seq == requests.c.seq)
    .where(requests.c.batch_id == bindparam("batch"), requests.c.seq > bindparam("after"))
    .order_by(requests.c.seq)
)


def body_pages(
    ledger: Ledger, batch_id: int, *, page_bytes: int = 1 << 20
) -> Iterator[list[tuple[str, int, bytes]]]:
    """The requests of a batch as pages of ``(id, sendings, params)``, in the order of the body.

    Each page is read in a short transaction of its own and holds about ``page_bytes``.
    """
    after = 0
    while True:
        page: list[tuple[str, int, bytes]] = []
        size = 0
        with ledger.read() as tx:
            # The rows are lazy, so what is not taken is not read either.
            rows = plain_rows(tx, _BODY, {"batch": batch_id, "after": after})
            for seq, identifier, sendings, body in rows:
                page.append((identifier, sendings, body))
                size += len(body)
                after = seq
                if size >= page_bytes:
                    break
            rows.close()
        if not page:
            return
        yield page


def halt(
    tx: Connection,
    workspace_id: int,
    *,
    reason: str,
    error_type: str | None,
    message: str,
    now: float,
) -> None:
    """Stop sending for a workspace, and say why."""
    tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(halt_reason=reason, halt_type=error_type, halt_message=message, halted=now)
    )


def clear_halt(tx: Connection, workspace_id: int) -> None:
    """Let a workspace send again."""
    tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(halt_reason=None, halt_type=None, halt_message=None, halted=None)
    )


def halt_of(tx: Connection, workspace_id: int) -> Record:
    """The workspace's row: halt and wait columns included."""
    return tx.execute(select(workspaces).where(workspaces.c.id == workspace_id)).one()


def wait_until(tx: Connection, workspace_id: int, until: float | None, reason: str | None) -> None:
    """Upload nothing for a workspace before a time; None lifts it."""
    tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(wait_until=until, wait_reason=reason)
    )
