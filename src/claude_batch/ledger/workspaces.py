"""Transactions about workspaces: which one a key is of, and when it may send.

A halt, a pause or one of the user's own limits keeps a workspace from sending.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from claude_batch.core.states import BatchState
from claude_batch.ledger import live_calls, submissions
from claude_batch.ledger.portable_sql import drop_meta, insert_one, meta_value, put_meta, update_row
from claude_batch.ledger.schema import batches, credentials, lanes, meta, requests, runs, workspaces
from claude_batch.ledger.store import Record, now_in
from claude_batch.ledger.uploaded_files import move_files

_ROW = select(workspaces).where(workspaces.c.id == bindparam("id"))


def workspace_row(tx: Connection, workspace_id: int) -> Record:
    """Return a workspace: base URL, name, epoch, halt and wait columns."""
    return tx.execute(_ROW, {"id": workspace_id}).one()


IsDriven = Callable[[int], bool]
"""`Ledger.has_leader`: whether any process drives a workspace now."""


def ensure_workspace(
    tx: Connection, base_url: str, fingerprint: str, is_driven: IsDriven = lambda _: False
) -> int:
    """Return the workspace of a credential.

    Until the API names the workspace, the credential has a separate row. What the ledger holds
    under the former spelling of the base URL comes under this one first, unless ``is_driven`` says
    that a process drives it.
    """
    _unite_spellings(tx, base_url, is_driven)
    known = tx.scalar(
        select(credentials.c.workspace_id).where(
            credentials.c.base_url == base_url, credentials.c.fingerprint == fingerprint
        )
    )
    if known is not None:
        return known
    workspace_id = insert_one(tx, workspaces, base_url=base_url)
    tx.execute(
        insert(credentials).values(
            base_url=base_url, fingerprint=fingerprint, workspace_id=workspace_id
        )
    )
    return workspace_id


def has_former_spelling(tx: Connection, base_url: str) -> bool:
    """Return whether earlier versions have stored something for a base URL with a slash at its end.

    They took ``https://host`` and ``https://host/`` for two APIs.
    """
    found = select(credentials.c.workspace_id).where(credentials.c.base_url == f"{base_url}/")
    # The spelling of a base URL with a path never changed.
    return not base_url.endswith("/") and tx.execute(found.limit(1)).first() is not None


def _unite_spellings(tx: Connection, base_url: str, is_driven: IsDriven) -> None:
    """Bring what is stored under the former spelling of a base URL under the present one.

    The credentials of the former spelling stay. A process of an earlier version beside this one
    finds the same workspace by them, and `has_former_spelling` finds that there are earlier runs.
    """
    if not has_former_spelling(tx, base_url):
        return
    former = f"{base_url}/"
    for row in tx.execute(select(workspaces).where(workspaces.c.base_url == former)).all():
        twin = None if row.name is None else _named(tx, base_url, row.name)
        if twin is not None:
            # A deposed driver of an earlier version would wait for an emptied row.
            if is_driven(row.id):
                continue
            join_workspaces(tx, source=row.id, target=twin, name=row.name)
        update_row(tx, workspaces, row.id, base_url=base_url)
    _unite_credentials(tx, base_url, is_driven)


def _unite_credentials(tx: Connection, base_url: str, is_driven: IsDriven) -> None:
    """Let each credential of the former spelling lead to one row, whatever the spelling."""
    found = select(credentials.c.fingerprint, credentials.c.workspace_id)
    mine: dict[str, int] = {
        row.fingerprint: row.workspace_id
        for row in tx.execute(found.where(credentials.c.base_url == base_url))
    }
    for fingerprint, there in tx.execute(
        found.where(credentials.c.base_url == f"{base_url}/")
    ).all():
        if (here := mine.get(fingerprint)) is None:
            tx.execute(
                insert(credentials).values(
                    base_url=base_url, fingerprint=fingerprint, workspace_id=there
                )
            )
            continue
        rows = workspace_row(tx, there), workspace_row(tx, here)
        # If the API has named only one, or neither, it is the one workspace of this key.
        source, target = rows if rows[0].name is None else rows[::-1]
        is_one = here != there and source.name is None
        if is_one and rows[0].base_url == base_url and not is_driven(source.id):
            join_workspaces(tx, source=source.id, target=target.id, name=None)


def present_workspace(tx: Connection, workspace_id: int) -> int:
    """Return the row of a workspace, after the merges since its number was read.

    A process that has read the number before its key's row was merged would store requests in a row
    that no process drives.
    """
    while True:
        value = meta_value(tx, _merged(workspace_id))
        if value is None:
            return workspace_id
        workspace_id = int(value)


def merged_workspaces(tx: Connection, workspace_id: int) -> list[int]:
    """Return the rows that were merged into this one."""
    found = select(meta.c.name).where(meta.c.name.startswith(_MERGED, autoescape=True))
    sources = (int(name.removeprefix(_MERGED)) for name in tx.scalars(found).all())
    return [each for each in sources if present_workspace(tx, each) == workspace_id]


_MERGED = "merged_workspace_"


def _merged(workspace_id: int) -> str:
    """Return the name of the metadata that has the row into which this one was merged."""
    return f"{_MERGED}{workspace_id}"


def name_workspace(
    tx: Connection,
    workspace_id: int,
    fingerprint: str,
    name: str,
    is_driven: IsDriven = lambda _: False,
) -> int:
    """Store the API's name of a credential's workspace; return the workspace id from now on.

    If the workspace already has another row (after a key rotation), the credential joins that row
    with everything that waits in its present row. If ``is_driven`` reports that a process drives
    the present row, nothing is changed: the next driver of the other row would take what that
    process sends for the work of a dead one.
    """
    row = workspace_row(tx, workspace_id)
    if row.name == name:
        return workspace_id
    other = _named(tx, row.base_url, name)
    if row.name is not None:
        # The same credential now belongs to another workspace. Its earlier batches stay in the old
        # one.
        other = other or insert_one(tx, workspaces, base_url=row.base_url, name=name)
    elif other is None:
        update_row(tx, workspaces, workspace_id, name=name)
        return workspace_id
    elif is_driven(workspace_id):
        return workspace_id
    else:
        # What its last driver left: the other row may have a driver, which looks for this only as
        # it begins.
        live_calls.interrupted(tx, workspace_id)
        submissions.settle_interrupted(tx, workspace_id, now=now_in(tx))
        _merge(tx, workspace_id, other)
    tx.execute(
        update(credentials)
        .where(credentials.c.base_url == row.base_url, credentials.c.fingerprint == fingerprint)
        .values(workspace_id=other)
    )
    return other


def _named(tx: Connection, base_url: str, name: str) -> int | None:
    return tx.scalar(
        select(workspaces.c.id).where(workspaces.c.base_url == base_url, workspaces.c.name == name)
    )


def adopt_refused(tx: Connection, workspace_id: int, *, even_if_behind: bool = False) -> None:
    """Move what was stored under keys that the API never accepted to this workspace.

    A key that is refused from the start never learns its workspace, so its requests wait in a
    separate row. None of them was ever sent, so the first key that works may send them. A ledger
    that is behind may have forgotten that the key was accepted since, in another workspace, so
    its requests stay there, unless ``even_if_behind``.
    """
    here = workspace_row(tx, workspace_id)
    untouched = ("packed", "rejected")
    touched = (
        select(batches.c.id)
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(lanes.c.workspace_id == workspaces.c.id, batches.c.state.not_in(untouched))
    )
    refused = select(workspaces.c.id).where(
        workspaces.c.id != workspace_id,
        workspaces.c.base_url == here.base_url,
        workspaces.c.name.is_(None),
        workspaces.c.halt_reason == "credentials",
        ~touched.exists(),
    )
    if not even_if_behind:
        refused = refused.where(workspaces.c.behind.is_(None))
    for source in tx.scalars(refused).all():
        _move_lanes(tx, source, workspace_id)
        # Deposes a driver that still holds the leader lock with the refused key.
        _depose(tx, source)
        update_row(tx, workspaces, source, behind=None)


def join_workspaces(tx: Connection, *, source: int, target: int, name: str | None) -> None:
    """Merge two rows that are one workspace, on the user's order: ``source`` moves into ``target``.

    ``name`` is the API's name of the workspace, if it is known for ``source``. Any driver of either
    row is deposed.
    """
    _merge(tx, source, target)
    tx.execute(
        update(credentials).where(credentials.c.workspace_id == source).values(workspace_id=target)
    )
    _depose(tx, target)
    if name is not None:
        # The emptied row loses its name first, because a name must lead to one row.
        update_row(tx, workspaces, source, name=None)
        update_row(tx, workspaces, target, name=name)


def _merge(tx: Connection, source: int, target: int) -> None:
    """Move everything out of a row that no credential has from now on."""
    _move_lanes(tx, source, target)
    _move_block(tx, source, target)
    drop_meta(tx, _merged(target))  # so that no two rows lead to each other
    put_meta(tx, _merged(source), target)
    _depose(tx, source)


def _move_block(tx: Connection, source: int, target: int) -> None:
    """Move what only the user lifts: no key leads to the emptied row any more."""
    left, here = workspace_row(tx, source), workspace_row(tx, target)
    values: dict[str, Any] = {}
    if left.halt_reason in UNPROBED and here.halt_reason not in UNPROBED:
        kept = ("halt_reason", "halt_type", "halt_message", "halted", "probes", "next_probe")
        values = {name: getattr(left, name) for name in (*kept, "explained_until")}
    # The other row may have been recovered, but not what comes from this one.
    behind = [each.behind for each in (left, here) if each.behind is not None]
    values["behind"] = max(behind, default=None)
    update_row(tx, workspaces, target, **values)
    update_row(tx, workspaces, source, behind=None)
    clear_halt(tx, source)


def _depose(tx: Connection, workspace_id: int) -> None:
    update_row(tx, workspaces, workspace_id, epoch=workspaces.c.epoch + 1)


def lane_of(
    tx: Connection, workspace_id: int, api_version: str, betas: str, user_profile: str
) -> int | None:
    """Return the lane of these headers in a workspace; None if there is none."""
    return tx.scalar(
        select(lanes.c.id).where(
            lanes.c.workspace_id == workspace_id,
            lanes.c.api_version == api_version,
            lanes.c.betas == betas,
            lanes.c.user_profile == user_profile,
        )
    )


def _move_lanes(tx: Connection, source: int, target: int) -> None:
    for lane in tx.execute(select(lanes).where(lanes.c.workspace_id == source)).all():
        twin = lane_of(tx, target, lane.api_version, lane.betas, lane.user_profile)
        if twin is None:
            update_row(tx, lanes, lane.id, workspace_id=target)
            continue
        for table in (requests, batches):
            tx.execute(update(table).where(table.c.lane_id == lane.id).values(lane_id=twin))
        tx.execute(delete(lanes).where(lanes.c.id == lane.id))
    tx.execute(update(runs).where(runs.c.workspace_id == source).values(workspace_id=target))
    move_files(tx, source, target)
    if workspace_row(tx, source).halt_reason not in UNPROBED:
        # Nothing is left there to be sent as a probe, so nothing else would ever end this halt.
        clear_halt(tx, source)


# Halts and pauses ---------------------------------------------------------------------------------

LONGEST_PROBE_WAIT = 3600.0
"""Seconds. A halted workspace with a driver is probed at least this often, by default."""

LONGEST_WAIT = 86400.0
"""Seconds. A planned time further ahead than this was set before the clock jumped back."""


UNPROBED = ("unexplained", "ledger_behind")
"""Halt reasons that no probe can test; only the user can lift them."""


def remedy_of(reason: str | None) -> str:
    """Return the command that lifts a halt once its cause is removed."""
    return f"claude-batch {'ledger recover' if reason == 'ledger_behind' else 'resume'}"


def halt(
    tx: Connection,
    workspace_id: int,
    *,
    reason: str,
    error_type: str | None,
    message: str,
    now: float,
    interval: float,
) -> None:
    """Halt sending for a workspace, store the reason, and plan the next probe.

    ``interval`` is the wait before the first probe in seconds; each refused probe doubles it. A
    halt that only the user can lift stays as it is.
    """
    row = workspace_row(tx, workspace_id)
    if row.halt_reason in UNPROBED and reason not in UNPROBED:
        return  # a probe of the other reason must not lift it
    probes = 0 if row.halted is None else row.probes + 1
    wait = min(interval * 2 ** min(probes, 20), max(interval, LONGEST_PROBE_WAIT), LONGEST_WAIT)
    update_row(
        tx,
        workspaces,
        workspace_id,
        halt_reason=reason,
        halt_type=error_type,
        # Our messages continue after these words.
        halt_message=message.rstrip("."),
        halted=now if row.halted is None else row.halted,
        probes=probes,
        next_probe=None if reason in UNPROBED else now + wait,
    )


def halt_stands(row: Record, now: float) -> bool:
    """Return whether a workspace is halted and no probe of it is due, from its row."""
    if row.halted is None:
        return False
    # A probe planned further ahead than any wait was planned before the clock jumped back.
    return row.next_probe is None or now < row.next_probe <= now + LONGEST_WAIT


def clear_halt(tx: Connection, workspace_id: int) -> None:
    """Let a workspace send again."""
    update_row(
        tx,
        workspaces,
        workspace_id,
        halt_reason=None,
        halt_type=None,
        halt_message=None,
        halted=None,
        probes=0,
        next_probe=None,
    )


def ask_probe(tx: Connection, workspace_id: int) -> None:
    """Make a probe of a halted workspace due now.

    The cause is a new process, a new key, or a user's order.
    """
    tx.execute(
        update(workspaces)
        .where(
            workspaces.c.id == workspace_id,
            workspaces.c.halted.is_not(None),
            workspaces.c.halt_reason.not_in(UNPROBED),
        )
        .values(probes=0, next_probe=0.0)
    )


def put_off_probe(tx: Connection, workspace_id: int, *, now: float, interval: float) -> None:
    """Postpone the next probe, because the last one ended without information about the account."""
    row = workspace_row(tx, workspace_id)
    if row.halted is not None and row.halt_reason not in UNPROBED:
        halt(
            tx,
            workspace_id,
            reason=row.halt_reason,
            error_type=row.halt_type,
            message=row.halt_message,
            now=now,
            interval=interval,
        )


def accept_unexplained(tx: Connection, workspace_id: int) -> None:
    """Accept the batches that could not be explained, on the user's order."""
    row = workspace_row(tx, workspace_id)
    if row.halt_reason == "unexplained":
        clear_halt(tx, workspace_id)
        update_row(tx, workspaces, workspace_id, explained_until=None)


