"""Steps of commands that show a ledger while another command changes it."""

from __future__ import annotations

import signal
import threading
from itertools import pairwise
from typing import Any
from unittest import mock

from behave import then, when
from behave.runner import Context
from cli_steps import command, spawn
from staging import until

from claude_batch.ledger.store import Ledger
from claude_batch.providers.progress_reports import without_times


@when("a command runs in the background: {words}")
def _(context: Context, words: str) -> None:
    context.process = spawn(context, words.replace("RUN", context.run_id))
    context.lines = []

    def read() -> None:
        context.lines.extend(iter(context.process.stdout.readline, ""))

    context.reader = threading.Thread(target=read, daemon=True)
    context.reader.start()


@then('the command in the background has printed "{words}"')
def _(context: Context, words: str) -> None:
    words = words.replace("RUN", context.run_id)
    assert until(lambda: any(words in line for line in context.lines)), context.lines


@when("the command in the background gets {name}")
def _(context: Context, name: str) -> None:
    context.process.send_signal(getattr(signal, name))


@then("the command in the background ends with {code:d}")
def _(context: Context, code: int) -> None:
    assert context.process.wait(30) == code, context.process.stderr.read()
    context.reader.join(10)
    assert context.process.stderr.read() == ""


@then("it has printed no line twice, whatever the time")
def _(context: Context) -> None:
    lines = [without_times(line) for line in context.lines]
    assert all(a != b for a, b in pairwise(lines)), context.lines


@then("the terminal was drawn again in place, and shows")
def _(context: Context) -> None:
    assert "\x1b[1A" in context.shown, ascii(context.shown)  # the cursor went up
    for line in context.text.replace("RUN", context.run_id).split("\n"):
        # A report of failures cannot hold the terminal's codes.
        assert line in context.shown, f"{line!r} is not in:\n{context.shown!a}"


@then("the ledger is read in {count:d} transaction by the command: {words}")
def _(context: Context, count: int, words: str) -> None:
    real, begun = Ledger.read, []

    def read(ledger: Ledger) -> Any:
        begun.append(ledger)
        return real(ledger)

    with mock.patch.object(Ledger, "read", read):
        command(context, words)
    assert context.ended.exit_code == 0, context.ended.output
    # Opening a ledger reads its version.
    assert len(begun) - 1 == count, len(begun)
