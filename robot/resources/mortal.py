"""Runs a program that dies: python mortal.py DEATH BREAKAGE PROGRAM [ARGUMENT...].

PROGRAM is `claude-batch`, or the path of a script. DEATH is `POINT:N`: when the program reaches
that point between two effects for the N-th time (`claude_batch.core.crash_points`), it is gone as
a power cut would have it. BREAKAGE spoils the program, so that tests can prove that they would see
it. Both may be `-`, for none. The package itself has no such switches.

python mortal.py --forks BREAKAGE starts such programs as `forks.py` asks for them.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import claude_batch
from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint


def die_at(death: str) -> None:
    """Have this process killed where it reaches a point for the n-th time."""
    name, _, number = death.partition(":")
    point, left, lock = CrashPoint(name), int(number), threading.Lock()

    def reached(here: CrashPoint) -> None:
        nonlocal left
        if here is not point:
            return
        with lock:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    crash_points.on_reach = reached


def end_with_parent() -> None:
    """A storm that is itself killed leaves nobody behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="storm-watch", daemon=True).start()


def send_again_what_is_unknown() -> None:
    """The classic mistake: a POST without an answer is simply made again."""
    from claude_batch.ledger import submissions

    real: Any = submissions.mark_definite_no

    def mark_unknown(tx: Any, batch_id: int, *, note: str, **_: Any) -> None:
        real(tx, batch_id, note=note)

    submissions.mark_unknown = mark_unknown


def take_the_first_fetch_for_all() -> None:
    """Results that end early are taken for complete, and what is missing is asked again."""
    from claude_batch.lifecycle import collection

    collection.COMPLETE_FETCHES = 1
    collection.missing_may_be_billed = lambda *_: False


def leave_out_the_last_line() -> None:
    """The output lacks an answer."""
    from claude_batch.cli import run_delivery

    real: Any = run_delivery.write_output
    run_delivery.write_output = lambda answers, *how, **named: real(
        list(answers)[:-1], *how, **named
    )


def run_every_tool_again(repeatable: bool = True) -> None:
    """A tool that was interrupted is run again, whatever it is."""
    from claude_batch.lifecycle import conversation_driver

    real: Any = conversation_driver.Workbench.tools_of

    def tools_of(self: Any, *run: Any) -> Any:
        tools: Any = real(self, *run)
        for tool in (tools or {}).values():
            tool.repeatable = repeatable
        return tools

    conversation_driver.Workbench.tools_of = tools_of


def note_tools_when_they_have_run() -> None:
    """That a tool starts is written nowhere; only its result is."""
    from claude_batch.ledger import conversations

    begin: Any = conversations.start_call
    finish: Any = conversations.finish_calls
    begun: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def start_call(_: Any, *call: Any, **how: Any) -> bool:
        new = call not in begun
        begun[call] = (call, how)
        return new

    def finish_calls(tx: Any, done: Any, **how: Any) -> None:
        for each in done:
            call, begin_how = begun[each.seq, each.sending, each.tool_use_id]
            begin(tx, *call, **begin_how)
        finish(tx, done, **how)

    conversations.start_call = start_call
    conversations.finish_calls = finish_calls


def run_no_tool_again() -> None:
    """A conversation is given up though its tool may be run again."""
    run_every_tool_again(False)


def call_again_what_was_interrupted() -> None:
    """Live calls that were under way when their process died are made again."""
    from sqlalchemy import select, update

    from claude_batch.core.states import RequestState
    from claude_batch.ledger import live_calls
    from claude_batch.ledger.schema import batches, requests

    def interrupted(tx: Any, _: int) -> int:
        held = select(batches.c.id).where(batches.c.state == "live")
        mine = requests.c.batch_id.in_(held), requests.c.state == RequestState.PACKED
        back = {"state": RequestState.QUEUED, "batch_id": None}
        return tx.execute(update(requests).where(*mine).values(**back)).rowcount

    live_calls.interrupted = interrupted


def call_again_after_any_error() -> None:
    """A live call that ended with a passing error is made again, though it may have been billed."""
    from claude_batch.lifecycle import live_driver

    real: Any = live_driver.outcome_of
    live_driver.outcome_of = lambda answer, _retry, decided: real(answer, "always", decided)


BREAKAGES: dict[str, Callable[[], None]] = {
    "sends-again": send_again_what_is_unknown,
    "fetches-once": take_the_first_fetch_for_all,
    "drops-a-line": leave_out_the_last_line,
    "runs-tools-again": run_every_tool_again,
    "notes-tools-late": note_tools_when_they_have_run,
    "repeats-nothing": run_no_tool_again,
    "calls-again": call_again_what_was_interrupted,
    "calls-after-errors": call_again_after_any_error,
}
"""Each is a build that a storm has to see through."""


NOT_NEEDED = ("__main__", "integrations", "sandbox")


def fork_programs(breakage: str) -> list[str]:
    """Fork a program for each line of standard input; in the fork, give the program's words.

    Prints the fork's process id, and when it has ended the id and its exit code.
    """
    if breakage != "-":
        BREAKAGES[breakage]()  # before others import what it changes
    for module in pkgutil.walk_packages(claude_batch.__path__, "claude_batch."):
        if module.name.split(".")[1] not in NOT_NEEDED:
            importlib.import_module(module.name)
    # The list of prices is imported when the first one is asked for, which takes as long as a short
    # program.
    importlib.import_module("claude_batch.money.prices").prices_of().tariff(
        "claude-haiku-4-5", at=time.time()
    )
    running: set[int] = set()
    while True:
        if select.select([0], [], [], 0.02)[0]:
            asked = sys.stdin.readline()
            if not asked:
                sys.exit()
            words, *streams = json.loads(asked)
            if not (pid := os.fork()):
                os.setsid()
                for number, path in enumerate([os.devnull, *streams]):
                    os.dup2(os.open(path, os.O_WRONLY if number else os.O_RDONLY), number)
                return words
            running.add(pid)
            print(pid, flush=True)
        ended, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if ended:
            running.remove(ended)
            print(ended, os.waitstatus_to_exitcode(status), flush=True)


def main() -> None:
    """Arm the death, break what is to be broken, and become the program."""
    if sys.argv[1] == "--forks":
        sys.argv[1:] = fork_programs(sys.argv[2])
    end_with_parent()
    death, breakage, program = sys.argv[1:4]
    if death != "-":
        die_at(death)
    if breakage != "-":
        BREAKAGES[breakage]()
    sys.argv = sys.argv[3:]
    if program == "claude-batch":
        from claude_batch.cli import main as claude_batch

        claude_batch()
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