_WAIT = (
    update(workspaces)
    .where(workspaces.c.id == bindparam("workspace"))
    .values(wait_until=bindparam("until"), wait_reason=bindparam("reason"))
)


def wait_until(tx: Connection, workspace_id: int, until: float | None, reason: str | None) -> None:
    """Block uploads for a workspace until a time; None lifts the block.

    ``reason`` is `PER_HOUR`, or why the API asked for it, in words.
    """
    tx.execute(_WAIT, {"workspace": workspace_id, "until": until, "reason": reason})


# The user's own limits ---------------------------------------------------------------------------

HOUR = 3600.0

PER_HOUR = "batches_per_hour"
"""The limit's name, and the reason of each pause that it causes."""


class Limits(NamedTuple):
    """The limits that hold for all processes of a ledger; None for no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    batches_per_hour: int | None = None


def declare_limits(tx: Connection, limits: Mapping[str, int | None]) -> None:
    """Store limits by name, for all processes. None leaves the stored one, and 0 removes it."""
    given = {name: limit for name, limit in limits.items() if limit is not None}
    for name, limit in given.items():
        put_meta(tx, name, limit)
    if PER_HOUR in given:
        # A pause for the former limit ends; the next pass begins another one if it must.
        tx.execute(
            update(workspaces)
            .where(workspaces.c.wait_reason == PER_HOUR)
            .values(wait_until=None, wait_reason=None)
        )


_LIMITS = select(meta.c.name, meta.c.value).where(
    meta.c.name.in_([literal(name) for name in Limits._fields])
)


def limits_of(tx: Connection) -> Limits:
    """Return the ledger's limits."""
    rows = tx.execute(_LIMITS)
    return Limits(**{name: int(value) or None for name, value in rows})


