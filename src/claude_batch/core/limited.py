"""`run_limited`: run a function of bytes in a process with limited time and memory.

A document of a few kilobytes can keep a parser busy for hours, or fill the machine's memory. Python
cannot stop a thread, so such parsers run in a separate process. The first call starts it, and later
calls reuse it. A call that exceeds a limit kills it; the next call starts another one.

The process gets no secrets, such as the API key: only the variables that Python needs are passed
on.
"""

from __future__ import annotations

import atexit
import errno
import importlib
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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
_READY: Final = b"+"
"""What the process sends first. One that ends without it has failed at no document."""


class PassedBound(ValueError):
    """The function exceeded its limit of time or memory."""


class NotStarted(ValueError):
    """The process could not be started, such as for lack of memory. A later call may succeed."""


class _Process:
    def __init__(self) -> None:
        """Start the process, and wait until it is ready. Raises ``OSError``."""
        environment = {
            name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)
        }
        # The process gets the present import path, even if the program changed it.
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        self._socket, theirs = socket.socketpair()
        # After `socket.setdefaulttimeout` it would be non-blocking, and so would the child's stdin.
        theirs.settimeout(None)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__],
                    stdin=theirs.fileno(),
                    # A library's output must not mix with the answers.
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    # Ctrl-C in a terminal goes to the caller only, which then closes this process.
                    start_new_session=True,
                )
            except OSError:
                self._socket.close()
                raise
        self._answers = self._socket.makefile("rb")
        self._socket.settimeout(START_SECONDS)
        try:
            _read(self._answers, len(_READY))
        except BaseException as error:
            self.close(kill=True)
            if isinstance(error, EOFError):
                raise OSError(errno.ECHILD, f"{sys.executable} has ended at once") from None
            raise

    @property
    def ended(self) -> bool:
        """Return whether the process has ended between two calls."""
        return self._process.poll() is not None

    def call(self, function: str, data: bytes, seconds: float) -> tuple[int, bytes]:
        """Return the kind and the content of the answer.

        Raises ``TimeoutError`` if the process takes too long, and ``EOFError`` or another
        ``OSError`` if it has ended.
        """
        self._socket.settimeout(2 * seconds)
        name = function.encode()
        self._socket.sendall(_HEADER.pack(math.ceil(seconds), len(name), len(data)) + name)
        self._socket.sendall(data)
        kind, size, _ = _HEADER.unpack(_read(self._answers, _HEADER.size))
        return kind, _read(self._answers, size)

    def close(self, *, kill: bool) -> int:
        """End the process; return its exit code."""
        self._answers.close()
        self._socket.close()
        if kill:
            self._process.kill()
        try:
            return self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _read(stream: IO[bytes], size: int) -> bytes:
    """Return so many bytes of a stream. Raises ``EOFError`` if the other side has ended."""
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


_lock = threading.Lock()
_process: _Process | None = None
"""The process that answered the last call; None during a call."""


def run_limited(function: str, data: bytes, *, seconds: float) -> bytes:
    """Run ``module:function``, which takes and returns bytes, on ``data`` in a limited process.

    One call runs at a time. ``seconds`` (at most 255) limits its CPU time, and twice that its
    wall-clock time. Raises `PassedBound` if it exceeds its time or memory, and `NotStarted` if
    there is no process for it. Raises ``ValueError`` with the function's own message if the
    function does. If no Python can be started (a frozen program), the function runs in this
    process, without limits.
    """
    global _process
    if not sys.executable or getattr(sys, "frozen", False):
        return _found(function)(data)
    with _lock:
        # Only a process that has answered is kept: the answer of an interrupted call would arrive
        # during the next one.
        process, _process = _kept_or_started(_process), None
        try:
            kind, answer = process.call(function, data, seconds)
        except BaseException as error:
            code = process.close(kill=True)
            if not isinstance(error, EOFError | OSError):
                raise
            if isinstance(error, TimeoutError) or code in (-signal.SIGXCPU, -signal.SIGKILL):
                raise PassedBound(f"takes more than {seconds:g} seconds to read") from None
            raise PassedBound("crashes the library that reads it") from None
        if kind == _NO_MEMORY:
            process.close(kill=True)
            raise PassedBound(f"needs more than {MOST_MEMORY:,} bytes of memory to read")
        _process = process
    if kind == _DONE:
        return answer
    raise ValueError(answer.decode("utf-8", "replace"))


def _kept_or_started(process: _Process | None) -> _Process:
    if process is not None:
        if not process.ended:
            return process
        process.close(kill=True)
    try:
        return _Process()
    except OSError as error:
        raise NotStarted(
            "is read in a process of its own, which cannot be started now "
            f"({error.strerror or type(error).__name__}); try again"
        ) from None


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
    with suppress(ValueError, OSError):  # macOS does not limit it
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
    sink.write(_READY)
    sink.flush()
    with suppress(EOFError):
        while True:
            seconds, name_size, size = _HEADER.unpack(_read(source, _HEADER.size))
            name = _read(source, name_size).decode()
            data = _read(source, size)
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


if __name__ == "__main__":
    # Its stdin is the caller's socket, which takes the answers too.
    _serve(sys.stdin.buffer, os.fdopen(os.dup(0), "wb"))
