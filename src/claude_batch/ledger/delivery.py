"""Delivery: whether a run's results have reached their reader."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, and_, func, or_, select, union, update

from claude_batch.core.states import UNDER_WAY, RequestState
from claude_batch.ledger.held_requests import is_held
from claude_batch.ledger.schema import batch_runs, batches, requests, runs, workspaces


class Outstanding(NamedTuple):
    """A run with the fields that a process needs to continue it."""

    id: str
    kind: str
    output: str | None
    finished: bool
    """True if every request has its final state."""
    base_url: str
    """The API that the run uses; no other server has its batches."""


# Counted from their index alone.
_finished = (
    select(func.count())
    .where(requests.c.run_id == runs.c.id, requests.c.finished.is_not(None))
    .scalar_subquery()
)
_RUNS = select(
    runs.c.id,
    runs.c.kind,
    runs.c.output,
    (_finished >= runs.c.request_count).label("finished"),
    workspaces.c.base_url,
).join(workspaces, workspaces.c.id == runs.c.workspace_id)


def _outstanding() -> Any:
    # Runs that may have open requests are found through indexes: queued requests, requests between
    # two turns, and open batches. Finished requests cost nothing.
    queued = select(requests.c.run_id).where(requests.c.state == RequestState.QUEUED)
    turning = select(requests.c.run_id).where(requests.c.state == RequestState.CONTINUING)
    held = select(requests.c.run_id).where(is_held())
    carried = (
        select(batch_runs.c.run_id)
        .join(batches, batches.c.id == batch_runs.c.batch_id)
        .where(batches.c.state.in_(UNDER_WAY))
    )
    at_work = union(queued, held, turning, carried).scalar_subquery()
    unfinished = and_(runs.c.id.in_(at_work), _finished < runs.c.request_count)
    somewhere = or_(runs.c.output.is_not(None), runs.c.results_dir.is_not(None))
    unwritten = and_(somewhere, runs.c.delivered.is_(None))
    # A run that is still being stored belongs to the process that stores it, or is abandoned.
    whole = and_(runs.c.stored.is_not(None), runs.c.request_count > 0)
    return _RUNS.where(whole, or_(unfinished, unwritten)).order_by(runs.c.created, runs.c.id)


_OUTSTANDING = _outstanding()


def outstanding_runs(tx: Connection) -> list[Outstanding]:
    """Return the runs that are unfinished, or whose output is not written yet; oldest first."""
    return [_told(row) for row in tx.execute(_OUTSTANDING)]


def outstanding_run(tx: Connection, run_id: str) -> Outstanding:
    """Return one run that is known to exist, whether it is outstanding or not."""
    return _told(tx.execute(_RUNS.where(runs.c.id == run_id)).one())


def _told(row: Any) -> Outstanding:
    return Outstanding(row.id, row.kind, row.output, bool(row.finished), row.base_url.rstrip("/"))


def mark_delivered(tx: Connection, run_id: str, now: float) -> None:
    """Mark a run as delivered.

    Its output was renamed into place and flushed, or read by its caller.
    """
    tx.execute(update(runs).where(runs.c.id == run_id).values(delivered=now))


class Forms(NamedTuple):
    """How a run's output is written, and where the extra files go."""

    output_format: Literal["jsonl", "csv", "csv-safe"] | None = None
    """None if the output's file name decides."""
    results_dir: str | None = None
    """The folder for one file per result; None for no such files."""


def forms_of(tx: Connection, run_id: str) -> Forms:
    """Return the output forms of a run that is known to exist."""
    query = select(runs.c.output_format, runs.c.results_dir).where(runs.c.id == run_id)
    return Forms(*tx.execute(query).one())


def set_forms(tx: Connection, run_id: str, forms: Forms) -> None:
    """Store the output forms that the command continuing the run was given."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(**forms._asdict()))


def set_output(tx: Connection, run_id: str, output: str | None) -> None:
    """Store the output path that the command continuing the run was given."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(output=output))
