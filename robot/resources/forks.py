"""Programs that import nothing when they start: forks of a process that has imported it all.

Each is a process of its own, with its own death (`mortal.py`); importing takes longer than most of
them live. Other suites start each command anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

MORTAL = Path(__file__).with_name("mortal.py")
PATIENCE = 60.0
"""Seconds in which a program must have started."""


class Fork:
    """A program that was started; `pid` is its own."""

    def __init__(self, pid: int, codes: dict[int, int]) -> None:
        self.pid = pid
        self._codes = codes

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._codes.get(self.pid)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Forks:
    """Starts programs in one folder and environment, of a build that `breakage` may spoil."""

    def __init__(self, folder: Path, environment: dict[str, str], breakage: str = "-") -> None:
        self._codes: dict[int, int] = {}
        self._started: queue.Queue[int] = queue.Queue()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(MORTAL), "--forks", breakage],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, name="forks", daemon=True).start()

    def start(self, death: str, program: list[str], stdout: Path, stderr: Path) -> Fork:
        """Start a program that dies as `mortal.py` has it."""
        words = [death, "-", *program]
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([words, str(stdout), str(stderr)]) + "\n")
            self._process.stdin.flush()
            return Fork(self._started.get(timeout=PATIENCE), self._codes)

    def close(self) -> None:
        """End; programs that still run are ended too."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            pid, _, code = line.partition(" ")
            if code:
                self._codes[int(pid)] = int(code)
            else:
                self._started.put(int(pid))
