"""Whether a run's results have reached their reader, and the removal of finished runs.

A finished run that is removed is first put into the state that a dead process leaves: not fully
stored. No query then finds or packs it any more, and if the removal is interrupted, a sweep
continues it. A batch's row stays, without its long columns, because reconciliation needs every
batch that was ever ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    union,
    union_all,
    update,
)

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.states import UNDER_WAY, BatchState, RequestState
from claude_batch.ledger.budgets import forget_run
from claude_batch.ledger.charges import keep_run
from claude_batch.ledger.held_requests import is_held
from claude_batch.ledger.portable_sql import count_rows, put_meta, total, update_row
from claude_batch.ledger.queries import FINISHED, last_ending, run_row, unfinished
from claude_batch.ledger.schema import (
    OF_REQUESTS,
    batch_runs,
    batches,
    former_members,
    judges,
    requests,
    results,
    runs,
    strange_lines,
    workspaces,
)
from claude_batch.ledger.store import Ledger, next_stamp
from claude_batch.ledger.uploaded_files import drop_run_files

PRUNED = "pruned"
"""Metadata: the stamp of the last transaction that began to remove a run."""

# Delivery -----------------------------------------------------------------------------------------


class Outstanding(NamedTuple):
    """A run with the fields that a process needs to continue it."""

    id: str
    kind: str
    output: str | None
    finished: bool
    """True if every request has its final state."""
    base_url: str
    """The API that the run uses; no other server has its batches."""
    written: float | None = None
    """When its output was last written: `changed_at` of the file, just afterwards."""


_RUNS = select(
    runs.c.id,
    runs.c.kind,
    runs.c.output,
    runs.c.request_count <= FINISHED,
    func.rtrim(workspaces.c.base_url, "/"),
    runs.c.written,
).join(workspaces, workspaces.c.id == runs.c.workspace_id)


def _unfinished() -> ColumnElement[bool]:
    # Runs that may have open requests are found through indexes: queued requests, requests between
    # two turns, and open batches. Finished requests of batches cost nothing. A row of live calls
    # never closes, so the finished requests of its runs are counted from their index: that is
    # cheaper than a look for calls under way among all that the row has grouped.
    queued = select(requests.c.run_id).where(requests.c.state == RequestState.QUEUED)
    turning = select(requests.c.run_id).where(requests.c.state == RequestState.CONTINUING)
    held = select(requests.c.run_id).where(is_held())
    carried = (
        select(batch_runs.c.run_id)
        .join(batches, batches.c.id == batch_runs.c.batch_id)
        .where(batches.c.state.in_((*UNDER_WAY, BatchState.LIVE)))
    )
    at_work = union(queued, held, turning, carried).scalar_subquery()
    return and_(runs.c.id.in_(at_work), runs.c.request_count > FINISHED)


_UNWRITTEN = and_(
    or_(runs.c.output.is_not(None), runs.c.results_dir.is_not(None)), runs.c.delivered.is_(None)
)
# A run that is still being stored belongs to the process that stores it, or is abandoned.
_WHOLE = and_(runs.c.stored.is_not(None), runs.c.request_count > 0)
_OUTSTANDING = _RUNS.where(_WHOLE, or_(_unfinished(), _UNWRITTEN)).order_by(
    runs.c.created, runs.c.id
)
# Without the unwritten runs, for which every run would be read.
_OPEN = select(runs.c.id).where(_WHOLE, _unfinished()).order_by(runs.c.created, runs.c.id)


def open_run_ids(tx: Connection) -> list[str]:
    """Return the ids of the runs that are stored and unfinished, oldest first."""
    return list(tx.scalars(_OPEN))


def outstanding_runs(tx: Connection) -> list[Outstanding]:
    """Return the runs that are unfinished, or whose output is not written yet; oldest first."""
    return [Outstanding(*row) for row in tx.execute(_OUTSTANDING)]


def outstanding_run(tx: Connection, run_id: str) -> Outstanding:
    """Return one run, whether it is outstanding or not. Raises as `run_row` does."""
    run_row(tx, run_id)
    return Outstanding(*tx.execute(_RUNS.where(runs.c.id == run_id)).one())


def was_sent(tx: Connection, run_id: str) -> bool:
    """Return whether a request of a run was ever sent, or may have been."""
    query = (
        select(batches.c.id)
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(
            batch_runs.c.run_id == run_id,
            or_(batches.c.posts > 0, batches.c.state == BatchState.LIVE),
        )
    )
    return tx.execute(query.limit(1)).first() is not None


def changed_at(there: os.stat_result) -> float:
    """Return when a file was last changed or moved to its place, by the clock of its file system.

    A file that was moved, or copied with its times, keeps an old mtime, but its ctime is when it
    came there. A new mode, owner or link sets the ctime too.
    """
    return max(there.st_mtime, there.st_ctime)


def _written_at(output: str, now: float) -> float:
    try:
        return changed_at(os.stat(output))
    except OSError:  # somebody has moved it already
        return now


def mark_delivered(
    tx: Connection,
    run_id: str,
    now: float,
    *,
    seen: int | None = None,
    wrote: str | None = None,
    places: Collection[str | None] | None = None,
) -> bool:
    """Mark a run as delivered; return False if it has to be delivered again instead.

    Its answers were read by its caller, or ``wrote`` is a file that was renamed into place and
    flushed. ``seen`` is the run's `last_ending` before its answers were read. If another process
    has retried requests since, they lack the new answers. ``places`` are the output and the folder
    that were written; a run for which a command has named others meanwhile, which were never
    written, is not marked.
    """
    ended = not unfinished(tx, run_id)
    is_whole = ended and seen in (None, last_ending(tx, run_id))
    # The other process may have written all answers before this output replaced them.
    values: dict[str, Any] = {"delivered": now if is_whole else None}
    row = run_row(tx, run_id)
    named = {row.results_dir, row.output if row.written is None else None}
    if is_whole and places is not None and not named <= {None, *places}:
        values["delivered"] = row.delivered
    if wrote is not None:
        its_own = runs.c.output == wrote  # or a copy elsewhere
        values["written"] = case((its_own, _written_at(wrote, now)), else_=runs.c.written)
    update_row(tx, runs, run_id, **values)
    return is_whole


def note_rewritten(tx: Connection, run_id: str, output: str, now: float) -> None:
    """Note that an output was written again, if it is the run's own and was written before."""
    own = and_(runs.c.id == run_id, runs.c.output == output, runs.c.written.is_not(None))
    tx.execute(update(runs).where(own).values(written=_written_at(output, now)))


