"""A fleet: one PostgreSQL, three workers, one run, and faults of the workers and of the server.

python robot/resources/fleet.py --requests 20000 --faults 8 --seed 7

With `--procrastinate` the workers are procrastinate's, with the app of `examples/procrastinate`.
The program that asks then does not drive.

Each process reaches the server through a proxy of its own, so that its link can fail. Every few
seconds one of `FAULTS` happens to the process that drives, a worker or the run itself, or to the
server. It ends well if each time a process drives again in time, every request was answered, and
the sandbox's bill has each of them once. `--storms N` plays N fleets, with the seeds from the given
one on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "features"), str(ROOT / "robot" / "resources")]

from cutting_proxy import CuttingProxy  # noqa: E402 - from the scenarios' folder
from postgres_server import PostgresServer  # noqa: E402
from SandboxProcess import SandboxProcess  # noqa: E402

FAULTS = {
    "SIGKILL": 15.0,
    "SIGSTOP": 15.0,
    "SIGSTOP in a transaction": 20.0,
    "cut link": 15.0,
    "stalled link": 15.0,
    "lost answer of a COMMIT": 15.0,
    "restart of the server": 10.0,
}
"""Seconds within which a process drives again; after a restart, since the server is back."""

DOWN = (11.0, 20.0)
"""Seconds that a process stays stopped, cut or dead: longer than its lease of 10."""

LONGEST = 1200.0
SCHEMA = "fleet"


ASKER = """
import json, sys
import claude_batch as cb

prompts, answers, most = sys.argv[1:]
with cb.ClaudeBatchProvider(drive=False, max_requests=int(most), parallel_batches=4) as provider:
    actor = cb.ActorConfiguration(
        name="tests/fleet", model="claude-haiku-4-5", options={"max_tokens": 64},
        batch_processing=True,
    )
    asked = (json.loads(line) for line in open(prompts))
    run = provider.store(
        actor, (cb.ActorRequest(prompt=each["prompt"], key=each["id"]) for each in asked)
    )
    run.wait_sync()
    with open(answers, "w") as file:
        for result in run.results_sync():
            print(json.dumps({"id": result.key, "ok": result.ok}), file=file)
"""
"""A program that stores a run, and waits for others to answer it."""


class Member:
    """A process of the fleet, and the proxy that is its link to the server."""

    def __init__(self, server: PostgresServer, arguments: list[str], log: Path) -> None:
        self.link = CuttingProxy(server.port)
        self._url = server.url(port=self.link.port)
        self._arguments = arguments
        self._log = log.open("ab")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        places = {"CLAUDE_BATCH_LEDGER": f"{self._url}?schema={SCHEMA}", "JOBS_URL": self._url}
        return subprocess.Popen(
            [sys.executable, *self._arguments],
            env={**os.environ, **places},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def suffer(self, fault: str, server: PostgresServer, is_over: Callable[[], bool]) -> bool:
        """Meet a fault; returns False if the run was over before it could happen."""
        if fault == "SIGKILL":
            self.process.kill()
            self.process.wait()
        elif fault == "SIGSTOP":
            self.process.send_signal(signal.SIGSTOP)
        elif fault == "SIGSTOP in a transaction":
            return self._stop_in_transaction(server, is_over)
        elif fault == "cut link":
            self.link.cut()
        elif fault == "stalled link":
            self.link.stall()
        elif fault == "lost answer of a COMMIT":
            lost = self.link.at_commit("lose_answer", having="UPDATE requests")
            end = time.monotonic() + 60
            while not lost.wait(0.5):
                if is_over():
                    return False
                if time.monotonic() > end:
                    raise TimeoutError("the process that drives has not written for a minute")
        else:
            server.restart("immediate")
        return True

    def _stop_in_transaction(self, server: PostgresServer, is_over: Callable[[], bool]) -> bool:
        """Stop it at a moment in which the server waits for its next statement."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if is_over():  # then it writes no more
                return False
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(0.05)  # what others have begun meanwhile has gone on
            if server.execute(
                "SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE "
                "l.locktype = 'advisory' AND l.granted AND a.state = 'idle in transaction' "
                "AND a.state_change < clock_timestamp() - interval '40 ms'"
            ):
                return True
            self.process.send_signal(signal.SIGCONT)
            time.sleep(random.uniform(0.0, 0.05))
        raise TimeoutError("the process that drives was never seen in a transaction")

    def recover(self, fault: str) -> None:
        """Be there again: restarted, continued, or linked."""
        if fault.startswith("SIGSTOP"):
            self.process.send_signal(signal.SIGCONT)
        elif fault.endswith("link"):
            self.link.restore()
        self.start_again()

    def start_again(self) -> None:
        """Start the process, if it has ended."""
        if self.process.poll() is not None:
            self.process = self._start()

    def end(self) -> None:
        """End it for good."""
        self.process.kill()
        self.process.wait()
        self.link.close()
        self._log.close()


