"""Programs, each in a process of its own that need not import anything first.

    done = programs.run("import sys; print(sys.argv[1])", "hello")
    worker = programs.start(programs.COMMAND, "worker", stdout=log)

run code as `python -c` would, the first to its end. The process is a fork, from a process that was
itself forked when the steps were imported and nothing else had begun: no thread, no server, no
engine. Importing the package again takes up to two seconds of CPU on a busy machine. Scenarios
about starting, ending or importing start a real interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from tempfile import TemporaryFile
from types import ModuleType
from typing import IO, Any, NoReturn

COMMAND = "from claude_batch.cli import main; main()"
"""The program `claude-batch`."""

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


class Program:
    """A program that runs, with what scenarios use of `subprocess.Popen`."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """As `subprocess` has it; `None` until `poll` or `wait` found that the program ended."""
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit code, or `None` as long as it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(_line(self._status))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start(
    script: str,
    *words: str,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    text: bool = False,
) -> Program:
    """Start a program; the streams are as in `subprocess.Popen`, but stderr is no pipe."""
    assert _orders is not None
    status, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.callback(theirs.close)
        null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, null)
        keyboard, screen = (_number(each, own, null) for own, each in enumerate((stdin, stdout)))
        ours_in = ours_out = None
        if stdin == subprocess.PIPE:
            keyboard, ours_in = os.pipe()
            stack.callback(os.close, keyboard)
        if stdout == subprocess.PIPE:
            ours_out, screen = os.pipe()
            stack.callback(os.close, screen)
        complaints = screen if stderr == subprocess.STDOUT else _number(stderr, 2, null)
        order = {
            "script": script,
            "words": ["-c", *words],
            "folder": os.getcwd(),
            "env": dict(os.environ if env is None else env),
        }
        # The numbers of the open files travel with the first byte.
        streams = [theirs.fileno(), keyboard, screen, complaints]
        socket.send_fds(_orders, [b" "], streams)
        _orders.sendall(json.dumps(order).encode() + b"\n")
    program = Program(int(_line(status)), status)
    if ours_in is not None:
        program.stdin = os.fdopen(ours_in, "w" if text else "wb")
    if ours_out is not None:
        program.stdout = os.fdopen(ours_out, "r" if text else "rb")
    return program


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
    with contextlib.ExitStack() as stack:
        if terminal:
            # The first terminal that is opened may become that of the scenarios' process.
            out = err = stack.enter_context(open(terminal, "wb", opener=_as_a_guest))
        else:
            out, err = (stack.enter_context(TemporaryFile()) for _ in range(2))
        program = start(script, *words, env=env, stdout=out, stderr=err)
        try:
            code = program.wait(timeout)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
            raise AssertionError(f"it hangs: {'' if terminal else _text(err)}") from None
        if terminal:
            return subprocess.CompletedProcess(words, code, "", "")
        return subprocess.CompletedProcess(words, code, _text(out), _text(err))


def _as_a_guest(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOCTTY)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace").replace("\r\n", "\n")


def _number(stream: int | IO[Any] | None, own: int, null: int) -> int:
    if stream is None:
        return own
    number = stream if isinstance(stream, int) else stream.fileno()
    return null if number == subprocess.DEVNULL else number


def _line(answers: socket.socket) -> bytes:
    # Byte by byte: the exit code may come at once, and is not to be read with the process id.
    line = b""
    while not line.endswith(b"\n"):
        byte = answers.recv(1)
        assert byte, "the process that forks has ended"
        line += byte
    return line


def _fork_for_each(orders: socket.socket) -> None:
    running: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                woken.recv(4096)
                _report_ended(running)
            if orders in ready:
                _, streams, _, _ = socket.recv_fds(orders, 1, 4)
                if not streams:
                    return  # the scenarios have ended
                order = json.loads(_line(orders))
                status = socket.socket(fileno=streams[0])
                if not (pid := os.fork()):
                    for each in (selector, orders, woken, wakes, status, *running.values()):
                        each.close()
                    _become(order, streams[1:])
                for each in streams[1:]:
                    os.close(each)
                running[pid] = status
                status.sendall(b"%d\n" % pid)


def _report_ended(running: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(ended[0]) as status, contextlib.suppress(OSError):
                status.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))


def _become(order: dict[str, Any], streams: list[int]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        if stream > 2:
            os.close(stream)
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
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    # As an interpreter ends, up to where it would take itself apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
