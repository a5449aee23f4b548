"""Steps about signals that come while a command still imports."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios

from behave import when
from behave.runner import Context
from cli_steps import SOURCES, all_runs, keep_end
from staging import until

from claude_batch.core.states import RequestState

SENDS_A_SIGNAL = """
import atexit, importlib.abc, os, signal, sys

def send():
    os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
    for _ in range(1000):  # Python runs its handler between two of its steps
        pass

class Sender(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SIGNAL_AT"]:
            sys.meta_path.remove(self)
            send()
        return None

sys.meta_path.insert(0, Sender())
if os.environ["SIGNAL_AT"] == "exit":
    atexit.register(send)
"""


def _command(words: str) -> list[str]:
    return [sys.executable, "-m", "claude_batch", *shlex.split(words)]


def _run(context: Context, name: str, module: str, words: str, *, ignored: bool = False) -> None:
    folder = context.tmp / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SENDS_A_SIGNAL)
    paths = os.pathsep.join((str(folder), SOURCES))

    def prepare() -> None:
        # Whoever runs the tests in the background may have them ignored, which is inherited.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)

    done = subprocess.run(
        _command(words),
        env={**os.environ, "PYTHONPATH": paths, "SIGNAL_AT": module, "SIGNAL": name},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=prepare,
    )
    keep_end(context, done.returncode, done.stdout, done.stderr)


@when("a command's terminal is closed once its live calls are under way: {words}")
def _(context: Context, words: str) -> None:
    """As when a connection by ssh breaks: the process gets SIGHUP, and cannot write any more."""
    ours, theirs = pty.openpty()

    def prepare() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    env = {**os.environ, "PYTHONPATH": SOURCES, "TERM": "xterm"}
    process = subprocess.Popen(_command(words), env=env, stderr=theirs, preexec_fn=prepare)
    context.add_cleanup(process.kill)
    os.close(theirs)
    until(lambda: [state for run in all_runs() for state in [*run.counts]] == [RequestState.PACKED])
    os.close(ours)
    keep_end(context, process.wait(60), "", "")


@when("{who} gets {name} as it imports {module}: {words}")
@when("{who} gets {name} at its {module}: {words}")
def _(context: Context, who: str, name: str, module: str, words: str) -> None:
    assert who in ("a command", "a command that ignores SIGINT"), who
    _run(context, name, module, words, ignored="ignores" in who)
