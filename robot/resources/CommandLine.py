"""Robot keywords for `claude-batch` (and Python scripts) as real processes.

    Library    CommandLine.py
    Use Base Url    ${url}
    ${done} =    Run Claude Batch    run    ${actor}    prompts.jsonl    -o    answers.jsonl
    Exit Code Should Be    ${done}    0

    ${running} =    Start Claude Batch    run    ${actor}    prompts.jsonl    -o    answers.jsonl
    Wait For Output    ${running}    batch
    Kill Command    ${running}

Every test has a folder of its own (`Scratch Folder`, where commands run), a ledger in it, and none
of the user's own settings or keys. Until `Use Base Url`, the API's address is one where nobody
listens: no test can reach the real service. What still runs when a test ends is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from robot.api import logger
from robot.api.deco import keyword, library

NOBODY_LISTENS = "http://127.0.0.1:9"


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a process ended; `exit_code` is negative for a signal, as subprocess has it."""

    command: str
    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class Running:
    """A process that was started; its streams are files, so that it never waits for a reader."""

    command: str
    process: subprocess.Popen[bytes]
    stdout_file: Path
    stderr_file: Path

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    @property
    def stdout(self) -> str:
        """What it has written to standard output so far."""
        return self.stdout_file.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has written to standard error so far."""
        return self.stderr_file.read_text(errors="replace")

    def done(self) -> Done:
        """How it ended."""
        code = self.process.wait()
        return Done(command=self.command, exit_code=code, stdout=self.stdout, stderr=self.stderr)


@library(scope="SUITE", listener="SELF")
class CommandLine:
    """Runs, starts, signals and kills processes with a temporary ledger."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._environ: dict[str, str | None] = {}
        self._running: list[Running] = []

    # The surroundings

    @keyword
    def scratch_folder(self) -> Path:
        """The test's own folder."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="claude-batch-robot-"))
        return self._folder

    @keyword
    def ledger_path(self) -> Path:
        """The file of the test's ledger."""
        return self.scratch_folder() / "state" / "ledger.db"

    @keyword
    def set_variable_for_commands(self, name: str, value: str | None) -> None:
        """Set an environment variable of the commands to come; `${None}` takes it away."""
        self._environ[name] = value

    @keyword
    def use_base_url(self, url: str) -> None:
        """Point `ANTHROPIC_BASE_URL` of the commands to come at a sandbox."""
        self._environ["ANTHROPIC_BASE_URL"] = url

    @keyword
    def write_lines(self, name: str, *lines: str) -> Path:
        """Write a file of lines into the scratch folder; its path."""
        path = self.scratch_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    # Processes

    @keyword
    def run_claude_batch(
        self, *arguments: str | Path, stdin: str | None = None, timeout: float = 120
    ) -> Done:
        """Run `claude-batch` to its end; fails if that takes longer than `timeout` seconds."""
        return self.wait_for_command(self.start_claude_batch(*arguments, stdin=stdin), timeout)

    @keyword
    def start_claude_batch(self, *arguments: str | Path, stdin: str | None = None) -> Running:
        """Start `claude-batch` and leave it running."""
        return self.start_python("-m", "claude_batch", *arguments, stdin=stdin)

    @keyword
    def run_python(
        self, *arguments: str | Path, stdin: str | None = None, timeout: float = 120
    ) -> Done:
        """Run this Python with arguments (a script's path, or `-c` and code) to its end."""
        return self.wait_for_command(self.start_python(*arguments, stdin=stdin), timeout)

    @keyword
    def start_python(self, *arguments: str | Path, stdin: str | None = None) -> Running:
        """Start this Python with arguments and leave it running."""
        return self.start_program(sys.executable, *arguments, stdin=stdin)

    @keyword
    def start_program(self, *command: str | Path, stdin: str | None = None) -> Running:
        """Start any program and leave it running."""
        return self._start([*map(str, command)], stdin)

    @keyword
    def wait_for_command(self, command: Running, timeout: float = 120) -> Done:
        """Wait for a started command; one that takes longer is killed, and the test fails."""
        try:
            command.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill_command(command)
            raise AssertionError(
                f"`{command.command}` did not end within {timeout:g} s; it said:\n"
                f"{command.stdout}\n{command.stderr}"
            ) from None
        done = command.done()
        logger.info(f"`{done.command}` ended with {done.exit_code}\n{done.stdout}\n{done.stderr}")
        return done

    @keyword
    def wait_for_output(self, command: Running, text: str, timeout: float = 60) -> None:
        """Wait until a running command has said something, on either stream."""
        deadline = time.monotonic() + timeout
        while True:
            ended = command.process.poll() is not None
            if text in command.stdout or text in command.stderr:
                return
            if ended or time.monotonic() > deadline:
                how = f"ended with {command.process.returncode}" if ended else "still runs"
                raise AssertionError(
                    f"`{command.command}` {how} without saying {text!r}; it said:\n"
                    f"{command.stdout}\n{command.stderr}"
                )
            time.sleep(0.02)

    @keyword
    def interrupt_command(self, command: Running) -> None:
        """Send what Ctrl-C sends."""
        command.process.send_signal(signal.SIGINT)

    @keyword
    def send_signal_to_command(self, command: Running, name: str) -> None:
        """Send a signal by its name, such as `SIGTERM`."""
        command.process.send_signal(signal.Signals[name])

    @keyword
    def kill_command(self, command: Running) -> Done:
        """End it and all that it started as a power cut would: SIGKILL, no clean-up at all."""
        # The process leads a session of its own, whose group has the same id.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        return command.done()

    # What is expected of one that ended

    @keyword
    def exit_code_should_be(self, done: Done, code: int) -> None:
        """Fail, with all that the command said, if it ended with another exit code."""
        if done.exit_code != code:
            raise AssertionError(
                f"`{done.command}` ended with {done.exit_code}, not {code}; it said:\n"
                f"{done.stdout}\n{done.stderr}"
            )

    @keyword
    def no_traceback_in(self, done: Done) -> None:
        """Fail if the command showed its user a traceback."""
        if "Traceback (most recent call last)" in done.stdout + done.stderr:
            raise AssertionError(f"`{done.command}` showed a traceback:\n{done.stderr}")

    def _start(self, command: list[str], stdin: str | None) -> Running:
        folder = self.scratch_folder()
        streams = Path(tempfile.mkdtemp(prefix="streams-", dir=folder))
        given = streams / "stdin"
        given.write_text(stdin or "", encoding="utf-8")
        out, err = streams / "stdout", streams / "stderr"
        with given.open("rb") as source, out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                command,
                stdin=source,
                stdout=to_out,
                stderr=to_err,
                cwd=folder,
                env=self._environment(),
                start_new_session=True,
            )
        running = Running(
            command=" ".join([Path(command[0]).name, *command[1:]]),
            process=process,
            stdout_file=out,
            stderr_file=err,
        )
        self._running.append(running)
        return running

    def _environment(self) -> dict[str, str]:
        ours = ("ANTHROPIC_", "CLAUDE_BATCH_")
        inherited = {name: v for name, v in os.environ.items() if not name.startswith(ours)}
        chosen: dict[str, str | None] = {
            **inherited,
            "ANTHROPIC_API_KEY": "sk-ant-sandbox",
            "ANTHROPIC_BASE_URL": NOBODY_LISTENS,
            "CLAUDE_BATCH_LEDGER": str(self.ledger_path()),
            "CLAUDE_BATCH_STATE_DIR": str(self.scratch_folder() / "state"),
            "NO_PROXY": "127.0.0.1,localhost,::1",
            "PYTHONUNBUFFERED": "1",
            "TERM": "dumb",
            **self._environ,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def _end_test(self, *_: object) -> None:
        # Robot calls this; not a keyword.
        for running in self._running:
            if running.process.poll() is None:
                self.kill_command(running)
        self._running.clear()
        self._environ.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # What a suite's set-up and tear-down started ends with the suite.
    _end_suite = _end_test
