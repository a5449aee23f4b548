"""Short programs, each in a process of its own that need not import anything first.

    done = programs.run("import sys; print(sys.argv[1])", "hello")

runs code as `python -c` would, to its end. Its process is a fork, from a process that was itself
forked when the steps were imported and nothing else had begun: no thread, no server, no engine.
Importing the package again takes up to a second of CPU. Scenarios
about starting, ending or importing start a real interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NoReturn

_orders: socket.socket | None = None
"""Where the process that forks is told what to run."""


def start_forking() -> int:
    """Begin the process that forks, and return its id; it ends with `stop_forking`."""
    global _orders
    _orders, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        return pid
    _orders.close()
    with contextlib.suppress(KeyboardInterrupt):
        _fork_for_each(theirs)
    os._exit(0)


def stop_forking(pid: int) -> None:
    """End the process that forks."""
    assert _orders is not None
    _orders.close()
    os.waitpid(pid, 0)


def run(
    script: str,
    *words: str,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    terminal: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; what it printed, and its exit code as `subprocess` has it.

    With the path of a terminal, it prints there, and nothing is returned of it.
    """
    assert _orders is not None
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        order = {
            "script": script,
            "words": ["-c", *words],
            "folder": os.getcwd(),
            "env": dict(os.environ if env is None else env),
            "streams": [os.devnull, terminal or str(out), terminal or str(err)],
        }
        _orders.sendall(json.dumps(order).encode() + b"\n")
        pid = int(_answer(None))
        try:
            code = int(_answer(timeout))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            _answer(None)
            said = "" if terminal else err.read_text("utf-8", "replace")
            raise AssertionError(f"it hangs: {said}") from None
        if terminal:
            return subprocess.CompletedProcess(words, code, "", "")
        said, complained = (each.read_text("utf-8", "replace") for each in (out, err))
        return subprocess.CompletedProcess(words, code, said, complained)


def _answer(timeout: float | None) -> bytes:
    assert _orders is not None
    _orders.settimeout(timeout)
    # Byte by byte: the exit code may come at once, and is not to be read with the process id.
    line = b""
    while not line.endswith(b"\n"):
        byte = _orders.recv(1)
        assert byte, "the process that forks has ended"
        line += byte
    return line


def _fork_for_each(orders: socket.socket) -> None:
    with orders.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            if not (pid := os.fork()):
                _become(json.loads(line))
            orders.sendall(b"%d\n" % pid)
            _, status = os.waitpid(pid, 0)
            orders.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(order: dict[str, Any]) -> NoReturn:
    for number, path in enumerate(order["streams"]):
        flags = os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY
        os.dup2(os.open(path, flags), number)
    # Behave may have put something else in their place.
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = order["words"]
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    code = 0
    try:
        exec(order["script"], main.__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # As an interpreter ends, up to where it would take itself apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
