"""Move a ledger from a file to a PostgreSQL server; at every instant at most one of them is used.

One transaction on the server creates the tables and fills them. It marks them as *arriving*: no
command uses such a ledger. A transaction on the file has excluded every writer since before the
first row was read, and commits second: the file is *moved*, and no command uses it any more. The
high-water mark follows, and last, the arriving mark is removed. Whatever ends the process, the same
call finishes:

- before the first commit, nothing has happened;
- between the two, the file is still in use, and what arrived is replaced by a new copy;
- after the second, only the marks have to be changed. A backup of the file that is put in its place
  is in use until the high-water mark has changed, and behind it from then on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, LargeBinary, Table, cast, func, insert, select, text

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import LedgerError
from claude_batch.core.ids import new_incarnation
from claude_batch.core.settings import has_ledger, naming_ledger, on_server, without_password
from claude_batch.core.states import BatchState
from claude_batch.ledger import live_calls, queries, submissions
from claude_batch.ledger.backends.backend import Backend
from claude_batch.ledger.backends.postgres import copy_table
from claude_batch.ledger.high_water import HighWater, is_known, note_move, posts_of
from claude_batch.ledger.portable_sql import drop_meta
from claude_batch.ledger.schema import call_keys, lanes, meta, metadata, requests, runs
from claude_batch.ledger.single_calls import LONGEST_CALL_KEY
from claude_batch.ledger.store import (
    ARRIVING_FROM,
    MOVED_AS,
    MOVED_TO,
    Ledger,
    identity_of,
    now_in,
    open_backend,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A ledger's move to a server."""

    location: str
    """The ledger's present location, without a password."""
    requests: int
    unknown: int
    """Number of batches that the API may have accepted. The ledger's next driver finds out."""
    lost_calls: int
    """Number of live calls that a dead driver had left, and that are lost from now on."""
    was_moved: bool
    """Whether an earlier call had moved the file, so that this one only had to finish."""


def move_ledger(file: str, url: str) -> Moved:
    """Move the ledger in a file to a server, or finish an earlier move to it.

    No process may drive the file. An older one is migrated first. Raises `LedgerError`; the file
    can then still be used, or the same call finishes.
    """
    if on_server(file) or not has_ledger(file):
        # A URL may have a password in it.
        shown = without_password(file)
        raise LedgerError(f"there is no ledger in a file {shown}; nothing was changed")
    if not on_server(url):
        raise LedgerError("a file is moved to a URL such as postgresql://USER@HOST/DATABASE")
    server = open_backend(url)
    try:
        with server.reading() as tx:
            server.tables(tx)  # refuses a server that cannot hold a ledger
        facts, lost_calls = _facts_of(file), 0
        was_moved = MOVED_TO in facts
        if not was_moved:
            lost_calls = _depart(file, server)
            reach(CrashPoint.AFTER_MOVED)
            facts = _facts_of(file)
        # First, because other machines may send as soon as the ledger has arrived.
        _raise_mark(facts)
        _arrive(server, file, facts)
        reach(CrashPoint.AFTER_ARRIVED)
    finally:
        server.close()
    ledger = Ledger(url)
    try:
        with ledger.read() as tx:
            by_state, batches_by_state = queries.counts_by_state(tx)
        return Moved(
            location=ledger.location,
            requests=sum(by_state.values()),
            unknown=batches_by_state.get(BatchState.UNKNOWN, 0),
            lost_calls=lost_calls,
            was_moved=was_moved,
        )
    finally:
        ledger.close()


# From the file ------------------------------------------------------------------------------------


def _facts_of(file: str) -> Mapping[str, str]:
    """Return the metadata of a file, whether it was moved or not; empty if it is no ledger."""
    backend = open_backend(file)
    try:
        with backend.reading() as tx:
            return queries.metadata_of(tx) if "meta" in backend.tables(tx) else {}
    finally:
        backend.close()


def _depart(file: str, server: Backend) -> int:
    """Copy a file to a server, and mark it as moved; return the number of lost live calls."""
    ledger = Ledger(file)
    try:
        mark = HighWater(ledger).read()
        # This transaction excludes every other writer until the file is marked.
        with ledger.write() as tx:
            ids = queries.workspace_ids(tx)
            with ledger.every_leader_lock(ids, "a ledger moves while no process drives it"):
                if queries.behind(tx) or not is_known(mark, ledger.incarnations, posts_of(tx)):
                    recover = naming_ledger("`claude-batch ledger recover`", file)
                    raise LedgerError(
                        f"the ledger {file} is behind its high-water mark and cannot move; nothing "
                        f"was changed. Recover it first, with: {recover}"
                    )
                _check_keys(tx, file)
                lost_calls = _settle(tx, ids)
                incarnation = _fill(server, tx, ledger)
                reach(CrashPoint.AFTER_ARRIVING)
                marks = {MOVED_TO: server.location, MOVED_AS: incarnation}
                tx.execute(insert(meta), [{"name": k, "value": v} for k, v in marks.items()])
        return lost_calls
    finally:
        ledger.close()


