"""Transactions that bring requests in: workspaces, lanes, runs, calls and their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, insert, literal_column, null, select, update

from claude_batch.core.ids import new_run_id
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.ledger import budgets
from claude_batch.ledger.pruned_runs import remove_some
from claude_batch.ledger.schema import (
    batches,
    credentials,
    digests,
    doubles,
    lanes,
    params,
    primers,
    requests,
    results,
    runs,
    workspaces,
)
from claude_batch.ledger.store import insert_many
from claude_batch.ledger.uploaded_files import drop_run_files, move_files

__all__ = [
    "NewRequest",
    "NewRun",
    "add_requests",
    "adopt_refused",
    "begin_run",
    "declare_budgets",
    "drop_run",
    "ensure_lane",
    "ensure_workspace",
    "finish_storing",
    "half_stored",
    "join_workspaces",
    "name_workspace",
    "remove_half_stored",
    "run_by_digest",
    "set_trace",
]


# What is the same for every new request stands in the SQL: to bind it costs as much as to store it.
_INSERT_ALL = insert(requests).values(
    state=literal_column("'queued'"),
    cancelled=literal_column("0"),
    attempts=literal_column("0"),
    forgiven=literal_column("0"),
    sendings=literal_column("0"),
    batch_id=null(),
    answered_by=null(),
    trace=null(),
    finished=null(),
    live=null(),
)
_INSERTS = {
    (True, True): _INSERT_ALL,
    (True, False): _INSERT_ALL.values(reserve=null()),
    (False, True): _INSERT_ALL.values(prefix=null()),
    (False, False): _INSERT_ALL.values(prefix=null(), reserve=null()),
}
"""By whether requests have a prefix, and a reservation."""
_INSERT_PARAMS = insert(params)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """What a run is made of before its requests."""

    kind: str
    """``run``, or ``calls`` for the single calls of one process."""
    actor: str
    workspace_id: int
    mode: BatchProcessingMode
    created: float
    label: str | None = None
    output: str | None = None
    trace: str | None = None
    """The W3C ``traceparent`` of who asks, where an observer carries one."""
    process: str | None = None
    """The process that makes it, as `claude_batch.ledger.processes` knows it."""
    converses: bool = False
    """Whether its conversations go on by themselves."""
    tools: str | None = None
    """The functions that they may call, as JSON."""


class NewRequest(NamedTuple):
    """One request as it is stored."""

    id: str
    position: int
    key: str | None
    lane_id: int
    params: bytes
    prefix: int | None = None
    reserve: int | None = None
    """The most that it can cost, in nano-dollars; None where no budget asks."""


def ensure_workspace(tx: Connection, base_url: str, fingerprint: str) -> int:
    """The workspace that a credential belongs to; until the API names it, one of its own."""
    known = tx.scalar(
        select(credentials.c.workspace_id).where(
            credentials.c.base_url == base_url, credentials.c.fingerprint == fingerprint
        )
    )
    if known is not None:
        return known
    result = tx.execute(insert(workspaces).values(base_url=base_url, epoch=0))
    workspace_id = _new_key(result)
    tx.execute(
        insert(credentials).values(
            base_url=base_url, fingerprint=fingerprint, workspace_id=workspace_id
        )
    )
    return workspace_id


def name_workspace(tx: Connection, workspace_id: int, fingerprint: str, name: str) -> int:
    """Note the API's name of a credential's workspace; returns the id that it has from now on.

    A credential whose workspace is known already under another row (a rotated key) joins that
    row, with all that waits in its own.
    """
    row = tx.execute(select(workspaces).where(workspaces.c.id == workspace_id)).one()
    if row.name == name:
        return workspace_id
    other = tx.scalar(
        select(workspaces.c.id).where(
            workspaces.c.base_url == row.base_url, workspaces.c.name == name
        )
    )
    if other is None and row.name is None:
        tx.execute(update(workspaces).where(workspaces.c.id == workspace_id).values(name=name))
        return workspace_id
    if other is None:
        # The same credential now speaks for another workspace: what it sent before stays there.
        other = _new_key(
            tx.execute(insert(workspaces).values(base_url=row.base_url, name=name, epoch=0))
        )
    elif row.name is None:
        _move_lanes(tx, workspace_id, other)
    tx.execute(
        update(credentials)
        .where(credentials.c.base_url == row.base_url, credentials.c.fingerprint == fingerprint)
        .values(workspace_id=other)
    )
    return other


def adopt_refused(tx: Connection, workspace_id: int) -> None:
    """Bring along what was stored under keys that the API never accepted.

    A key that is refused from the start learns no workspace, so what was stored under it waits in
    a row of its own. Nothing of it was ever sent: the first key that works may send it.
    """
    here = tx.execute(select(workspaces).where(workspaces.c.id == workspace_id)).one()
    untouched = ("packed", "rejected")
    touched = (
        select(batches.c.id)
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(lanes.c.workspace_id == workspaces.c.id, batches.c.state.not_in(untouched))
    )
    refused = tx.scalars(
        select(workspaces.c.id).where(
            workspaces.c.id != workspace_id,
            workspaces.c.base_url == here.base_url,
            workspaces.c.name.is_(None),
            workspaces.c.halt_reason == "credentials",
            ~touched.exists(),
        )
    ).all()
    for source in refused:
        _move_lanes(tx, source, workspace_id)
        # Whoever still sits there, with the refused key, writes no more.
        tx.execute(
            update(workspaces).where(workspaces.c.id == source).values(epoch=workspaces.c.epoch + 1)
        )


def join_workspaces(tx: Connection, *, source: int, target: int, name: str | None) -> None:
    """Two rows are one workspace, as the user says: all of ``source`` goes to ``target``.

    ``name`` is what the API calls it, where it is known of ``source``. Whoever drives either, or
    thinks to, writes no more.
    """
    _move_lanes(tx, source, target)
    tx.execute(
        update(credentials).where(credentials.c.workspace_id == source).values(workspace_id=target)
    )
    both = workspaces.c.id.in_((source, target))
    tx.execute(update(workspaces).where(both).values(epoch=workspaces.c.epoch + 1))
    if name is not None:
        # The emptied row gives its name up first: a name leads to one row.
        tx.execute(update(workspaces).where(workspaces.c.id == source).values(name=None))
        tx.execute(update(workspaces).where(workspaces.c.id == target).values(name=name))


def _move_lanes(tx: Connection, source: int, target: int) -> None:
    for lane in tx.execute(select(lanes).where(lanes.c.workspace_id == source)).all():
        twin = tx.scalar(
            select(lanes.c.id).where(
                lanes.c.workspace_id == target,
                lanes.c.api_version == lane.api_version,
                lanes.c.betas == lane.betas,
                lanes.c.user_profile == lane.user_profile,
            )
        )
        if twin is None:
            tx.execute(update(lanes).where(lanes.c.id == lane.id).values(workspace_id=target))
            continue
        for table in (requests, batches):
            tx.execute(update(table).where(table.c.lane_id == lane.id).values(lane_id=twin))
        tx.execute(delete(lanes).where(lanes.c.id == lane.id))
    tx.execute(update(runs).where(runs.c.workspace_id == source).values(workspace_id=target))
    move_files(tx, source, target)


def ensure_lane(
    tx: Connection, workspace_id: int, api_version: str, betas: str, user_profile: str
) -> int:
    """The lane of these headers in this workspace, made where it is new."""
    where = (
        lanes.c.workspace_id == workspace_id,
        lanes.c.api_version == api_version,
        lanes.c.betas == betas,
        lanes.c.user_profile == user_profile,
    )
    known = tx.scalar(select(lanes.c.id).where(*where))
    if known is not None:
        return known
    return _new_key(
        tx.execute(
            insert(lanes).values(
                workspace_id=workspace_id,
                api_version=api_version,
                betas=betas,
                user_profile=user_profile,
            )
        )
    )


def begin_run(tx: Connection, run: NewRun) -> str:
    """Make a run; returns its id. A run of kind ``calls`` can be packed from the start."""
    run_id = new_run_id()
    tx.execute(
        insert(runs).values(
            id=run_id,
            kind=run.kind,
            actor=run.actor,
            workspace_id=run.workspace_id,
            label=run.label,
            output=run.output,
            process=run.process,
            converses=run.converses,
            tools=run.tools,
            trace=run.trace,
            created=run.created,
            stored=run.created if run.kind == "calls" else None,
            request_count=0,
            # What matters while it is stored alone is not remembered.
            **{
                name: value
                for name, value in run.mode.model_dump(mode="python").items()
                if name in runs.c and name != "deadline"
            },
            deadline=run.mode.deadline_after(run.created),
            live=run.created if run.mode.mode == "live" else None,
        )
    )
    declare_budgets(tx, run_id, run)
    return run_id


def declare_budgets(tx: Connection, run_id: str, run: NewRun) -> None:
    """The budgets that a mode asks for, of a run that was just made or was asked for again."""
    budgets.declare(tx, "run", run_id, run.mode.budget)
    budgets.declare(tx, "actor", run.actor, run.mode.actor_budget)


def add_requests(
    tx: Connection,
    run_id: str,
    new: Sequence[NewRequest],
    *,
    created: float,
    due: float,
    prefixed: bool = False,
) -> int:
    """Store one request or more of a run, queued, in order of position.

    ``prefixed``: their prefixes are stored too. Returns the row number of the first; the others
    follow it.
    """
    # Only writers give out row numbers and this transaction is one, so they can be given here.
    first = int(tx.scalar(select(func.max(requests.c.seq))) or 0) + 1
    rows: list[tuple[Any, ...]] = [
        (seq, identifier, run_id, position, key, lane_id, len(body), due, created)
        for seq, (identifier, position, key, lane_id, body, *_) in enumerate(new, first)
    ]
    reserved = new[0].reserve is not None
    if prefixed or reserved:
        # Each row has a value more, or two.
        extra = [
            (*((each.prefix,) if prefixed else ()), *((each.reserve,) if reserved else ()))
            for each in new
        ]
        rows = [(*row, *more) for row, more in zip(rows, extra, strict=True)]
    insert_many(tx, _INSERTS[prefixed, reserved], rows)
    insert_many(tx, _INSERT_PARAMS, [(seq, request[4]) for seq, request in enumerate(new, first)])
    tx.execute(
        update(runs)
        .where(runs.c.id == run_id)
        .values(request_count=runs.c.request_count + len(new))
    )
    return first


def set_trace(tx: Connection, seq: int, trace: str) -> None:
    """Note the ``traceparent`` of who makes a single call."""
    tx.execute(update(requests).where(requests.c.seq == seq).values(trace=trace))


def run_by_digest(tx: Connection, digest: str) -> Any | None:
    """The newest wholly stored run of that digest; None if there is none.

    A cancelled run is returned only if no other has that digest.
    """
    return tx.execute(
        select(runs)
        .where(runs.c.digest == digest, runs.c.stored.is_not(None))
        .order_by(runs.c.cancelled.is_not(None), runs.c.created.desc())
        .limit(1)
    ).first()


def finish_storing(
    tx: Connection, run_id: str, *, digest: str, stored: float, prefixed: bool = False
) -> None:
    """Say that a run is wholly stored, from when on it may be packed.

    ``prefixed``: some of its requests have a prefix.
    """
    tx.execute(
        update(runs)
        .where(runs.c.id == run_id)
        .values(digest=digest, stored=stored, prefixed=prefixed)
    )


def drop_run(tx: Connection, run_id: str) -> None:
    """Forget a run that was never wholly stored, and so never sent; any other stays."""
    stored = tx.scalar(select(runs.c.stored).where(runs.c.id == run_id))
    if stored is not None:
        return
    mine = select(requests.c.seq).where(requests.c.run_id == run_id)
    _forget(tx, mine)
    tx.execute(delete(requests).where(requests.c.run_id == run_id))
    budgets.set_amount(tx, "run", run_id, None)
    drop_run_files(tx, run_id)
    tx.execute(delete(runs).where(runs.c.id == run_id))


def _forget(tx: Connection, mine: Any) -> None:
    """Remove what belongs to requests that were never sent; some may have another one's answer."""
    for table in (params, digests, doubles, primers, results):
        tx.execute(delete(table).where(table.c.request_seq.in_(mine)))


def half_stored(tx: Connection, own: str) -> list[tuple[str, str]]:
    """Runs that other processes have not wholly stored: run id and process."""
    rows = tx.execute(
        select(runs.c.id, runs.c.process).where(
            runs.c.stored.is_(None), runs.c.process.is_not(None), runs.c.process != own
        )
    )
    return [(row.id, row.process) for row in rows]


def remove_half_stored(tx: Connection, run_id: str, *, limit: int = 5000) -> bool:
    """Remove some requests of a run that will never be whole; False when the run is gone too.

    Also of one that a dead process was removing, which has answers.
    """
    return remove_some(tx, run_id, limit=limit).more


def _new_key(result: Any) -> int:
    return int(result.inserted_primary_key[0])
