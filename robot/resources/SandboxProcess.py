"""Robot keywords for a sandbox in a process of its own, spoken to over real HTTP.

    Library    SandboxProcess.py
    ${url} =    Start Sandbox    --latency    200ms
    Post Fault Plan
    ...    {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
    ${bill} =    Billing Summary
    Should Be Equal As Integers    ${bill}[paid]    100

A sandbox lives until `Stop Sandbox`, or until the suite ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from robot.api.deco import keyword, library

_LISTENING = re.compile(rb"^sandbox listening on (http://\S+)\r?$", re.MULTILINE)
# No proxy of the environment stands between a test and its own loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@library(scope="SUITE", listener="SELF")
class SandboxProcess:
    """Starts, questions and stops one sandbox at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._url: str | None = None

    @keyword
    def start_sandbox(self, *options: str, timeout: float = 30) -> str:
        """Start `python -m claude_batch.sandbox` on a free port; the URL it listens on.

        A running one is stopped first. A `--port` among the options takes that port instead.
        """
        self.stop_sandbox()
        self._folder = Path(tempfile.mkdtemp(prefix="claude-batch-sandbox-"))
        output = self._folder / "output"
        command = [sys.executable, "-m", "claude_batch.sandbox"]
        command += [*options] if "--port" in options else ["--port", "0", *options]
        with output.open("wb") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            said = output.read_bytes()
            if found := _LISTENING.search(said):
                self._url = found.group(1).decode()
                return self._url
            if ended:
                break
            time.sleep(0.02)
        self.kill_sandbox()
        raise AssertionError(f"the sandbox does not listen: {said.decode(errors='replace')}")

    @keyword
    def stop_sandbox(self, timeout: float = 15) -> None:
        """End the sandbox by SIGTERM."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill_sandbox()
                raise AssertionError(f"the sandbox did not end within {timeout} s") from None
        self._forget()

    @keyword
    def kill_sandbox(self) -> None:
        """End the sandbox as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    @keyword
    def sandbox_url(self) -> str:
        """The URL of the running sandbox."""
        if self._url is None:
            raise AssertionError("no sandbox is running; use `Start Sandbox` first")
        return self._url

    @keyword
    def billing_summary(self, batch_id: str | None = None) -> dict[str, Any]:
        """Counts of the bill: `requests`, `paid`, `paid_more_than_once`, `outcomes`, …"""
        chosen = "" if batch_id is None else f"&batch_id={batch_id}"
        return self._call("GET", f"/sandbox/billing?summary=true{chosen}")

    @keyword
    def billing(self) -> list[dict[str, Any]]:
        """A record for each request processed, oldest batch first."""
        return self._call("GET", "/sandbox/billing")

    @keyword
    def nothing_should_be_paid_twice(self) -> None:
        """Fail where the same params succeeded, and so were paid for, more than once."""
        twice = self.billing_summary()["paid_more_than_once"]
        if twice:
            raise AssertionError(f"{twice} requests were paid for more than once")

    @keyword
    def post_fault_plan(self, plan: dict[str, Any] | str) -> None:
        """Replace the fault plan by a dictionary, or by JSON as text."""
        self._call("POST", "/sandbox/faults", json.loads(plan) if isinstance(plan, str) else plan)

    @keyword
    def clear_fault_plan(self) -> None:
        """Take the fault plan away."""
        self._call("DELETE", "/sandbox/faults")

    @keyword
    def fault_counters(self) -> Any:
        """How often each rule of the fault plan was asked, and how often it fired."""
        return self._call("GET", "/sandbox/faults/counters")

    @keyword
    def calls_seen(self, route: str | None = None) -> list[dict[str, Any]]:
        """The API calls seen, oldest first; those of one route (`create`, `list`, …) if named."""
        calls = self._call("GET", "/sandbox/log")
        return [call for call in calls if route is None or call["route"] == route]

    @keyword
    def advance_sandbox_clock(self, seconds: float) -> None:
        """Move the sandbox's clock on: batches end and expire as if the time had passed."""
        self._call("POST", "/sandbox/clock", {"advance": seconds})

    def _call(self, method: str, path: str, value: Any = None) -> Any:
        body = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self.sandbox_url() + path, body, method=method)
        try:
            with _OPENER.open(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise AssertionError(f"{method} {path}: {error.code} {said}") from None

    def _forget(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process = self._folder = self._url = None

    def _end_suite(self, *_: object) -> None:
        # Robot calls this; not a keyword.
        self.stop_sandbox()
