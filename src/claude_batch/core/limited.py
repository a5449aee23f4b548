"""`run_limited`: run a function of bytes in a process with limited time and memory.

A document of a few kilobytes can keep a parser busy for hours, or fill the machine's memory. Python
cannot stop a thread, so such parsers run in a separate process. The first call starts it, and later
calls reuse it. A call that exceeds a limit kills it; the next call starts another one.

The process gets no secrets, such as the API key: only the variables that Python needs are passed
on.
"""

from __future__ import annotations

import atexit
import importlib
import math
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Final

MOST_MEMORY: Final = 1_500_000_000
"""Bytes of address space of the process, including Python's own."""
START_SECONDS: Final = 60.0
"""Timeout for the start of the process on a busy machine, in seconds."""

_PASSED_ON: Final = (
    *("PATH", "HOME", "LANG", "TMPDIR", "TZ", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("LC_", "LD_", "DYLD_", "PYTHON"),
)
"""Beginnings of the names of variables that the process gets."""
_HEADER: Final = struct.Struct("<BQQ")
"""For a call: its seconds, and the bytes of the function's name and of the data. For an answer: its
kind, the bytes of the content, and 0.
"""
_DONE, _REFUSED, _NO_MEMORY = range(3)
_BLOCK: Final = 1 << 20


class PassedBound(ValueError):
    """The function exceeded its limit of time or memory."""


class NotStarted(ValueError):
    """The process could not be started, such as for lack of memory. A later call may succeed."""


class _Gone(Exception):
    """The process has ended."""


class _Late(Exception):
    """The process takes too long."""


class _Process:
    def __init__(self) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)
        }
        # The process gets the present import path, even if the program changed it.
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            # Ctrl-C in a terminal goes to the caller only, which then closes this process.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._used = False

    @property
    def ended(self) -> bool:
        """Return whether the process has ended between two calls."""
        return self._process.poll() is not None

    def call(self, function: str, data: bytes, seconds: float) -> tuple[int, bytes]:
        deadline = time.monotonic() + 2 * seconds + (0.0 if self._used else START_SECONDS)
        self._used = True
        name = function.encode()
        self._send(_HEADER.pack(math.ceil(seconds), len(name), len(data)), deadline)
        self._send(name, deadline)
        self._send(data, deadline)
        kind, size, _ = _HEADER.unpack(self._receive(_HEADER.size, deadline))
        return kind, self._receive(size, deadline)

    def _send(self, data: bytes, deadline: float) -> None:
        left = memoryview(data)
        while left:
            _wait(self._in, deadline, writing=True)
            try:
                left = left[os.write(self._in, left[:_BLOCK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise _Gone from None

    def _receive(self, size: int, deadline: float) -> bytes:
        held = bytearray()
        while len(held) < size:
            _wait(self._out, deadline, writing=False)
            try:
                part = os.read(self._out, min(size - len(held), _BLOCK))
            except BlockingIOError:
                continue
            if not part:
                raise _Gone
            held += part
        return bytes(held)

    def close(self, *, kill: bool) -> int:
        """End the process; return its exit code."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        if kill:
            self._process.kill()
        try:
            return self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _wait(descriptor: int, deadline: float, *, writing: bool) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if writing else select.POLLIN)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise _Late


_lock = threading.Lock()
_process: _Process | None = None


def run_limited(function: str, data: bytes, *, seconds: float) -> bytes:
    """Run ``module:function``, which takes and returns bytes, on ``data`` in a limited process.

    One call runs at a time. ``seconds`` (at most 255) limits its CPU time, and twice that its
    wall-clock time. Raises `PassedBound` if it exceeds its time or memory, and `NotStarted` if
    there is no process for it. Raises ``ValueError`` with the function's own message if the
    function does. If no Python can be started (a frozen
    program), the function runs in this process, without limits.
    """
    global _process
    if not sys.executable or getattr(sys, "frozen", False):
        return _found(function)(data)
    with _lock:
        if _process is not None and _process.ended:
            _process.close(kill=True)
            _process = None
        if _process is None:
            try:
                _process = _Process()
            except OSError as error:
                raise NotStarted(
                    "is read in a process of its own, which cannot be started now "
                    f"({error.strerror or type(error).__name__}); try again"
                ) from None
        process = _process
        try:
            kind, answer = process.call(function, data, seconds)
        except (_Gone, _Late, OSError) as error:
            _process = None
            code = process.close(kill=True)
            if isinstance(error, _Late) or code in (-_SIGXCPU, -_SIGKILL):
                raise PassedBound(f"takes more than {seconds:g} seconds to read") from None
            raise PassedBound("crashes the library that reads it") from None
        except BaseException:
            _process = None  # the answer of an interrupted call would arrive later
            process.close(kill=True)
            raise
        if kind == _NO_MEMORY:
            _process = None
            process.close(kill=True)
    if kind == _DONE:
        return answer
    if kind == _NO_MEMORY:
        raise PassedBound(f"needs more than {MOST_MEMORY:,} bytes of memory to read")
    raise ValueError(answer.decode("utf-8", "replace"))


_SIGXCPU, _SIGKILL = 24, 9


def _found(function: str) -> Callable[[bytes], bytes]:
    module, _, name = function.partition(":")
    found: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    return found


def _close() -> None:
    with _lock:
        if _process is not None:
            _process.close(kill=False)


atexit.register(_close)


def _after_fork() -> None:
    # A lock that another thread of the parent held is never released in the child.
    global _lock, _process
    _lock, _process = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


# In the process itself ----------------------------------------------------------------------------


def _serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer calls until the caller has gone."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = MOST_MEMORY if most == resource.RLIM_INFINITY else min(MOST_MEMORY, most)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
    except (ValueError, OSError):
        pass  # macOS does not limit it
    while len(header := source.read(_HEADER.size)) == _HEADER.size:
        seconds, name_size, size = _HEADER.unpack(header)
        name = source.read(name_size).decode()
        data = source.read(size)
        if len(data) < size:
            return
        # The limit counts from the start of the process.
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        allowed = math.ceil(time.process_time()) + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, most))
        kind, answer = _answer(name, data)
        sink.write(_HEADER.pack(kind, len(answer), 0))
        sink.write(answer)
        sink.flush()


def _answer(name: str, data: bytes) -> tuple[int, bytes]:
    try:
        return _DONE, _found(name)(data)
    except MemoryError:
        return _NO_MEMORY, b""
    except ValueError as error:
        return _REFUSED, str(error).encode("utf-8", "replace")
    except Exception as error:
        # A library may raise any exception for a malformed document.
        words = f"cannot be read: {type(error).__name__}: {error}"
        return _REFUSED, words.encode("utf-8", "replace")


def _main() -> None:
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # A library's output to stdout must not mix with the answers.
    os.dup2(2, 1)
    _serve(source, sink)


if __name__ == "__main__":
    _main()