class Forms(NamedTuple):
    """How a run's output is written, and where the extra files go."""

    output_format: Literal["jsonl", "csv", "csv-safe", "none"] | None = None
    """None if the output's file name decides. ``none``: another run has taken the only place of the
    output, so that it is not written unless a command names another."""
    results_dir: str | None = None
    """The folder for one file per result; None for no such files."""


AS_NAMED = Forms()
"""An output in the format of its name, without a folder."""


def forms_of(tx: Connection, run_id: str) -> Forms:
    """Return the output forms of a run. Raises as `run_row` does."""
    run = run_row(tx, run_id)
    return Forms(run.output_format, run.results_dir)


def ask_output(tx: Connection, run_id: str, output: str | None, forms: Forms, now: float) -> None:
    """Store what a repeated command names of a run's output; the rest stays as it was.

    A new output without a format has that of its name. An output that is named again may be
    replaced as it is now. A run that was delivered has to be delivered again, to what is named.
    """
    before = forms_of(tx, run_id)
    values: dict[str, Any] = {}
    if output is not None:
        was_written = and_(runs.c.output == output, runs.c.written.is_not(None))
        values |= {
            "output": output,
            "written": case((was_written, _written_at(output, now)), else_=None),
        }
    if output is not None or forms.output_format is not None or before.output_format == "none":
        values["output_format"] = forms.output_format
    if forms.results_dir is not None:
        values["results_dir"] = forms.results_dir
    if output is not None or forms.results_dir is not None:
        values["delivered"] = None
    if values:
        update_row(tx, runs, run_id, **values)


class Delivery(NamedTuple):
    """What a delivered run has written."""

    output: str | None
    ending: int
    """The run's `last_ending` at that time; higher after a retry."""


def ask_folder(tx: Connection, run_id: str, folder: str, now: float) -> Delivery | None:
    """Store the folder that a program names; return what was delivered before, if anything was."""
    row = run_row(tx, run_id)
    ask_output(tx, run_id, None, Forms(results_dir=folder), now)
    if row.delivered is None:
        return None
    return Delivery(row.output, last_ending(tx, run_id))


