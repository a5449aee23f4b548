"""Steps of the ledger: opening, transactions, leader locks and workspaces."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import stat
import threading
import time
from pathlib import Path
from unittest import mock

import programs
from behave import given, then, when
from behave.runner import Context
from sqlalchemy import RootTransaction, func, insert, literal, select, update
from tables import rule

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import ActorError, LedgerError
from claude_batch.core.ids import new_request_ids
from claude_batch.ledger import enqueue, submissions, workspaces
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.schema import SCHEMA_VERSION, meta
from claude_batch.ledger.schema import workspaces as workspaces_table
from claude_batch.ledger.store import Deposed, Leader, Ledger, insert_many
from claude_batch.lifecycle.packer import pack_due


def opened(context: Context, location: str) -> Ledger:
    ledger = Ledger(location)
    context.add_cleanup(ledger.close)
    return ledger


@given("a file that is {what}")
def _(context: Context, what: str) -> None:
    context.path = context.tmp / "file.db"
    if what == "empty":
        context.path.touch()
    elif what == "no database":
        context.path.write_text("this is no database, it is a letter to a friend\n" * 100)
    elif what == "somebody else's database":
        with contextlib.closing(sqlite3.connect(context.path)) as connection:
            connection.execute("CREATE TABLE music (title TEXT)")
    else:
        ledger = Ledger(str(context.path))
        with ledger.write() as tx:
            tx.execute(update(meta).where(meta.c.name == "schema_version").values(value="999"))
        ledger.close()
    context.before = context.path.read_bytes()


@when("it is opened as a ledger")
def _(context: Context) -> None:
    try:
        context.ledger = opened(context, str(context.path))
        context.error = None
    except LedgerError as error:
        context.error = error


@when("a ledger is opened whose new file another one is about to write")
def _(context: Context) -> None:
    context.path = context.tmp / "ledger.db"
    other = sqlite3.connect(context.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")

    def leave() -> None:
        other.rollback()
        other.close()

    timer = threading.Timer(0.2, leave)
    timer.start()
    context.execute_steps("When it is opened as a ledger")
    assert not timer.is_alive(), "it has not waited"


@rule("locations are opened as ledgers")
def _(context: Context, location: str) -> dict[str, str]:
    location = location.replace("FOLDER", str(context.tmp))
    try:
        ledger = opened(context, location)
    except ActorError as error:
        assert isinstance(error, LedgerError), repr(error)
        raise
    incarnation = opened(context, location).incarnation
    assert incarnation == ledger.incarnation and len(incarnation) == 8
    file = Path(ledger.backend.address)
    return {
        "file": str(file.relative_to(context.tmp.resolve())),
        "mode_of_the_file": oct(stat.S_IMODE(file.stat().st_mode)),
        "mode_of_its_folder": oct(stat.S_IMODE(file.parent.stat().st_mode)),
    }


@then('the ledger error says "{words}"')
def _(context: Context, words: str) -> None:
    assert words in str(context.error), context.error


@given("an open ledger")
def _(context: Context) -> None:
    context.ledger = opened(context, str(context.tmp / "ledger.db"))


@rule("writes to a ledger end")
def _(context: Context, drives: bool, deposed: bool, migrated: bool, fails: bool) -> dict[str, str]:
    """A write by a process that drives or does not, with what befalls it before and meanwhile."""
    ledger = opened(context, str(context.tmp / f"{drives}-{deposed}-{migrated}-{fails}.db"))
    with ledger.write() as tx:
        workspace_id = workspaces.ensure_workspace(tx, "http://x/", "aa")
        leader = Leader(workspace_id, submissions.begin_epoch(tx, workspace_id))
        if deposed:
            submissions.begin_epoch(tx, workspace_id)
    version = update(meta).where(meta.c.name == "schema_version")
    with ledger.write() as tx:
        tx.execute(version.values(value="999" if migrated else str(SCHEMA_VERSION)))
    ends = ""
    try:
        with ledger.write(leader if drives else None) as tx:
            workspaces.ensure_workspace(tx, "http://x/", "bb")
            if fails:
                raise ZeroDivisionError
    except (Deposed, LedgerError, ZeroDivisionError) as error:
        ends = f"{type(error).__name__} {error}"
    with ledger.read() as tx:
        stored = tx.scalar(select(func.count()).select_from(workspaces_table)) == 2
    return {"with": ends, "is_stored": "yes" if stored else "no"}


@then("a write succeeds while the interrupt of another write's {part} is handled")
def _(context: Context, part: str) -> None:
    """Ctrl-C within a statement, as SQLite runs it: a timer sends the signal."""
    numbers = select(literal(1).label("n")).cte(recursive=True)
    numbers = numbers.union_all(select(numbers.c.n + 1).where(numbers.c.n < 3_000_000))
    slow = select(numbers.c.n).where(numbers.c.n > 2_999_990)
    context.ledger.hurry(1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    commit = mock.patch.object(RootTransaction, "_do_commit", side_effect=KeyboardInterrupt)
    try:
        with commit if part == "commit" else contextlib.nullcontext(), context.ledger.write() as tx:
            if part == "statement":
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                tx.execute(slow)
    except KeyboardInterrupt:
        with context.ledger.write() as tx:
            workspaces.ensure_workspace(tx, "http://x/", "aa")
    else:
        raise AssertionError("the write ended before the interrupt")
    finally:
        signal.signal(signal.SIGALRM, before)


@then("the watch is quiet until another connection commits")
def _(context: Context) -> None:
    watch = context.ledger.watch()
    assert not watch.changed()
    with context.ledger.read() as tx:
        tx.execute(select(meta)).all()
    assert not watch.changed()
    with context.ledger.write() as tx:
        workspaces.ensure_workspace(tx, "http://x/", "aa")
    assert watch.changed()
    assert not watch.changed()
    watch.close()


@rule("the fingerprints of two credentials are")
def _(context: Context, one: str, other: str, ledger: str) -> dict[str, bool]:
    first = context.ledger.fingerprint(one)
    second = opened(context, str(context.tmp / ledger)).fingerprint(other)
    assert one not in first and other not in second
    return {"equal": first == second}


@when('a run is stored under the key "{key}"')
@when('a run is stored under the key "{key}" and the version {version}')
def _(context: Context, key: str, version: str = "2026-10-21") -> None:
    with context.ledger.write() as tx:
        workspace_id = workspaces.ensure_workspace(tx, "http://x/", key)
        lane = enqueue.ensure_lane(tx, workspace_id, version, "", "")
        run = NewRun(
            kind="calls",
            actor="tests/one",
            workspace_id=workspace_id,
            mode=BatchProcessingMode(),
            created=time.time(),
        )
        run_id = enqueue.begin_run(tx, run)
        request = NewRequest(new_request_ids(1)[0], 0, None, lane, b"{}")
        enqueue.add_requests(tx, run_id, [request], created=0.0, due=0.0)


@when('the key "{key}" turns out to belong to the workspace "{name}"')
def _(context: Context, key: str, name: str) -> None:
    with context.ledger.write() as tx:
        workspace_id = workspaces.ensure_workspace(tx, "http://x/", key)
        context.home = workspaces.name_workspace(tx, workspace_id, key, name)
        assert workspaces.ensure_workspace(tx, "http://x/", key) == context.home


@when('a batch of the key "{key}" is sent without an answer')
def _(context: Context, key: str) -> None:
    with context.ledger.write() as tx:
        workspace_id = workspaces.ensure_workspace(tx, "http://x/", key)
        leader = Leader(workspace_id, submissions.begin_epoch(tx, workspace_id))
    [batch_id], _later = pack_due(context.ledger, leader, time.time())
    with context.ledger.write(leader) as tx:
        submissions.intend(tx, batch_id, snapshot=[], server_time=0.0, now=1.0)
        submissions.mark_unknown(tx, batch_id, note="no answer", now=1.0)


@when('the key "{refused}" is refused, and the key "{works}" works')
def _(context: Context, refused: str, works: str) -> None:
    halt = {"reason": "credentials", "error_type": None, "message": "no"}
    with context.ledger.write() as tx:
        workspace_id = workspaces.ensure_workspace(tx, "http://x/", refused)
        workspaces.halt(tx, workspace_id, now=1.0, interval=300.0, **halt)
        workspaces.adopt_refused(tx, workspaces.ensure_workspace(tx, "http://x/", works))


@rule("many rows are inserted at once")
def _(context: Context, rows: int, columns: int) -> dict[str, int]:
    values = [(f"name-{n}", str(n))[:columns] for n in range(rows)]
    stored = select(meta.c.name, meta.c.value).where(meta.c.name.startswith("name-"))
    with context.ledger.write() as tx:
        try:
            insert_many(tx, insert(meta), values)
        except Exception as error:
            raise ValueError(str(error).lower()) from error
        assert sorted(map(tuple, tx.execute(stored))) == sorted(values)
    return {"stored": len(values)}


@when("{process} process opens the ledger and closes it")
def _(context: Context, process: str) -> None:
    if process == "this":
        Ledger(context.ledger.location).close()
    else:
        _in_another_process(context, "pass")


@then("what the ledger still writes is kept, and others read it")
def _(context: Context) -> None:
    # The last connection takes the log away: it must not be taken from under ours.
    assert Path(f"{context.ledger.backend.address}-wal").exists()
    context.execute_steps('When a run is stored under the key "aa"')
    _in_another_process(
        context,
        "from claude_batch.ledger import queries\n"
        "with ledger.read() as tx:\n"
        "    assert len(queries.recent_runs(tx, 2)) == 1",
    )


def _in_another_process(context: Context, code: str) -> None:
    done = programs.run(
        "from claude_batch.ledger.store import Ledger\n"
        f"ledger = Ledger({context.ledger.location!r})\n{code}\nledger.close()"
    )
    assert done.returncode == 0, done.stderr
