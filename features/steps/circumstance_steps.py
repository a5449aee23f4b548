"""The step of a command that runs while something happens, or under another limit."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from behave import when
from behave.runner import Context
from cli_steps import all_runs, command, spawn
from staging import until

import claude_batch as cb
from claude_batch.cli import run_command, run_delivery
from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.states import RunState
from claude_batch.lifecycle import engine


class _Swallows:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def _interrupted_while_it_waits(_: Context) -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    sending = mock.patch.object(cb.Run, "wait_until_sent_sync", interrupt)
    with mock.patch.object(run_delivery, "_wait", interrupt), sending:
        yield


@contextmanager
def _interrupted_at(point: CrashPoint) -> Iterator[None]:
    def interrupt(reached: CrashPoint) -> None:
        if reached is point:
            signal.raise_signal(signal.SIGINT)

    with mock.patch.object(crash_points, "on_reach", interrupt):
        yield


@contextmanager
def _interrupted_in_live_calls(_: Context) -> Iterator[None]:
    def calls() -> int:
        sessions = [
            session
            for each in [*engine._engines.values()]
            for session in [*each._sessions.values()]
        ]
        return sum(session.driver.live_calls for session in sessions)

    def interrupt() -> None:
        until(lambda: calls() == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


@contextmanager
def _interrupted_where_python_ignores_it(_: Context) -> Iterator[None]:
    real = run_delivery.display

    def display() -> Any:
        _Swallows()
        return real()

    ignored: list[Any] = []
    swallowing = mock.patch("sys.unraisablehook", ignored.append)
    with mock.patch.object(run_delivery, "display", display), swallowing:
        yield
    assert [each.exc_type for each in ignored] == [KeyboardInterrupt], ignored


@contextmanager
def _interrupted_while_it_reads_a_pipe(_: Context) -> Iterator[None]:
    os.mkfifo("asks.jsonl")
    done = threading.Event()

    def feed() -> None:
        with open("asks.jsonl", "w") as pipe:  # returns once the command has opened its end
            pipe.write('"half of it"\n')
            pipe.flush()
            os.kill(os.getpid(), signal.SIGINT)
            done.wait(20)

    thread = threading.Thread(target=feed)
    thread.start()
    yield
    done.set()
    thread.join()


@contextmanager
def _reading_a_pipe_that_is_slow(_: Context) -> Iterator[None]:
    os.mkfifo("slow.jsonl")
    held = Path("asks.jsonl").read_text()

    def feed() -> None:
        with open("slow.jsonl", "w") as pipe:
            time.sleep(1.5)  # in which a driver could send what waits
            pipe.write(held)

    thread = threading.Thread(target=feed)
    thread.start()
    yield
    thread.join()


@contextmanager
def _output_turns_into_a_folder(_: Context) -> Iterator[None]:
    """Between the check before anything is sent, and the writing."""
    real = run_delivery.write_output

    def late(answers: Any, output: str | None, *form: Any, **more: Any) -> bool:
        Path("out.jsonl").mkdir(exist_ok=True)
        return real(answers, output, *form, **more)

    with mock.patch.object(run_delivery, "write_output", late):
        yield


def _waiting_fails(error: Exception) -> AbstractContextManager[Any]:
    return mock.patch.object(cb.Run, "wait_sync", side_effect=error)


@contextmanager
def _another_process_waits(context: Context) -> Iterator[None]:
    other = spawn(context, f"resume {context.run_id}")
    until(lambda: all_runs()[0].state is RunState.RUNNING)
    yield
    other.terminate()
    assert other.wait(20) == 3


@contextmanager
def _ten_at_a_time(_: Context) -> Iterator[None]:
    chunk = mock.patch("claude_batch.providers.run_writer.CHUNK_REQUESTS", 10)
    with chunk, mock.patch.object(run_command, "LINES_APART", 0.0):
        yield


CIRCUMSTANCES: dict[str, Callable[[Context], AbstractContextManager[Any]]] = {
    "interrupted while it waits": _interrupted_while_it_waits,
    "interrupted before the run is whole": lambda _: _interrupted_at(CrashPoint.BEFORE_STORED),
    "interrupted once the run is stored": lambda _: _interrupted_at(CrashPoint.AFTER_STORED),
    "interrupted once its live calls are sent": _interrupted_in_live_calls,
    "interrupted where Python ignores what is raised": _interrupted_where_python_ignores_it,
    'interrupted while it reads the pipe "asks.jsonl"': _interrupted_while_it_reads_a_pipe,
    'whose pipe "slow.jsonl" gives the lines of "asks.jsonl" late': _reading_a_pipe_that_is_slow,
    'while the file "out.jsonl" turns into a folder': _output_turns_into_a_folder,
    "while waiting fails with LedgerError": lambda _: _waiting_fails(cb.LedgerError("it broke")),
    "while waiting fails with ZeroDivisionError": lambda _: _waiting_fails(
        ZeroDivisionError("it broke")
    ),
    "while another process waits for the run": _another_process_waits,
    "where no sandbox is installed": lambda _: mock.patch.dict(
        sys.modules, {"claude_batch.sandbox": None}
    ),
    "with at most 100 bytes a batch": lambda _: mock.patch(
        "claude_batch.wire.encoding.MAX_BODY_BYTES", 100
    ),
    "storing 10 requests at a time, each step shown": _ten_at_a_time,
}


@when("a command runs, {circumstance}: {words}")
def _(context: Context, circumstance: str, words: str) -> None:
    with CIRCUMSTANCES[circumstance](context):
        command(context, words)