# When the API created a batch at the latest, by its own clock. Without a response nothing is known
# of a batch that was armed; it may have been created.
_ANSWERED = func.coalesce(batches.c.submitted, batches.c.armed)
_TOOK = func.min(func.max(_ANSWERED - batches.c.intended, 0.0), HOUR)
_CREATED = func.coalesce(batches.c.server_time + _TOOK, batches.c.submitted)


def next_place(tx: Connection, workspace_id: int, per_hour: int, now: float) -> float:
    """Return the seconds until one more batch makes no more than ``per_hour`` in any hour.

    ``now`` is the server's time. A batch counts if the API has created it or may have. One that was
    created in the future was sent under a wrong ``Date``, and counts by our clock.
    """
    by_ours = _ANSWERED + (now - now_in(tx))
    created = case((now + 60.0 < _CREATED, by_ours), else_=_CREATED)
    nth: float | None = tx.scalar(
        select(created)
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(
            lanes.c.workspace_id == workspace_id,
            or_(
                batches.c.armed.is_not(None),
                and_(batches.c.submitted.is_not(None), batches.c.state != BatchState.LIVE),
            ),
        )
        .order_by(created.desc())
        .offset(per_hour - 1)
        .limit(1)
    )
    # The API's times are whole seconds.
    return 0.0 if nth is None else max(0.0, min(nth + HOUR + 1.0 - now, HOUR))


def past_durations(tx: Connection, workspace_id: int, limit: int) -> list[float]:
    """Return the seconds that the newest batches of a workspace took at the API."""
    took = batches.c.ended - _CREATED
    return list(
        tx.scalars(
            select(took)
            .join(lanes, lanes.c.id == batches.c.lane_id)
            .where(
                lanes.c.workspace_id == workspace_id,
                batches.c.state == BatchState.COLLECTED,
                took > 0,
            )
            .order_by(batches.c.id.desc())
            .limit(limit)
        )
    )


Calls = Sequence[tuple[float, int, float]]
"""Live calls of the last minute: time, number, and their tokens."""


def recent_calls(tx: Connection, workspace_id: int) -> Calls:
    """Return the live calls that a limit has counted."""
    found = workspace_row(tx, workspace_id).recent_calls
    calls: Any = json.loads(found) if found else ()
    return [(float(at), int(count), float(tokens)) for at, count, tokens in calls]


def keep_recent_calls(tx: Connection, workspace_id: int, calls: Calls) -> None:
    """Store the live calls that a limit has counted, so that the next driver counts them too."""
    written = json.dumps([[round(at, 3), n, round(t)] for at, n, t in calls])
    update_row(tx, workspaces, workspace_id, recent_calls=written)
