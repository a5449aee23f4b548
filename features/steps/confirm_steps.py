"""Steps about questions that a command asks on a terminal."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time

from behave import when
from behave.runner import Context
from cli_steps import keep_end, search_path

_COMMAND = """
import importlib, json, os
from claude_batch.cli import main
for path, limit in json.loads(os.environ.get("LOWERED_LIMITS", "{}")).items():
    module, _, name = path.rpartition(".")
    setattr(importlib.import_module(module), name, limit)
main()
"""

_LONGEST = 180.0
"""Seconds after which a command that neither ends nor asks fails the test."""

_TYPED = {"y": b"y\n", "n": b"n\n", "Ctrl-D": b"\x04"}


@when('a command\'s question "{question}" is answered with {answer}: {words}')
def _(context: Context, question: str, answer: str, words: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *shlex.split(words)],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": search_path(), "TERM": "dumb"},
    )
    os.close(theirs)
    shown = b""
    answered = False
    end = time.monotonic() + _LONGEST

    def press() -> None:
        if answer == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            os.write(ours, _TYPED[answer])

    try:
        while True:
            if time.monotonic() > end:
                process.kill()
                raise AssertionError(f"the command does not end, and has shown {shown!r}")
            if not select.select([ours], [], [], 5)[0]:
                if process.poll() is not None:
                    break  # another process has the terminal open
                # Python runs handlers between two of its steps. A signal that comes after the last
                # step before it waits for input is seen with the next one: people press it again.
                if answered:
                    press()
                continue
            piece = os.read(ours, 4096)
            if not piece:
                break
            shown += piece
            if not answered and question.encode() in shown:
                answered = True
                press()
    except OSError:
        pass  # Linux raises an error when nobody has the terminal open any more
    finally:
        os.close(ours)
    keep_end(context, process.wait(60), "", shown.decode().replace("\r\n", "\n"))
