"""Transactions that store requests: lanes, runs, calls and their keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    insert,
    literal_column,
    null,
    select,
    update,
)

from claude_batch.core.errors import LedgerError
from claude_batch.core.ids import new_run_id
from claude_batch.core.settings import AFTER_DEADLINE
from claude_batch.core.states import IN_FLIGHT
from claude_batch.ledger import budgets
from claude_batch.ledger.deliveries import AS_NAMED, Forms, ask_output
from claude_batch.ledger.portable_sql import among, insert_one, update_row, upsert
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    contexts,
    judges,
    lanes,
    params,
    requests,
    runs,
)
from claude_batch.ledger.store import insert_many
from claude_batch.ledger.workspaces import lane_of, present_workspace

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode

# Values equal for every new request are literals in the SQL, because binding them costs as much as
# storing them.
_INSERT_ALL = insert(requests).values(
    state=literal_column("'queued'"),
    cancelled=false(),
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
"""Insert statements, by whether requests have a prefix and a reservation."""
_INSERT_PARAMS = insert(params)
_INSERT_CONTEXTS = insert(contexts)


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A new run without its requests."""

    kind: str
    """``run``, or ``calls`` for the single calls of one process."""
    actor: str
    workspace_id: int
    mode: BatchProcessingMode
    created: float
    label: str | None = None
    output: str | None = None
    forms: Forms = AS_NAMED
    trace: str | None = None
    """The caller's W3C ``traceparent``, if an observer carries one."""
    process: str | None = None
    """The process that creates the run, by its name in the ledger."""
    converses: bool = False
    """Whether its conversations continue automatically."""
    tools: str | None = None
    """The functions that its conversations may call, as JSON."""
    judge: str | None = None
    """The process that judges its answers with the caller's own function; None if none does."""


class NewRequest(msgspec.Struct, frozen=True, gc=False):
    """One request as the ledger stores it."""

    id: str
    position: int
    key: str | None
    lane_id: int
    params: bytes
    prefix: int | None = None
    reserve: int | None = None
    """The most that it can cost, in nano-dollars; None if no budget asks."""


def ensure_lane(
    tx: Connection, workspace_id: int, api_version: str, betas: str, user_profile: str
) -> int:
    """Return the lane of these headers in this workspace; create it if it is new."""
    workspace_id = present_workspace(tx, workspace_id)
    known = lane_of(tx, workspace_id, api_version, betas, user_profile)
    if known is not None:
        return known
    return insert_one(
        tx,
        lanes,
        workspace_id=workspace_id,
        api_version=api_version,
        betas=betas,
        user_profile=user_profile,
    )


def begin_run(tx: Connection, run: NewRun, run_id: str | None = None) -> str:
    """Create a run; return its id. A run of kind ``calls`` can be packed from the start.

    ``run_id`` is the id of a run that is created once, however often this is repeated.
    """
    if run_id is None:
        run_id = new_run_id()
    elif tx.scalar(select(runs.c.id).where(runs.c.id == run_id)) is not None:
        return run_id  # only the answer of the COMMIT was lost
    columns: dict[str, Any] = {
        "id": run_id,
        "kind": run.kind,
        "actor": run.actor,
        "workspace_id": present_workspace(tx, run.workspace_id),
        "label": run.label,
        "output": run.output,
        **run.forms._asdict(),
        "process": run.process,
        "converses": run.converses,
        "tools": run.tools,
        "trace": run.trace,
        "created": run.created,
        "stored": run.created if run.kind == "calls" else None,
        "request_count": 0,
        "preparation": msgspec.json.encode(
            run.mode.model_dump(mode="python", include=_WHILE_STORED)
        ).decode(),
        **{
            name: value
            for name, value in run.mode.model_dump(mode="python").items()
            if name in runs.c and name != "deadline"
        },
        "deadline": run.mode.deadline_after(run.created),
        "max_wait": run.mode.longest_wait(run.created),
        "live": run.created if run.mode.mode == "live" else None,
    }
    tx.execute(insert(runs), columns)
    if run.judge is not None:
        add_judge(tx, run_id, run.judge, workspace_id=run.workspace_id, now=run.created)
    declare_budgets(tx, run_id, run)
    return run_id


