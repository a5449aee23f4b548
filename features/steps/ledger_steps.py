"""Steps of the ledger: opening, transactions, seats and workspaces."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import func, insert, select, update
from tables import rule

from claude_batch.core.errors import ActorError, LedgerError
from claude_batch.core.ids import new_request_id
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.ledger import enqueue, halts, submissions
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.schema import lanes, meta, requests, runs, workspaces
from claude_batch.ledger.store import Deposed, Ledger, Seat, insert_many
from claude_batch.lifecycle.packer import pack_due


def opened(context: Context, location: str) -> Ledger:
    ledger = Ledger(location)
    context.add_cleanup(ledger.close)
    return ledger


@when("a ledger is opened in a folder that does not exist yet")
def _(context: Context) -> None:
    context.path = context.tmp / "new" / "deep" / "ledger.db"
    context.ledger = opened(context, str(context.path))


@when("a ledger is opened whose new file another one is about to write")
def _(context: Context) -> None:
    path = context.tmp / "ledger.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    context.let_go = threading.Event()

    def leave() -> None:
        context.let_go.set()
        other.rollback()
        other.close()

    timer = threading.Timer(0.2, leave)
    timer.start()
    context.ledger = opened(context, str(path))
    timer.join()


@then("it has waited, and is a ledger")
def _(context: Context) -> None:
    assert context.let_go.is_set()
    with context.ledger.read() as tx:
        assert tx.scalar(select(func.count()).select_from(meta)), "it has no facts"


@then("its file and folder are the owner's alone")
def _(context: Context) -> None:
    assert stat.S_IMODE(context.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(context.path.parent.stat().st_mode) == 0o700


@then("opening it again gives the same incarnation")
def _(context: Context) -> None:
    again = opened(context, str(context.path))
    assert again.incarnation == context.ledger.incarnation
    assert len(again.incarnation) == 8


@given("a file that is {what}")
def _(context: Context, what: str) -> None:
    context.path = context.tmp / "file.db"
    if what == "no database":
        context.path.write_text("this is no database, it is a letter to a friend\n" * 100)
    elif what == "somebody else's database":
        with sqlite3.connect(context.path) as connection:
            connection.execute("CREATE TABLE music (title TEXT)")
        connection.close()
    else:
        ledger = Ledger(str(context.path))
        with ledger.write() as tx:
            tx.execute(update(meta).where(meta.c.name == "schema_version").values(value="999"))
        ledger.close()
    context.before = tables(context.path)


def tables(path: Path) -> object:
    if path.read_bytes().startswith(b"SQLite format"):
        with sqlite3.connect(path) as connection:
            found = connection.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
        connection.close()
        return found
    return path.read_bytes()


@when("it is opened as a ledger")
def _(context: Context) -> None:
    open_badly(context, str(context.path))


@rule("locations are opened as ledgers")
def _(context: Context, location: str) -> Ledger:
    try:
        return opened(context, location)
    except ActorError as error:
        assert isinstance(error, LedgerError), repr(error)
        raise


def open_badly(context: Context, location: str) -> None:
    try:
        Ledger(location)
    except LedgerError as error:
        context.error = error
    else:
        raise AssertionError(f"{location} was opened")


@then('the ledger error says "{words}"')
def _(context: Context, words: str) -> None:
    assert words in str(context.error), context.error


@then("the file is as it was")
def _(context: Context) -> None:
    assert tables(context.path) == context.before


@when("a ledger is opened by its URL")
def _(context: Context) -> None:
    context.path = context.tmp / "by-url.db"
    context.ledger = opened(context, f"sqlite:///{context.path}")


@then("it has a path beside which other files can lie")
def _(context: Context) -> None:
    assert context.path.exists()
    assert context.ledger.backend.address == str(context.path.resolve())


@given("an open ledger")
def _(context: Context) -> None:
    context.ledger = opened(context, str(context.tmp / "ledger.db"))


def new_run(ledger: Ledger, workspace_id: int) -> str:
    with ledger.write() as tx:
        lane = enqueue.ensure_lane(tx, workspace_id, "2026-10-21", "", "")
        run_id = enqueue.begin_run(
            tx,
            NewRun(
                kind="calls",
                actor="tests/one",
                workspace_id=workspace_id,
                mode=BatchProcessingMode(),
                created=time.time(),
            ),
        )
        request = NewRequest(new_request_id(), 0, None, lane, b"{}")
        enqueue.add_requests(tx, run_id, [request], created=0.0, due=0.0)
    return run_id


@when("a transaction writes and then fails")
def _(context: Context) -> None:
    try:
        with context.ledger.write() as tx:
            enqueue.ensure_workspace(tx, "http://x/", "aa")
            raise RuntimeError("midway")
    except RuntimeError:
        pass


@then("nothing of it is in the ledger")
def _(context: Context) -> None:
    with context.ledger.read() as tx:
        assert tx.scalar(select(func.count()).select_from(workspaces)) == 0


@given("a driver that has lost its seat to another")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        workspace_id = enqueue.ensure_workspace(tx, "http://x/", "aa")
        context.seat = Seat(workspace_id, submissions.take_seat(tx, workspace_id))
        submissions.take_seat(tx, workspace_id)


@when("it writes")
def _(context: Context) -> None:
    try:
        with context.ledger.write(context.seat) as tx:
            enqueue.ensure_workspace(tx, "http://x/", "bb")
        context.deposed = False
    except Deposed:
        context.deposed = True


@then("it is told that it was deposed, and nothing is written")
def _(context: Context) -> None:
    assert context.deposed
    with context.ledger.read() as tx:
        assert tx.scalar(select(func.count()).select_from(workspaces)) == 1


@then("the watch is quiet until another connection commits")
def _(context: Context) -> None:
    watch = context.ledger.watch()
    assert not watch.changed()
    with context.ledger.read() as tx:
        tx.execute(select(meta)).all()
    assert not watch.changed()
    with context.ledger.write() as tx:
        enqueue.ensure_workspace(tx, "http://x/", "aa")
    assert watch.changed()
    assert not watch.changed()
    watch.close()


@then("equal credentials have equal fingerprints, and others have others")
def _(context: Context) -> None:
    one, same = context.ledger.fingerprint("sk-one"), context.ledger.fingerprint("sk-one")
    assert one == same != context.ledger.fingerprint("sk-two")
    assert "sk-one" not in one
    other = opened(context, str(context.tmp / "other.db"))
    assert other.fingerprint("sk-one") != one


@when("two keys turn out to belong to one workspace")
def _(context: Context) -> None:
    ledger = context.ledger
    with ledger.write() as tx:
        first = enqueue.ensure_workspace(tx, "http://x/", "aa")
        second = enqueue.ensure_workspace(tx, "http://x/", "bb")
    assert first != second
    context.runs = [new_run(ledger, first), new_run(ledger, second)]
    with ledger.write() as tx:
        enqueue.ensure_lane(tx, second, "2023-06-01", "", "")
        assert enqueue.name_workspace(tx, first, "aa", "wrkspc_1") == first
        assert enqueue.name_workspace(tx, first, "aa", "wrkspc_1") == first
        assert enqueue.name_workspace(tx, second, "bb", "wrkspc_1") == first
        assert enqueue.ensure_workspace(tx, "http://x/", "bb") == first


@then("what waited under the second is in the lanes of the first")
def _(context: Context) -> None:
    with context.ledger.read() as tx:
        assert len(set(tx.scalars(select(requests.c.lane_id)))) == 1
        assert len(set(tx.scalars(select(runs.c.workspace_id)))) == 1
        assert len(set(tx.scalars(select(lanes.c.workspace_id)))) == 1
        assert len(tx.scalars(select(lanes.c.id)).all()) == 2


@when("a key turns out to belong to another workspace than before")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        context.old = enqueue.ensure_workspace(tx, "http://x/", "aa")
        enqueue.name_workspace(tx, context.old, "aa", "wrkspc_1")
        context.now = enqueue.name_workspace(tx, context.old, "aa", "wrkspc_2")


@then("it has a workspace of its own from now on")
def _(context: Context) -> None:
    assert context.now != context.old
    with context.ledger.write() as tx:
        assert enqueue.ensure_workspace(tx, "http://x/", "aa") == context.now


def refuse(context: Context) -> None:
    with context.ledger.write() as tx:
        context.refused = enqueue.ensure_workspace(tx, "http://x/", "aa")
        context.works = enqueue.ensure_workspace(tx, "http://x/", "bb")
        halts.halt(
            tx,
            context.refused,
            reason="credentials",
            error_type=None,
            message="no",
            now=1.0,
            interval=300.0,
        )
    context.run_id = new_run(context.ledger, context.refused)


def home_of(context: Context) -> int:
    with context.ledger.read() as tx:
        return tx.execute(
            select(lanes.c.workspace_id)
            .join(requests, requests.c.lane_id == lanes.c.id)
            .where(requests.c.run_id == context.run_id)
        ).scalar_one()


@when("requests wait under a refused key, and another key turns out to work")
def _(context: Context) -> None:
    refuse(context)
    with context.ledger.write() as tx:
        context.seat = Seat(context.refused, submissions.take_seat(tx, context.refused))
        enqueue.adopt_refused(tx, context.works)


@then("they wait in the workspace of the key that works, and the refused driver is fenced")
def _(context: Context) -> None:
    assert home_of(context) == context.works
    with context.ledger.read() as tx:
        moved = tx.execute(select(runs.c.workspace_id)).scalar_one()
    assert moved == context.works
    try:
        with context.ledger.write(context.seat):
            raise AssertionError("the refused driver may still write")
    except Deposed:
        pass


@when("a batch was sent under a key that was refused later, and another key turns out to work")
def _(context: Context) -> None:
    refuse(context)
    with context.ledger.write() as tx:
        seat = Seat(context.refused, submissions.take_seat(tx, context.refused))
    [batch_id], _later = pack_due(context.ledger, seat, time.time())
    with context.ledger.write(seat) as tx:
        submissions.intend(tx, batch_id, snapshot=[], server_time=0.0, now=1.0)
        submissions.mark_unknown(tx, batch_id, note="no answer", now=1.0)
        enqueue.adopt_refused(tx, context.works)


@then("it stays where it was")
def _(context: Context) -> None:
    assert home_of(context) == context.refused


@then("an insert of many rows with other columns is refused")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        rows = [(f"name-{n}", str(n)) for n in range(601)]
        insert_many(tx, insert(meta), rows)
        stored = select(meta.c.name, meta.c.value).where(meta.c.name.startswith("name-"))
        assert sorted(map(tuple, tx.execute(stored))) == sorted(rows)
        try:
            insert_many(tx, insert(meta), [("c",)])
        except Exception as error:
            assert "binding" in str(error).lower(), error
        else:
            raise AssertionError("a row with a missing column was taken")


@when("the process opens the ledger once more and closes it")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        context.home = enqueue.ensure_workspace(tx, "http://x/", "aa")
    Ledger(context.ledger.location).close()


@when("another process opens the ledger and closes it")
def _(context: Context) -> None:
    in_another_process(context, "pass")


@then("what the ledger still writes is kept, and others read it")
def _(context: Context) -> None:
    # The last connection takes the log away: it must not be taken from under ours.
    assert Path(f"{context.ledger.backend.address}-wal").exists()
    new_run(context.ledger, context.home)
    in_another_process(
        context,
        "from claude_batch.ledger import queries\n"
        "with ledger.read() as tx:\n"
        "    assert len(queries.recent_runs(tx)) == 1",
    )


def in_another_process(context: Context, code: str) -> None:
    program = (
        "from claude_batch.ledger.store import Ledger\n"
        f"ledger = Ledger({context.ledger.location!r})\n{code}\nledger.close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