def driver(server: PostgresServer) -> int | None:
    """Return the pid of the process that drives, if one does."""
    rows = server.execute(
        f"SELECT p.pid FROM {SCHEMA}.seats s JOIN {SCHEMA}.processes p ON p.name = s.process "
        "WHERE p.beat > extract(epoch FROM clock_timestamp()) - 10"
    )
    return int(rows[0][0]) if rows else None


def beats_since(server: PostgresServer, moment: float) -> bool:
    """Return whether the process that drives has renewed its lease after a moment."""
    rows = server.execute(
        f"SELECT max(p.beat) FROM {SCHEMA}.seats s JOIN {SCHEMA}.processes p ON p.name = s.process"
    )
    return (rows[0][0] or 0.0) > moment


def epoch(server: PostgresServer) -> int:
    """Return the number that each process raises when it begins to drive."""
    return int(server.execute(f"SELECT coalesce(max(epoch), 0) FROM {SCHEMA}.workspaces")[0][0])


def play(
    requests: int, faults: int, seed: int, latency: str, folder: Path, *, procrastinate: bool
) -> list[str]:
    """Play one; return what is wrong."""
    # Each kind as often as the others, in an order of the seed.
    dice = random.Random(seed)
    order = dice.sample(list(FAULTS), len(FAULTS))
    prompts, answers = folder / "prompts.jsonl", folder / "answers.jsonl"
    with prompts.open("w") as file:
        for number in range(requests):
            file.write(json.dumps({"id": f"r{number}", "prompt": f"say {number}"}) + "\n")
    sandbox = SandboxProcess()
    address = sandbox.start_sandbox("--latency", latency)
    os.environ |= {
        "ANTHROPIC_API_KEY": "sk-ant-sandbox",
        "ANTHROPIC_BASE_URL": address,
        "CLAUDE_BATCH_STATE_DIR": str(folder / "state"),
        "CLAUDE_BATCH_SETTLING": "2s",
        "CLAUDE_BATCH_LOOKBACK": "1m",
        "CLAUDE_BATCH_POLL_INTERVAL": "1s",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": str(ROOT / "examples" / "procrastinate"),
    }
    most = str(max(1, requests // 40))
    if procrastinate:
        worker = ["-m", "procrastinate", "--app=fleet.app", "worker"]
        asked = ["-c", ASKER, str(prompts), str(answers), most]
    else:
        worker = ["-m", "claude_batch", "worker"]
        asked = [
            *("-m", "claude_batch", "run", str(prompts), "-o", str(answers)),
            *("--model", "claude-haiku-4-5", "--max-tokens", "64"),
            *("--max-requests", most, "--parallel-batches", "4"),
        ]
    wrong: list[str] = []
    members: list[Member] = []
    with PostgresServer() as server:
        try:
            if procrastinate:
                schema = [*worker[:-1], "schema", "--apply"]
                env = {**os.environ, "JOBS_URL": server.url()}
                subprocess.run([sys.executable, *schema], env=env, check=True)
            members += [
                Member(server, worker, folder / f"worker-{number}.log") for number in range(3)
            ]
            if not procrastinate:  # whose workers begin with the first request
                wait_for(lambda: has_tables(server) and driver(server) is not None, 60)
            run = Member(server, asked, folder / "run.log")
            members.append(run)
            wait_for(lambda: has_tables(server) and driver(server) is not None, 60)
            begun = time.monotonic()
            played = 0
            down: list[tuple[float, Member, str]] = []
            while run.process.poll() is None or any(each[1] is run for each in down):
                now = time.monotonic()
                if now - begun > LONGEST:
                    wrong.append(f"it did not end within {LONGEST:g} s")
                    break
                for each in [each for each in down if each[0] <= now]:
                    each[1].recover(each[2])
                    down.remove(each)
                if procrastinate:
                    # Without the server its workers end, and leave it to others to start them.
                    for each in members:
                        if each is not run and not any(each is out[1] for out in down):
                            each.start_again()
                pid = driver(server)
                driving = [each for each in members if each.process.pid == pid]
                if played < faults and driving and not down and now - begun > 5 * (played + 1):
                    fault = order[played % len(order)]
                    victim, before = driving[0], epoch(server)
                    if not victim.suffer(fault, server, lambda: run.process.poll() is not None):
                        continue
                    played += 1
                    struck, struck_at = time.monotonic(), time.time()
                    # Between two transactions a restart takes nothing from a driver.
                    stays = fault == "restart of the server"
                    down.append((struck + dice.uniform(*DOWN), victim, fault))
                    while time.monotonic() - struck < 60 and epoch(server) == before:
                        if stays and beats_since(server, struck_at):
                            break
                        time.sleep(0.1)
                    took = time.monotonic() - struck
                    whose = "" if stays else " of the run" if victim is run else " of a worker"
                    print(f"{fault}{whose}: driven again after {took:.1f} s", flush=True)
                    if took > FAULTS[fault]:
                        wrong.append(f"driven again only {took:.1f} s after {fault}")
                time.sleep(0.2)
            print(f"{played} faults in {time.monotonic() - begun:.0f} s")
            wrong += judged(answers, requests, sandbox)
        finally:
            for member in members:
                member.end()
            sandbox.stop_sandbox()
    return wrong


def wait_for(condition: Any, seconds: float) -> None:
    """Wait until a condition holds. Raises `TimeoutError`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the workers did not begin")
        time.sleep(0.2)


def has_tables(server: PostgresServer) -> bool:
    """Return whether a worker has created the ledger."""
    rows = server.execute(f"SELECT to_regclass('{SCHEMA}.seats') IS NOT NULL")
    return bool(rows[0][0])


def judged(answers: Path, requests: int, sandbox: SandboxProcess) -> list[str]:
    """Return what the output and the bill have against it."""
    wrong: list[str] = []
    if not answers.exists():
        return ["there is no output"]
    lines = [json.loads(line) for line in answers.open()]
    good = [line for line in lines if line["ok"]]
    if len(lines) != requests or len(good) != requests:
        wrong.append(f"{len(lines)} lines, {len(good)} of them succeeded, of {requests} requests")
    bill = sandbox.billing_summary()
    print(f"bill: {json.dumps(bill)[:300]}")
    if bill["paid"] != requests:
        wrong.append(f"{bill['paid']} requests were paid for, of {requests}")
    if bill["paid_more_than_once"]:
        wrong.append(f"{bill['paid_more_than_once']} requests were paid for more than once")
    return wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--faults", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--latency", default="6s", help="how long the API takes for a batch")
    parser.add_argument("--storms", type=int, default=1)
    parser.add_argument("--procrastinate", action="store_true", help="with procrastinate's workers")
    given = parser.parse_args()
    failed: list[int] = []
    for seed in range(given.seed, given.seed + given.storms):
        folder = Path(tempfile.mkdtemp(prefix="claude-batch-fleet-"))
        print(f"seed {seed}, logs in {folder}", flush=True)
        wrong = play(
            *(given.requests, given.faults, seed, given.latency, folder),
            procrastinate=given.procrastinate,
        )
        for each in wrong:
            print(f"WRONG: {each}")
        print("the fleet failed" if wrong else "each request was answered, and paid for once")
        failed += [seed] if wrong else []
    if given.storms > 1:
        print(f"{given.storms - len(failed)} of {given.storms} fleets went well; failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