_WHILE_STORED = {"preflight", "prime", "reuse", "dedupe"}
"""Settings that decide how the requests of a run are stored, and nothing afterwards.

``cache`` is one too, but only its effect counts: the column ``prefixed``.
"""


def add_judge(tx: Connection, run_id: str, process: str, *, workspace_id: int, now: float) -> None:
    """Record that a process judges a run's answers, unless the run is in another workspace.

    A process examines only the workspace of its key.
    """
    mine = runs.c.workspace_id == present_workspace(tx, workspace_id)
    here = select(runs.c.id).where(runs.c.id == run_id, mine)
    if tx.execute(here).first() is not None:
        new = upsert(judges).values(run_id=run_id, process=process, seen=now)
        again = new.on_conflict_do_update(index_elements=["run_id", "process"], set_={"seen": now})
        tx.execute(again)


_AS_ASKED_LAST = (
    "poll_interval",
    "max_poll_interval",
    "max_wait",
    "on_timeout",
    "max_attempts",
    "retry_on",
)


def ask_again(tx: Connection, run_id: str, run: NewRun, now: float) -> None:
    """Store the waiting, retry and output settings of the last request for a run, and its budgets.

    So a command that gives up early does not make a later one without its flags give up, too. How
    requests are packed and answered stays as it was, because part of them may be under way. A new
    label replaces the earlier one.
    """
    settings = run.mode.model_dump(mode="python", include=set(_AS_ASKED_LAST))
    if "max_wait" not in run.mode.model_fields_set:
        # The run keeps its deadline, whatever this request says.
        until = func.round(runs.c.deadline - runs.c.created) + AFTER_DEADLINE
        settings["max_wait"] = func.max(run.mode.max_wait, func.coalesce(until, 0.0))
    if run.label is not None:
        settings["label"] = run.label
    update_row(tx, runs, run_id, **settings)
    _poll_as_asked(tx, run_id, now)
    ask_output(tx, run_id, run.output, run.forms, now)
    declare_budgets(tx, run_id, run)


def poll_every(
    tx: Connection, run_id: str, shortest: float | None, longest: float | None, now: float
) -> None:
    """Let a run's batches be checked at other intervals, also those at the API.

    At least one is given. One that is None stays, but ``shortest`` never exceeds ``longest``.
    """
    least: Any = func.min(runs.c.poll_interval, longest) if shortest is None else shortest
    most: Any = func.max(runs.c.max_poll_interval, shortest) if longest is None else longest
    values = {"poll_interval": least, "max_poll_interval": most}
    update_row(tx, runs, run_id, **values)
    _poll_as_asked(tx, run_id, now)


def _poll_as_asked(tx: Connection, run_id: str, now: float) -> None:
    # A batch was packed with the shortest intervals of its runs.
    shortest, longest = (
        select(func.min(interval))
        .join(batch_runs, batch_runs.c.run_id == runs.c.id)
        .where(batch_runs.c.batch_id == batches.c.id)
        .correlate(batches)
        .scalar_subquery()
        for interval in (runs.c.poll_interval, runs.c.max_poll_interval)
    )
    check = batches.c.next_check
    tx.execute(
        update(batches)
        .where(
            batches.c.id.in_(select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id)),
            batches.c.state.in_(IN_FLIGHT),
        )
        .values(
            poll_interval=shortest,
            max_poll_interval=longest,
            next_check=case((check > now + shortest, now + shortest), else_=check),
        )
    )


_OF_CALLS = {"linger", "max_linger"}
"""Settings that only single calls use."""