def mark_folder_written(
    tx: Connection, run_id: str, folder: str, now: float, *, seen: int, before: Delivery | None
) -> None:
    """Mark a run as delivered whose folder was written, unless another place is to be written.

    ``before`` is what `ask_folder` returned: an output that has the same answers is not due again.
    """
    output = run_row(tx, run_id).output
    if output is None or before == Delivery(output, seen):
        mark_delivered(tx, run_id, now, seen=seen, places=(output, folder))


class Displaced(NamedTuple):
    """An undelivered run whose output path or folder a later run has taken."""

    run_id: str
    unfinished: int
    """Number of its requests without a final state."""
    place: str
    """The path or the folder."""


def take_places(
    tx: Connection,
    run_id: str,
    output: str | None,
    results_dir: str | None,
    *,
    keeps: Callable[[str | None], bool],
) -> list[Displaced]:
    """Take an output path and a folder from all other runs; return those not delivered yet.

    Each of the others would later replace what ``run_id`` writes: a delivered one after a retry.
    The path of one that is not delivered yet may lead there by a link.
    ``keeps`` returns whether a run keeps its places, from the process that stored it.
    """
    displaced: list[Displaced] = []
    for place, column, other in (
        (output, runs.c.output, runs.c.results_dir),
        (results_dir, runs.c.results_dir, runs.c.output),
    ):
        if place is None:
            continue
        # Few runs are not delivered. Links in the paths of all others would take too long.
        unwritten = and_(column.is_not(None), runs.c.delivered.is_(None))
        query = select(
            runs.c.id,
            runs.c.process,
            runs.c.request_count,
            runs.c.delivered,
            column.label("place"),
            FINISHED.label("finished"),
        ).where(or_(column == place, unwritten), runs.c.id != run_id, runs.c.stored.is_not(None))
        matches = _path_matcher(place)
        for row in tx.execute(query.order_by(runs.c.created, runs.c.id)).all():
            if not matches(row.place) or keeps(row.process):
                continue
            values = {
                column: None,
                runs.c.output_format: case((other.is_(None), "none"), else_=runs.c.output_format),
            }
            tx.execute(update(runs).where(runs.c.id == row.id).values(values))
            if row.delivered is None:
                displaced.append(Displaced(row.id, row.request_count - row.finished, place))
    return displaced


def taker_of(tx: Connection, run_id: str, place: str) -> str | None:
    """Return the run that has taken this output path or folder from ``run_id``, or None."""
    own = run_row(tx, run_id)
    if place in (own.output, own.results_dir):
        return None
    others = select(runs.c.id, runs.c.output, runs.c.results_dir).where(
        or_(runs.c.output.is_not(None), runs.c.results_dir.is_not(None)),
        runs.c.id != run_id,
        runs.c.stored.is_not(None),
    )
    newest = others.order_by(runs.c.delivered.is_not(None), runs.c.created.desc())
    matches = _path_matcher(place)
    with closing(tx.execute(newest)) as rows:
        takers = (row.id for row in rows if matches(row.output) or matches(row.results_dir))
        return next(takers, None)


def _path_matcher(place: str) -> Callable[[str | None], bool]:
    """Return a function that returns whether a path leads to a place, perhaps by a link."""
    real = os.path.realpath(place)
    return lambda path: path is not None and (path == place or os.path.realpath(path) == real)


# Pruned runs --------------------------------------------------------------------------------------

_CLOSED = (BatchState.COLLECTED, BatchState.REJECTED, BatchState.LIVE)


class Removed(NamedTuple):
    """The result of one removal step."""

    requests: int
    size: int
    """Bytes of the removed params and answers."""
    more: bool
    """Whether some rows of the run are left."""


def delivered_runs(tx: Connection, before: float) -> list[str]:
    """Return runs that were delivered before a time, oldest first.

    They are not yet checked by `why_kept`.
    """
    query = select(runs.c.id).where(
        runs.c.kind == "run", runs.c.stored.is_not(None), runs.c.delivered < before
    )
    return list(tx.scalars(query.order_by(runs.c.delivered, runs.c.id)))


