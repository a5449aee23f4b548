"""Plays mutated answers, many or one again: `python -m fuzzing --seed 17 --count 100000`.

A case is drawn from the seed and its number alone, so that the two play it again. Hypothesis would
shrink a failing case, but it takes many times as long to draw one as the case takes to play; so
cases are drawn by `random.Random`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzzing import bodies
from fuzzing.mutations import mutated_body, mutated_headers
from fuzzing.network import Network
from fuzzing.readers import REDACTION, read_error, read_headers, read_line, read_message
from fuzzing.stored import LINES, Collected

__all__ = ["Report", "play"]

LONGEST = 30
"""Seconds that a case may take. The slowest honest ones, a whole batch, take about one."""

MOST_FAILURES = 20


@dataclass
class Report:
    """What was played, and each case in which something else than a named error came out."""

    seed: int
    answers: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])


class _TooLong(BaseException):
    """A case has taken longer than `LONGEST`. No `Exception`, so that nothing swallows it."""


def _line(rng: Random) -> bytes:
    number = rng.randrange(10_000)
    custom_id = f"0123456789abcdef0123456789abcdef-01234567-{number:04d}"
    return mutated_body({"custom_id": custom_id, "result": rng.choice(bodies.LINES)}, rng)


def _draw(rng: Random) -> str:
    """The kind of the next case, after the weights of what may go wrong in it."""
    kinds = {"line": 40, "message": 15, "error": 10, "headers": 10, "network": 25, "stored": 0.05}
    return rng.choices(list(kinds), list(kinds.values()))[0]


async def _case(kind: str, rng: Random, network: Network, collected: Collected) -> bytes:
    """Play a case; returns the bytes that it had, which a failure leaves in `network.answer`."""
    if kind == "network":
        return await network.play(rng)
    if kind == "stored":
        return await collected.play(rng)
    headers = mutated_headers(bodies.HEADERS, rng)
    if kind == "headers":
        network.answer = repr(headers).encode()
        read_headers(headers, rng)
    elif kind == "error":
        status, body = rng.choice(bodies.ERRORS)
        network.answer = data = mutated_body(body, rng)
        read_error(status, headers, data)
    elif kind == "message":
        network.answer = data = mutated_body(rng.choice(bodies.MESSAGES), rng)
        read_message(data, rng)
    else:
        network.answer = data = REDACTION.answer(_line(rng))
        read_line(data, rng)
    return network.answer


@contextmanager
def _surroundings(folder: Path) -> Generator[None]:
    """No log of what is refused, no proxy and no state of the user's, and an alarm for a hang."""

    def too_long(*_: object) -> None:
        raise _TooLong(f"the case took longer than {LONGEST} s")

    before = dict(os.environ)
    os.environ["CLAUDE_BATCH_STATE_DIR"] = str(folder / "state")
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    alarm = signal.signal(signal.SIGALRM, too_long)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        os.environ.clear()
        os.environ.update(before)


def play(
    seed: int, count: int, *, only: int | None = None, kept: Path | None = None, loud: bool = False
) -> Report:
    """Play cases until ``count`` answers were read, or the one whose number is ``only``.

    The bytes of failed cases are written into the folder ``kept``.
    """
    with (
        tempfile.TemporaryDirectory(prefix="claude-batch-fuzz-") as name,
        _surroundings(Path(name)),
    ):
        return asyncio.run(_play(Path(name), Report(seed), count, only, kept, loud))


async def _play(
    folder: Path, report: Report, count: int, only: int | None, kept: Path | None, loud: bool
) -> Report:
    async with Network() as network:
        collected = Collected(folder, network)
        number, told = 0 if only is None else only, time.monotonic()
        most = MOST_FAILURES if loud else 1
        while report.answers < count and len(report.failures) < most:
            rng = Random(f"{report.seed}/{number}")
            kind = _draw(rng)
            network.answer = b""
            signal.setitimer(signal.ITIMER_REAL, LONGEST)
            try:
                await _case(kind, rng, network, collected)
            except (Exception, _TooLong):
                report.failures.append(_failure(report.seed, number, kind, network.answer, kept))
                if loud:
                    print(report.failures[-1], flush=True)
            report.kinds[kind] += 1
            report.answers += LINES if kind == "stored" else 1
            number += 1
            if only is not None:
                break
            if loud and time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"{report.answers:,} answers", flush=True)
        collected.close()
    return report


def _failure(seed: int, number: int, kind: str, answer: bytes, kept: Path | None) -> str:
    words = f"case {number} ({kind}) of seed {seed}:\n{traceback.format_exc(limit=-12)}"
    words += f"answered: {answer[:600]!r}\n"
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        path = kept / f"{seed}-{number}.bin"
        path.write_bytes(answer)
        words += f"whole: {path}\n"
    return f"{words}again: nox -s fuzz -- --seed {seed} --only {number}\n"


def main() -> int:
    """Play what the command line asks for; 1 where a case failed."""
    parser = argparse.ArgumentParser(prog="nox -s fuzz --", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--count", type=int, default=100_000, help="answers")
    parser.add_argument("--only", type=int, help="the number of the one case to play")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    begun = time.monotonic()
    report = play(
        options.seed, options.count, only=options.only, kept=Path("build/fuzz"), loud=True
    )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.kinds.most_common())
    seconds = time.monotonic() - begun
    print(f"seed {report.seed}: {report.answers:,} answers in {seconds:.0f} s ({kinds})")
    print(f"{len(report.failures)} failures")
    return 1 if report.failures else 0