def kept_settings(
    run: Any, mode: BatchProcessingMode, *, prefixed: bool
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that a continued run keeps although ``mode`` sets others.

    Each name has the value of the run and that of the mode. Defaults of the mode do not count. A
    deadline is in seconds since the epoch; a relative one counts from the run's beginning.
    ``prefixed``: with this mode, some of its requests would have a prefix.
    """
    kept: dict[str, Any] = {**run._mapping}
    if run.preparation is not None:
        kept |= msgspec.json.decode(run.preparation)
    compared = (mode.model_fields_set & kept.keys()) - set(_AS_ASKED_LAST) - _OF_CALLS
    values = mode.model_dump(mode="python", include=compared)
    if "deadline" in values:
        values["deadline"] = mode.deadline_after(run.created)
    found = {name: (kept[name], value) for name, value in values.items() if kept[name] != value}
    if "cache" in mode.model_fields_set and run.prefixed != prefixed:
        found["cache"] = ("auto" if run.prefixed else "off", mode.cache)
    return found


def kept_mode(run: Any, mode: BatchProcessingMode) -> BatchProcessingMode:
    """Return the settings with which a continued run goes on if ``mode`` is requested."""
    kept = (type(mode).model_fields.keys() & set(runs.c.keys())) - set(_AS_ASKED_LAST)
    settings = {name: getattr(run, name) for name in kept}
    if run.live is not None:
        settings["mode"] = "live"
    return mode.model_copy(update=settings)


def declare_budgets(tx: Connection, run_id: str, run: NewRun) -> None:
    """Declare the budgets of a mode for a run that was just created or requested again."""
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
    process: str | None = None,
) -> int:
    """Store at least one request of a run, queued, in order of position.

    ``prefixed``: their prefixes are stored too. Returns the row number of the first request; the
    others follow it. Raises `LedgerError` if the run is gone, or if another process than the given
    one has it.
    """
    # Row numbers are assigned here. That is safe because only writers assign them, and this
    # transaction is the only writer.
    first = int(tx.scalar(select(func.max(requests.c.seq))) or 0) + 1
    rows: list[tuple[Any, ...]] = [
        (
            seq,
            each.id,
            run_id,
            each.position,
            each.key,
            each.lane_id,
            len(each.params),
            due,
            created,
        )
        for seq, each in enumerate(new, first)
    ]
    reserved = new[0].reserve is not None
    if prefixed or reserved:
        # Each row has one or two more values.
        extra = [
            (*((each.prefix,) if prefixed else ()), *((each.reserve,) if reserved else ()))
            for each in new
        ]
        rows = [(*row, *more) for row, more in zip(rows, extra, strict=True)]
    insert_many(tx, _INSERTS[prefixed, reserved], rows)
    insert_many(tx, _INSERT_PARAMS, [(seq, each.params) for seq, each in enumerate(new, first)])
    grown = tx.execute(
        update(runs)
        .where(*_of(run_id, process))
        .values(request_count=runs.c.request_count + len(new))
    )
    _check_ours(grown.rowcount)
    return first


def stored_count(tx: Connection, run_id: str) -> int:
    """Return how many requests of a run are stored; 0 if the run is gone."""
    return tx.scalar(select(runs.c.request_count).where(runs.c.id == run_id)) or 0


def _of(run_id: str, process: str | None) -> tuple[ColumnElement[bool], ...]:
    """Select a run, which one process stores if it is named."""
    return (runs.c.id == run_id, *(() if process is None else (runs.c.process == process,)))


def _check_ours(found: int) -> None:
    if not found:
        # On one machine a lock proves that a process lives. On several it is only a heartbeat.
        raise LedgerError(
            "this process sent no heartbeat for so long that another process removed the requests "
            "that it was storing; none of them was sent. Repeat the command",
            fault="busy",
        )


def set_trace(tx: Connection, seq: int, trace: str) -> None:
    """Store the ``traceparent`` of a single call's caller."""
    tx.execute(update(requests).where(requests.c.seq == seq).values(trace=trace))


def add_contexts(tx: Connection, new: Sequence[tuple[int, bytes]]) -> None:
    """Store the contexts of requests: row number and JSON."""
    insert_many(tx, _INSERT_CONTEXTS, new)


def move_contexts(tx: Connection, source: str, target: str) -> None:
    """Give the requests of a run the contexts of the same requests in another run.

    A request that the other run does not have, or not any more, keeps its own. So nothing is lost
    if this is repeated because the answer of the COMMIT was lost: the other run is gone then.
    """
    twin = requests.alias()
    is_twin = and_(twin.c.run_id == target, twin.c.position == requests.c.position)
    pairs = select(twin.c.seq).join(requests, is_twin).where(requests.c.run_id == source)
    tx.execute(delete(contexts).where(contexts.c.request_seq.in_(pairs)))
    moved = pairs.join(contexts, contexts.c.request_seq == requests.c.seq)
    tx.execute(
        insert(contexts).from_select(["request_seq", "value"], moved.add_columns(contexts.c.value))
    )


_BY_DIGEST = (
    select(runs)
    .where(runs.c.digest == bindparam("digest"), runs.c.stored.is_not(None))
    .order_by(runs.c.cancelled.is_not(None), runs.c.created.desc())
    .limit(1)
)


def run_by_digest(tx: Connection, digest: str) -> Any | None:
    """Return the newest fully stored run with that digest; None if there is none.

    A cancelled run is returned only if no other run has that digest.
    """
    return tx.execute(_BY_DIGEST, {"digest": digest}).first()


def open_for_calls(tx: Connection, run_ids: Collection[str]) -> set[str]:
    """Return those of these runs that calls can join: the cancelled and removed ones are left out.

    A call in a cancelled run ends as canceled before it is sent.
    """
    query = select(runs.c.id).where(runs.c.cancelled.is_(None))
    return {row.id for row in among(tx, query, runs.c.id, run_ids)}


def finish_storing(
    tx: Connection,
    run_id: str,
    *,
    digest: str,
    stored: float,
    prefixed: bool = False,
    process: str | None = None,
) -> None:
    """Mark a run as fully stored; from then on it may be packed.

    ``prefixed``: some of its requests have a prefix. Raises `LedgerError` if the run is gone, or if
    another process than the given one has it.
    """
    finished = tx.execute(
        update(runs)
        .where(*_of(run_id, process))
        .values(digest=digest, stored=stored, prefixed=prefixed)
    )
    _check_ours(finished.rowcount)


_DISCARDED = "discarded"
"""The digest of a run that is not kept, because the ledger has the same run."""


def discard(tx: Connection, run_id: str) -> None:
    """Mark a run that is not fully stored as one to remove, with `remove_in_pieces`.

    A process that dies before leaves it to another one, like every run that is not fully stored.
    """
    mine = and_(runs.c.id == run_id, runs.c.stored.is_(None))
    tx.execute(update(runs).where(mine).values(digest=_DISCARDED))


def is_discarded(tx: Connection, run_id: str) -> bool:
    """Return whether a run is marked by `discard`, or gone."""
    found = tx.execute(select(runs.c.digest).where(runs.c.id == run_id)).first()
    return found is None or found.digest == _DISCARDED


def half_stored(tx: Connection, own: str) -> list[tuple[str, str]]:
    """Return the runs that other processes have not fully stored: run id and process."""
    rows = tx.execute(
        select(runs.c.id, runs.c.process).where(
            runs.c.stored.is_(None), runs.c.process.is_not(None), runs.c.process != own
        )
    )
    return [(row.id, row.process) for row in rows]


def claim_half_stored(tx: Connection, run_id: str, *, former: str, process: str) -> bool:
    """Take an incomplete run from a dead process, which then cannot go on with it.

    Return False if somebody else did.
    """
    incomplete = (*_of(run_id, former), runs.c.stored.is_(None))
    return tx.execute(update(runs).where(*incomplete).values(process=process)).rowcount > 0
