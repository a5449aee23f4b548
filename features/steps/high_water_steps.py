"""Steps of the high-water mark: backups, restored and copied ledgers, and their recovery."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import stat
import threading
import time
from contextlib import closing
from pathlib import Path

import programs
from behave import then, when
from behave.runner import Context
from cli_steps import command
from filelock import FileLock
from sqlalchemy import insert, update
from staging import writing

from claude_batch.core.errors import LedgerError
from claude_batch.ledger.high_water import HighWater, count_post, read_mark
from claude_batch.ledger.schema import params, workspaces
from claude_batch.ledger.store import Ledger

DIE = """
import os, sys
from claude_batch.core import crash_points
from claude_batch.cli import main

point, _, times = sys.argv.pop(1).partition(":")
left = int(times or 1)

def die(reached):
    global left
    if reached == point:
        left -= 1
        if not left:
            os._exit(9)

crash_points.on_reach = die
main()
"""


def location() -> Path:
    return Path(os.environ["CLAUDE_BATCH_LEDGER"])


def opened(context: Context, path: Path | None = None) -> Ledger:
    ledger = Ledger(str(path or location()))
    context.add_cleanup(ledger.close)
    return ledger


@when("a command waits {seconds:f} seconds")
def _(context: Context, seconds: float) -> None:
    time.sleep(seconds)


@when("a command's ledger may send at once")
def _(context: Context) -> None:
    """What a 529 asked to wait for is over."""
    with writing() as tx:
        tx.execute(update(workspaces).values(wait_until=None))


@when('a command\'s ledger is replaced by "{name}"')
def _(context: Context, name: str) -> None:
    # As a file of its own: SQLite takes one that is written over for the one that it knew.
    for suffix in ("", "-wal", "-shm"):
        Path(f"{location()}{suffix}").unlink(missing_ok=True)
    if name != "nothing":
        shutil.copy(name, location())


@when("a command's ledger is recovered on order")
def _(context: Context) -> None:
    context.execute_steps(
        """
        When a command runs: ledger recover --even-if-whole
        And a command waits 0.2 seconds
        And a command runs: ledger recover
        Then the command line exits with 0
        """
    )


@when("the ledger was found to be behind an hour ago")
def _(context: Context) -> None:
    ledger = opened(context)
    with ledger.write() as tx:
        tx.execute(update(workspaces).values(behind=ledger.now() - 3600.0))
    ledger.close()


@then("the API has taken {count:d} batches, and processed no request twice")
def _(context: Context, count: int) -> None:
    bill = context.api.billing_summary()
    assert bill["batches"] == count and bill["processed_more_than_once"] == 0, bill
    assert bill["paid_more_than_once"] == 0, bill


@when("the API's clock goes {hours:d} hours on")
def _(context: Context, hours: int) -> None:
    context.api.advance_clock(3600.0 * hours)


@when("a command's process dies at {point}: {words}")
def _(context: Context, point: str, words: str) -> None:
    words = words.replace("RUN", getattr(context, "run_id", "RUN"))
    done = programs.run(DIE, point, *shlex.split(words))
    assert done.returncode == 9, (done.returncode, done.stderr)


def marks() -> list[Path]:
    found = list(Path(os.environ["CLAUDE_BATCH_STATE_DIR"]).glob("high-water-*.json"))
    assert found
    return found


@when("the high-water marks are {what}")
def _(context: Context, what: str) -> None:
    for mark in marks():
        assert stat.S_IMODE(mark.stat().st_mode) == 0o600
        aside = mark.with_suffix(".aside")
        if what == "lost":
            mark.unlink()
        elif what == "kept aside":
            aside.write_bytes(mark.read_bytes())
        elif what == "put back":
            mark.write_bytes(aside.read_bytes())
        else:
            assert what.startswith("overwritten with "), what
            mark.write_text(what.removeprefix("overwritten with "))


@then("the high-water mark has the API's time")
def _(context: Context) -> None:
    # The time of the machine does not tell how long ago that was, if its clock is set meanwhile.
    [mark] = map(read_mark, marks())
    assert mark is not None and mark.at is not None, mark


@then("of two copies that count a POST at the same moment the second is refused")
def _(context: Context) -> None:
    copy = context.tmp / "same.db"
    first = opened(context)
    first.backup(copy)
    numbers: list[int] = []
    both = (first, opened(context, copy))
    for ledger in both:
        with ledger.write() as tx:
            numbers.append(count_post(tx))
    assert numbers[0] == numbers[1]
    answers = [HighWater(each).raise_to(numbers[0], sending=True) for each in both]
    assert answers == [True, False], answers


@then("five copies that are made while another thread writes are whole")
def _(context: Context) -> None:
    ledger = opened(context)
    done = threading.Event()

    def write() -> None:
        number = 1000
        while not done.is_set():
            with ledger.write() as tx:
                # Two rows in one transaction: a copy has both or neither.
                rows = [{"request_seq": number + n, "body": os.urandom(5000)} for n in (0, 1)]
                tx.execute(insert(params), rows)
            number += 2

    thread = threading.Thread(target=write)
    thread.start()
    copies = [context.tmp / f"busy-{number}.db" for number in range(5)]
    for copy in copies:
        time.sleep(0.05)
        ledger.backup(copy)
    done.set()
    thread.join()
    for copy in copies:
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            [(rows,)] = connection.execute("SELECT count(*) FROM params WHERE request_seq >= 1000")
            assert rows % 2 == 0, rows


@when("a command runs while another process holds its leader lock: {words}")
def _(context: Context, words: str) -> None:
    with FileLock(f"{location()}.seat-1"):
        command(context, words)


@when("a ledger is recovered while a process has it open")
def _(context: Context) -> None:
    context.open = opened(context)
    command(context, "ledger recover --even-if-whole")
    time.sleep(0.2)
    command(context, "ledger recover")
    assert context.ended.exit_code == 0, context.errors


@then("what that process writes is refused: {words}")
def _(context: Context, words: str) -> None:
    try:
        with context.open.write():
            raise AssertionError("it may still write")
    except LedgerError as error:
        assert words in str(error), error