def why_kept(tx: Connection, run_id: str) -> str | None:
    """Return the reason why a run cannot be removed, in words; None if it can."""
    run = run_row(tx, run_id)
    if run.kind != "run":
        return "it contains single calls, which are kept for the next equal call"
    if run.stored is None:
        return "it is still being stored"
    if unfinished(tx, run_id):
        return "it is unfinished"
    is_lost = requests.c.state == RequestState.LOST
    if count_rows(tx, requests, requests.c.run_id == run_id, is_lost):
        return "it has requests that may or may not have been paid for; see `claude-batch unknown`"
    of_run = select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id)
    former = (
        select(former_members.c.batch_id)
        .join(requests, requests.c.seq == former_members.c.request_seq)
        .where(requests.c.run_id == run_id)
    )
    found = union_all(of_run, former).subquery()
    still_open = select(batches.c.state).where(
        batches.c.id.in_(select(found.c.batch_id)), batches.c.state.not_in(_CLOSED)
    )
    state = tx.scalar(still_open.limit(1))
    if state is not None:
        return f"a batch of it is {state}"
    if run.delivered is None and (run.output is not None or run.results_dir is not None):
        return "its output is not written yet; write it with `claude-batch resume`"
    return None


def begin_pruning(tx: Connection, run_id: str, process: str) -> str | None:
    """Withdraw a run from all other processes; return the reason if it is kept.

    ``process`` is the one that removes it now. If that process dies, another one continues.
    """
    why = why_kept(tx, run_id)
    if why is None:
        forget_run(tx, run_id)
        keep_run(tx, run_id)
        values = {"stored": None, "digest": None, "process": process}
        update_row(tx, runs, run_id, **values)
        put_meta(tx, PRUNED, next_stamp(tx))
    return why


def remove_some(tx: Connection, run_id: str, *, limit: int = 2000) -> Removed:
    """Remove some requests of a run that is not fully stored, and finally the run itself."""
    mine = (
        select(requests.c.seq)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(requests.c.run_id == run_id, runs.c.stored.is_(None))
        .limit(limit)
    )
    chosen = list(tx.scalars(mine))
    size = _size(tx, chosen)
    for table in OF_REQUESTS:  # some may hold another request's answer
        tx.execute(delete(table).where(table.c.request_seq.in_(chosen)))
    tx.execute(delete(requests).where(requests.c.seq.in_(chosen)))
    more = len(chosen) == limit
    if not more:
        remove_run(tx, run_id)
    return Removed(len(chosen), size, more)


def remove_in_pieces(ledger: Ledger, run_id: str) -> Iterator[Removed]:
    """Remove a run that is not fully stored, and yield what each transaction has removed.

    They are small, so that the removal of a million requests blocks no other process. A process
    that dies meanwhile leaves the rest to another one.
    """
    more = True
    while more:
        reach(CrashPoint.DURING_PRUNING)
        with ledger.write() as tx:
            removed = remove_some(tx, run_id)
        more = removed.more
        yield removed


def _size(tx: Connection, chosen: list[int]) -> int:
    asked = select(total(requests.c.size)).where(requests.c.seq.in_(chosen))
    answered = select(total(func.length(results.c.raw))).where(results.c.request_seq.in_(chosen))
    return int(tx.execute(asked).scalar_one() + tx.execute(answered).scalar_one())


def remove_run(tx: Connection, run_id: str) -> None:
    """Remove a run that is not fully stored, and that has no requests any more."""
    gone = tx.execute(delete(runs).where(runs.c.id == run_id, runs.c.stored.is_(None))).rowcount
    if not gone:
        return
    mine = list(tx.scalars(select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id)))
    forget_run(tx, run_id)
    tx.execute(delete(judges).where(judges.c.run_id == run_id))
    tx.execute(delete(batch_runs).where(batch_runs.c.run_id == run_id))
    drop_run_files(tx, run_id)
    if not mine:
        return
    shared = select(batch_runs.c.batch_id)
    empty = (batches.c.id.in_(mine), batches.c.id.not_in(shared))
    nothing_left = select(batches.c.id).where(*empty)
    tx.execute(delete(strange_lines).where(strange_lines.c.batch_id.in_(nothing_left)))
    long = or_(batches.c.snapshot.is_not(None), batches.c.note.is_not(None))
    tx.execute(update(batches).where(*empty, long).values(snapshot=None, note=None, refusal=None))