def _check_keys(tx: Connection, file: str) -> None:
    """Raise `LedgerError` for text that PostgreSQL cannot store, which older versions accepted."""
    for column in (requests.c.key, call_keys.c.key, call_keys.c.actor):
        found = tx.scalar(select(column).where(func.instr(column, "\0") > 0).limit(1))
        if found is not None:
            prune = naming_ledger("`claude-batch ledger prune RUN`", file)
            raise LedgerError(
                f"the ledger {file} has the key {found!r}, whose NUL character PostgreSQL cannot "
                "store; nothing was changed. The ledger can move once that run is delivered and "
                f"removed, with: {prune}"
            )
    for what, column in (
        ("an actor's name", runs.c.actor),
        ("a key of an actor", call_keys.c.actor + "/" + call_keys.c.key),
        ("betas", lanes.c.betas),
    ):
        size = func.length(cast(column, LargeBinary))
        found = tx.execute(select(column, size).where(size > 2 * LONGEST_CALL_KEY).limit(1)).first()
        if found is not None:
            raise LedgerError(
                f"the ledger {file} has {what}, {found[0][:40]!r}…, of {found[1]:,} bytes, too "
                "long for an index of PostgreSQL; nothing was changed. Go on with the file"
            )


def _settle(tx: Connection, workspace_ids: Iterable[int]) -> int:
    """Record what dead drivers have interrupted, as the next driver would; return lost live calls.

    A sending that the API may have accepted becomes unknown. To decide it needs the key, so that is
    left to the driver on the server.
    """
    lost = 0
    for workspace_id in workspace_ids:
        submissions.begin_epoch(tx, workspace_id)
        lost += live_calls.interrupted(tx, workspace_id)
        submissions.settle_interrupted(tx, workspace_id, now=now_in(tx))
    return lost


# To the server ------------------------------------------------------------------------------------

_COPIED = [table for table in metadata.sorted_tables if table is not meta]


def _fill(server: Backend, source: Connection, ledger: Ledger) -> str:
    """Create and commit the ledger on the server, as arriving; return its incarnation."""
    incarnation = new_incarnation()
    facts = queries.metadata_of(source)
    with server.writing() as tx:
        # A link that is cut must not keep the server's lock for hours.
        for name, value in (("idle", 10), ("interval", 5), ("count", 3)):
            tx.exec_driver_sql(f"SET LOCAL tcp_keepalives_{name} = {value}")
        _make_room(server, tx, facts["salt"], ledger.backend.address)
        server.create(tx)
        for table in _COPIED:
            copy_table(tx, table, _rows_of(table, source))
            reach(CrashPoint.DURING_ARRIVAL)
            if (serial := table.autoincrement_column) is not None:
                words = "SELECT setval(pg_get_serial_sequence(:table, :column), :last)"
                names = {"table": table.name, "column": serial.name}
                last = tx.scalar(select(func.max(serial)))
                if last is not None:
                    tx.execute(text(words), {**names, "last": last})
            # Until the server's own statistics come, it would plan for empty tables.
            tx.exec_driver_sql(f"ANALYZE {table.name}")
        facts |= {
            "incarnation": incarnation,
            "former_incarnations": " ".join(sorted(ledger.incarnations)),
            ARRIVING_FROM: ledger.backend.address,
            # Now, because a copy from before the first driver may be restored, too.
            "server": server.server(tx),
        }
        tx.execute(insert(meta), [{"name": k, "value": v} for k, v in facts.items()])
    return incarnation


def _rows_of(table: Table, source: Connection) -> Generator[tuple[Any, ...]]:
    # One at a time, and not in pages: a request may have a document of 30 MB in it.
    driver: Any = source.connection.dbapi_connection
    yield from driver.execute(str(select(*table.columns).compile(dialect=source.dialect)))


def _make_room(server: Backend, tx: Connection, salt: str, origin: str) -> None:
    """Remove an empty ledger, or what an interrupted call has left there.

    Raises `LedgerError` for anything else.
    """
    tables = server.tables(tx)
    if not tables:
        return
    facts = queries.metadata_of(tx) if "meta" in tables else {}
    if ARRIVING_FROM in facts:
        has = f"a ledger that is arriving from {facts[ARRIVING_FROM]}"
        is_free = (facts[ARRIVING_FROM], facts["salt"]) == (origin, salt)
    else:
        has = "a ledger" if facts else "tables of another program"
        # Any command that only reads has created one.
        is_free = bool(facts) and all(
            tx.execute(select(table).limit(1)).first() is None
            for table in _COPIED
            if table.name in tables
        )
    if not is_free:
        raise LedgerError(
            f"{server.location} has {has} already; nothing was changed. Name another schema, with "
            "?schema=NAME in the URL"
        )
    metadata.drop_all(tx)


def _raise_mark(facts: Mapping[str, str]) -> None:
    """Raise the high-water mark of a file that has moved; ``facts`` are those of the file.

    A backup of the file that is put in its place is behind this mark from then on, and its recovery
    counts from the last sending.
    """
    known = frozenset((facts["incarnation"], *facts.get("former_incarnations", "").split()))
    posts = int(facts.get("posts", "0"))
    note_move(identity_of(facts["salt"]), known, facts[MOVED_AS], posts, facts[MOVED_TO])


def _arrive(server: Backend, file: str, facts: Mapping[str, str]) -> None:
    """Remove the mark of the ledger that a moved file has become."""
    with server.writing() as tx:
        there = queries.metadata_of(tx) if "meta" in server.tables(tx) else {}
        known = {there.get("incarnation"), *there.get("former_incarnations", "").split()}
        if facts[MOVED_AS] not in known:
            raise LedgerError(
                f"the ledger {file} was moved to {facts[MOVED_TO]}, and {server.location} does not "
                "have it; nothing was changed"
            )
        drop_meta(tx, ARRIVING_FROM)
