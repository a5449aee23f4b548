"""A storm while it lasts: its sandbox, its processes, its strangers, and what they leave."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forks import Forks
from storm_faults import STRANGERS_KEY, Death, Role, Storm, Stranger
from storm_ledger import dump_ledger, read_ledger
from storm_verdict import STRANGER, Json, verdict

from claude_batch.sandbox import SandboxServer, SandboxSettings

HERE = Path(__file__).resolve().parent
ACTOR = HERE.parents[1] / "examples" / "actors" / "reviewer.yaml"
TALKER = HERE.parent / "scripts" / "storm_tools.yaml"
TOOLS = HERE.parent / "scripts" / "storm_tools.py"
CALLS = HERE.parent / "scripts" / "calls.py"

CALM_AFTER = 25.0
"""Seconds after which nothing goes wrong any more and nobody dies, so that the storm can end."""

LONGEST = 150.0
"""Seconds after which a storm has failed, however busy the machine is."""

IMPORTING = 0.4
"""Seconds by which a fork is ahead of a command that imports what it needs. Deaths are drawn for
such commands, so their time begins so much earlier."""

FROZEN = 1.5
"""Seconds for which a process is stopped."""

LONGEST_TALK = 4.0
"""Seconds for which a cancellation waits for the first tool of a conversation."""

LONGEST_CHASE = 6.0
"""Seconds for which a stranger looks out for batches to delete."""

RAISED_EVERY = 4.0
RAISED_BY = 1.6
"""After so many seconds a budget is raised by this factor, so that a storm can end."""


_RUN_ID = re.compile(r"\brun-[0-9a-z]{10}\b")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Running:
    """One process, its streams, and how it ended."""

    def __init__(self, storm: Weather, name: str, program: list[str], death: Death | None) -> None:
        self.name = name
        self.death = death
        self.signalled = self.frozen = False
        self.begun, self.clock = time.monotonic() - IMPORTING, time.time()
        point = death.point if death is not None and death.kind == "point" else "-"
        self.stdout, self.stderr = (storm.streams / f"{name}.{each}" for each in ("out", "err"))
        for stream in (self.stdout, self.stderr):
            stream.touch()
        self.process = storm.forks.start(point, program, self.stdout, self.stderr)

    @property
    def said(self) -> str:
        """What it has said so far."""
        out, err = (each.read_text(errors="replace") for each in (self.stdout, self.stderr))
        return out + err

    def wait(self, storm: Weather) -> int:
        """Wait for its end, or bring it about when its time has come; the exit code."""
        while (code := self.process.poll()) is None:
            age = time.monotonic() - self.begun
            if storm.over:
                self.kill(signal.SIGKILL)
            elif self.death is not None and self.death.kind == "freeze":
                if age > self.death.after and not self.frozen:
                    self.freeze()
            elif self.death is not None and age > self.death.after and not self.signalled:
                self.kill(_SIGNALS.get(self.death.kind, signal.SIGKILL))
            elif self.signalled and self.death is not None and age > self.death.after + 15:
                self.kill(signal.SIGKILL)
            time.sleep(0.02)
        return code

    def freeze(self) -> None:
        """Let it stand still for a while, as a machine does that is short of memory."""
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(FROZEN)
        self.process.send_signal(signal.SIGCONT)

    def kill(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.signalled = True
        self.process.send_signal(number)


_SIGNALS = {"term": signal.SIGTERM, "interrupt": signal.SIGINT}


class Weather:
    """One storm while it lasts."""

    def __init__(self, storm: Storm, folder: Path, breakage: str = "-") -> None:
        self.storm = storm
        self.folder = folder
        self.breakage = breakage
        self.streams = folder / "processes"
        self.history: list[str] = []
        self.starts = 0
        self.deaths = 0
        self.over = False
        self._begun = time.monotonic()
        self._calm = False
        self._lock = threading.Lock()
        self._findings: list[str] = []
        self._foreign: list[str] = []
        self._deleted: list[str] = []
        self._cancelled = False
        self._budgets: list[tuple[float, int]] = []
        self._processes: list[Json] = []
        self._asks = 0
        self.actor, self.actor_name = ACTOR, "examples/reviewer"
        self.tally = ""
        """Of the faults that were met and the sendings that had no answer, how many."""
        shutil.rmtree(folder, ignore_errors=True)
        self.streams.mkdir(parents=True)
        self.ledger = folder / "ledger" / "ledger.db"
        self._notes = folder / "notes.jsonl"
        if storm.family == "talks":
            shutil.copy(TOOLS, folder)
            self.actor = Path(shutil.copy(TALKER, folder))
            self.actor_name = "storms/talker"
        self.sandbox = SandboxServer(SandboxSettings(**storm.sandbox, faults=storm.plan))

    # From the first process to the verdict

    def play(self) -> list[str]:
        """Let it rage, wait for its end, and judge: everything that is wrong."""
        self._write("storm.json", json.dumps(asdict(self.storm), indent=1))
        self.sandbox.start()
        ours = ("ANTHROPIC_", "CLAUDE_BATCH_")
        self.environment = {
            **{name: v for name, v in os.environ.items() if not name.startswith(ours)},
            "ANTHROPIC_API_KEY": "sk-ant-storm",
            "ANTHROPIC_BASE_URL": self.sandbox.url,
            "CLAUDE_BATCH_LEDGER": str(self.ledger),
            "CLAUDE_BATCH_STATE_DIR": str(self.folder / "state"),
            "NO_PROXY": "127.0.0.1,localhost,::1",
            "PYTHONUNBUFFERED": "1",
            "TERM": "dumb",
            **self.storm.variables,
        }
        if self.storm.budget:
            sum_in_usd = f"{self.storm.budget / 1e9:.9f}"
            self.environment["CLAUDE_BATCH_ACTOR_BUDGET_USD"] = sum_in_usd
        self.forks = Forks(self.folder, self.environment, breakage=self.breakage)
        try:
            players = [
                threading.Thread(target=self._guarded, args=(self._play_role, role))
                for role in self.storm.roles
            ]
            guests = threading.Thread(target=self._guarded, args=(self._play_strangers,))
            purse = threading.Thread(target=self._guarded, args=(self._raise_budget,))
            for thread in (*players, guests, purse):
                thread.start()
            while any(player.is_alive() for player in players):
                age = time.monotonic() - self._begun
                if age > CALM_AFTER and not self._calm:
                    self._calm_down()
                if age > LONGEST and not self.over:
                    self._findings.append(f"it did not end within {LONGEST:g} s")
                    self.over = True
                time.sleep(0.05)
            self.over = True
            for thread in (*players, guests, purse):
                thread.join()
            evidence = self._evidence()
            self._write("evidence.json", json.dumps(evidence, indent=1))
            self.tally = tally(evidence)
            # What did not end cannot be judged further.
            found = self._findings or verdict(evidence)
            self._diagnose(found)
            return found
        finally:
            self.over = True
            self.forks.close()
            self.sandbox.stop()

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception:
            self._findings.append(f"the driver failed: {traceback.format_exc()}")
            self.over = True

    def _calm_down(self) -> None:
        self._calm = True
        self._note("the storm calms down: no more faults, no more deaths")
        self.sandbox.clear_faults()

    def _note(self, text: str) -> None:
        self.history.append(f"{time.monotonic() - self._begun:7.2f}  {text}")

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    # Those who ask

    def _play_role(self, role: Role) -> None:
        chance = random.Random(f"{self.storm.family}:{self.storm.seed}:{role.name}")
        deaths = list(role.deaths)
        prompts, out = self.folder / f"{role.name}.jsonl", self.folder / f"{role.name}.out.jsonl"
        lines = (json.dumps(each) for each in asked(role))
        prompts.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        verb = {"run": "run", "cron": "submit"}.get(role.kind, "")
        ask = ["claude-batch", verb, str(self.actor), str(prompts), "-o", str(out)]
        if role.kind == "calls":
            known_by = "keys" if role.keys else "bytes"
            ask = [str(CALLS), str(self.actor), str(prompts), str(out), known_by]
        run_id, sent, code, cancel = "", False, 0, role.cancel
        while not self.over:
            command = ask
            if run_id and self._cancelled:
                command = ["claude-batch", "resume", run_id]
            elif role.kind == "cron" and sent:
                command = ["claude-batch", "advance"]
                if code == 4 and chance.random() < 0.7:
                    command = ["claude-batch", "resume", run_id]
                time.sleep(0.1)
            elif run_id and role.kind == "run" and chance.random() < 0.3:
                command = ["claude-batch", "resume", run_id]
            with self._lock:
                self._asks += command is ask
            running = self._start(role.name, command, deaths)
            if cancel == "during" and (run_id := self._hear_run_id(running)):
                self._let_talk(running)
                self._cancel(role, run_id, deaths)
                cancel = ""
            code = self._end(running)
            if found := _RUN_ID.search(running.said):
                run_id = run_id or found.group()
            if cancel == "between" and run_id:
                self._cancel(role, run_id, deaths)
                cancel = ""
                continue
            sent = sent or bool(run_id and code in (0, 3, 4))
            if role.kind == "cron" and command[1] != "resume":
                if sent and command[1] == "advance" and code in (0, 1) and out.exists():
                    return
            elif code in (0, 1) and not running.signalled:
                return

    def _start(self, name: str, command: list[str], deaths: list[Death]) -> Running:
        death = deaths.pop(0) if deaths and not self._calm else None
        with self._lock:
            self.starts += 1
            number = self.starts
        running = Running(self, f"{number:02d}-{name}", command, death)
        words = " ".join(each.rpartition("/")[2] for each in command)
        how = "" if death is None else f", to die by {death.kind} {death.point} {death.after:.1f}"
        self._note(f"{running.name}: {words}{how}")
        return running

    def _end(self, running: Running) -> int:
        code = running.wait(self)
        self._note(f"{running.name} ended with {code}")
        self.deaths += code < 0
        self._processes.append(
            {
                "name": running.name,
                "pid": running.process.pid,
                "began": running.clock,
                "ended": time.time(),
                # An interrupt that nobody catches lets a program clear up before it ends by it.
                "killed": code in (-signal.SIGKILL, -signal.SIGTERM),
            }
        )
        said = running.said
        interrupted = running.signalled and "KeyboardInterrupt" in said
        if "Traceback" in said and not interrupted:
            self._findings.append(f"{running.name} showed a traceback:\n{said}")
            self.over = True
        if code == 2 or (code < 0 and running.death is None and not self.over):
            self._findings.append(f"{running.name} ended with {code}:\n{said}")
            self.over = True
        return code

    def _hear_run_id(self, running: Running) -> str:
        """The id of the run that a process has stored or goes on with; "" if it ends before."""
        while running.process.poll() is None and not self.over:
            if found := _RUN_ID.search(running.said):
                return found.group()
            if running.death is not None and running.death.after < (
                time.monotonic() - running.begun
            ):
                return ""
            time.sleep(0.01)
        return ""

    def _let_talk(self, running: Running) -> None:
        """Conversations are cancelled while they use tools; without any, or too late, at once."""
        until = time.monotonic() + LONGEST_TALK
        while (
            self.storm.family == "talks"
            and running.process.poll() is None
            and not self._noted()
            and time.monotonic() < until
            and not self.over
        ):
            time.sleep(0.02)

    def _cancel(self, role: Role, run_id: str, deaths: list[Death]) -> None:
        self._cancelled = True
        command = ["claude-batch", "cancel", run_id]
        self._end(self._start(f"{role.name}-cancel", command, deaths[-1:]))

    def _raise_budget(self) -> None:
        """Raise the budget again and again; note what it was before the API's clock passed it."""
        amount, at = self.storm.budget, time.monotonic() + RAISED_EVERY
        while amount and not self.over:
            if time.monotonic() < at or not self.ledger.exists():
                time.sleep(0.05)
                continue
            self._budgets.append((self.sandbox.now(), amount))
            amount, at = int(amount * RAISED_BY), at + RAISED_EVERY
            dollars = f"{amount / 1e9:.9f}"
            words = ["claude-batch", "budget", "--actor", self.actor_name, dollars]
            self._end(self._start("purse", words, []))
        if amount:
            self._budgets.append((float("inf"), amount))

    # Those who are there too

    def _play_strangers(self) -> None:
        for deed in self.storm.strangers:
            while not self.over and time.monotonic() - self._begun < deed.at:
                time.sleep(0.02)
            if self.over:
                return
            if deed.deed == "create":
                self._create_foreign(deed)
            else:
                self._delete(deed)

    def _create_foreign(self, deed: Stranger) -> None:
        params = {"model": "claude-haiku-4-5", "max_tokens": 9,
                  "messages": [{"role": "user", "content": "A stranger's prompt."}]}  # fmt: skip
        requests = [{"custom_id": f"{STRANGER}-{at}", "params": params} for at in range(deed.count)]
        answer = self._call("POST", "", {"requests": requests})
        # Of a 200 that is not JSON the stranger learns as little as we do.
        made = str(answer["id"]) if answer else "no answer"
        self._foreign.append(made)
        self._note(f"a stranger's batch of {deed.count}: {made}")

    def _delete(self, deed: Stranger) -> None:
        """Delete batches that have ended and whose results nobody has read yet."""
        left, until = deed.count, time.monotonic() + LONGEST_CHASE
        while left and not self.over and time.monotonic() < until:
            read = {c["path"].split("/")[-2] for c in self.sandbox.log() if c["route"] == "results"}
            for batch in (self._call("GET", "?limit=100") or {}).get("data", []):
                spared = batch["id"] in read or batch["id"] in self._foreign
                if spared or not left or batch["processing_status"] != "ended":
                    continue
                if self._call("DELETE", f"/{batch['id']}"):
                    left -= 1
                    self._deleted.append(batch["id"])
                    self._note(f"a stranger deleted {batch['id']}")
            time.sleep(0.03)

    def _call(self, method: str, path: str, value: Any = None) -> Any:
        """A stranger's call; None where the storm took it or its answer."""
        request = urllib.request.Request(
            f"{self.sandbox.url}/v1/messages/batches{path}",
            None if value is None else json.dumps(value).encode(),
            method=method,
            headers={
                "x-api-key": STRANGERS_KEY,
                "anthropic-version": "2023-06-01",
                "content-type": "application/json",
                "user-agent": STRANGER,
            },
        )
        try:
            with _OPENER.open(request, timeout=10) as answer:
                return json.load(answer)
        except (OSError, ValueError):  # an HTTP error is an OSError too
            return None

    # What is left

    def _evidence(self) -> Json:
        self.sandbox.clear_faults()
        # Whatever was taken is processed to its end, even where nobody knows of it.
        self.sandbox.advance_clock(3600)
        billing = self.sandbox.billing()
        foreign = {r["batch_id"] for r in billing if str(r["custom_id"]).startswith(STRANGER)}
        outputs: Json = {}
        for role in self.storm.roles:
            out = self.folder / f"{role.name}.out.jsonl"
            if out.exists():
                lines = out.read_text("utf-8").splitlines()
                outputs[role.name] = [json.loads(line) for line in lines]
        return {
            "family": self.storm.family,
            "seed": self.storm.seed,
            "fallback": self.storm.variables.get("CLAUDE_BATCH_FALLBACK", "live"),
            "missing_after": self.storm.missing_after,
            "asked": {role.name: asked(role) for role in self.storm.roles},
            "outputs": outputs,
            "billing": billing,
            "log": self.sandbox.log(),
            "foreign": sorted(foreign),
            "deleted": self._deleted,
            "cancelled": self._cancelled,
            "budgets": [[at, amount] for at, amount in self._budgets],
            "processes": self._processes,
            "asked_again": self._asks > len(self.storm.roles),
            "notes": [json.loads(line) for line in self._noted()],
            "runs_expected": sum(role.kind != "calls" for role in self.storm.roles),
            **read_ledger(self.ledger),
        }

    def _noted(self) -> list[str]:
        return self._notes.read_text("utf-8").splitlines() if self._notes.exists() else []

    def _diagnose(self, found: list[str]) -> None:
        self._write("findings.txt", "\n\n".join(found) + "\n")
        self._write("history.txt", "\n".join(self.history) + "\n")
        done = subprocess.run(
            [sys.executable, "-m", "claude_batch", "status", "--json"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._write("status.json", done.stdout or done.stderr)
        if self.ledger.exists():
            self._write("ledger.txt", dump_ledger(self.ledger))


def tally(evidence: Json) -> str:
    """How much happened, in words: a storm in which nothing did proves nothing."""
    faults = sum(call["fault"] is not None for call in evidence["log"])
    found = sum(row["adopted"] is not None for row in evidence["batches"])
    disproved = sum(row["silent"] > 0 for row in evidence["batches"])
    lost = sum(row["state"] == "lost" for row in evidence["requests"])
    told = f"{faults} faults, {found} found again, {disproved} sent again, {lost} lost"
    if evidence["family"] == "haste":
        told += f", {sum(each['route'] == 'live' for each in evidence['billing'])} asked live"
    if evidence["notes"]:
        ends = [line for lines in evidence["outputs"].values() for line in lines if not line["ok"]]
        broken = sum(line["error"]["type"] == "tool_interrupted" for line in ends)
        again = len(evidence["notes"]) - len({(n["tool"], n["subject"]) for n in evidence["notes"]})
        told += f", {len(evidence['notes'])} tools run, {again} of them again, {broken} interrupted"
    return told


def asked(role: Role) -> list[Json]:
    """The lines of a role's input."""
    return [{"id": f"{role.name}-{at}", "prompt": p} for at, p in enumerate(role.prompts, 1)]
