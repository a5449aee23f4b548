"""Storms: real commands against a real sandbox, killed and started again until they are done.

python robot/resources/storms.py --seed 17 --family run     play one storm (again)
python robot/resources/storms.py --count 200                many, each in a process of its own

A storm is drawn from its seed (`storm_faults`): what is asked, what goes wrong at the API, when
processes die, and what a stranger does in the same workspace. Its processes are started again until
their output is there; then `storm_verdict` judges what is left. All that is known of a storm that
was not weathered stays in build/storms/FAMILY-SEED.

In Robot:  Library    storms.py
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

from robot.api.deco import keyword
from storm_faults import FAMILIES, Family, Storm, draw, drawn_for
from storm_forgeries import FORGERIES
from storm_verdict import Json, verdict
from storm_weather import LONGEST, Weather

ROBOT_AUTO_KEYWORDS = False

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[1] / "build" / "storms"

MOST_FINDINGS = 8
LONGEST_WORDS = 1500
"""So many findings, of so many characters, are printed; the file has them all."""

AT_A_TIME = (os.cpu_count() or 1) + 2
"""Storms played side by side: most of their time they wait."""


class NotWeathered(AssertionError):
    """A storm broke the promise, or did not end."""


# Playing storms


def play(storm: Storm, *, keep: bool = False, breakage: str = "-") -> str:
    """Play one storm; a line that tells how it went. Raises `NotWeathered`."""
    begun = time.monotonic()
    family, seed = storm.family, storm.seed
    folder = KEPT / (f"{family}-{seed}" if breakage == "-" else breakage)
    weather = Weather(storm, folder, breakage)
    found = weather.play()
    prompts = sum(len(role.prompts) for role in storm.roles)
    told = (
        f"{family} {seed}: {prompts} prompts, {weather.starts} processes, {weather.deaths} deaths, "
        f"{weather.tally}, {time.monotonic() - begun:.1f} s"
    )
    if found:
        command = f"python robot/resources/storms.py --family {family} --seed {seed}"
        lines = [f"  - {each[:LONGEST_WORDS]}" for each in found[:MOST_FINDINGS]]
        if len(found) > MOST_FINDINGS:
            lines.append(f"  and {len(found) - MOST_FINDINGS} more findings")
        lines += [f"  play it again: {command}", f"  all that is known: {folder}"]
        raise NotWeathered("\n".join([f"NOT WEATHERED {told}", *lines]))
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return f"weathered {told}"


def family_of(seed: int) -> Family:
    """The family that a seed has where nobody names one."""
    return FAMILIES[seed % len(FAMILIES)]


def play_many(seeds: list[int], jobs: int, family: Family | None = None) -> list[str]:
    """Play storms, each in a process of its own and a few at a time; what failed."""
    failed: list[str] = []

    def one(seed: int) -> None:
        chosen = family or family_of(seed)
        done = subprocess.run(
            [sys.executable, str(HERE / "storms.py"), "--family", chosen, "--seed", str(seed)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=LONGEST + 120,
        )  # fmt: skip
        print(done.stdout, end="", flush=True)
        if done.returncode != 0:
            failed.append(done.stdout)

    with ThreadPoolExecutor(jobs) as pool:
        for outcome in [pool.submit(one, seed) for seed in seeds]:
            outcome.result()
    return failed


# In Robot


@keyword
def storms_should_be_weathered(first: int, count: int, jobs: int = AT_A_TIME) -> None:
    """Play so many storms, from the first seed on; fails with what is told of those that broke."""
    failed = play_many(list(range(first, first + count)), jobs)
    if failed:
        raise NotWeathered(f"{len(failed)} of {count} storms\n" + "\n".join(failed))


@keyword
def storm_should_see_through(breakage: str, words: str) -> None:
    """A spoiled build (see `mortal.BREAKAGES`) must be found out, in these words."""
    try:
        told = play(drawn_for(breakage), breakage=breakage)
    except NotWeathered as error:
        if words not in str(error):
            raise AssertionError(f"not found out by {words!r}: {error}") from None
        shutil.rmtree(KEPT / breakage, ignore_errors=True)
        return
    raise AssertionError(f"the build {breakage} was not found out: {told}")


@keyword
def evidence_of_a_storm(family: Family, seed: int) -> Json:
    """Play a storm that is weathered; the evidence that its verdict was made from."""
    play(draw(family, seed), keep=True)
    folder = KEPT / f"{family}-{seed}"
    evidence: Json = json.loads((folder / "evidence.json").read_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    return evidence


@keyword
def forged_evidence_should_be_found_out(evidence: Json, forgery: str, words: str) -> None:
    """Change evidence as a forgery of `storm_forgeries` does; the verdict must say so."""
    if found := verdict(evidence):
        raise AssertionError(f"the evidence is no good to begin with: {found}")
    forged = copy.deepcopy(evidence)
    FORGERIES[forgery](forged)
    found = verdict(forged)
    if not any(words in each for each in found):
        raise AssertionError(f"{forgery} was not found out by {words!r}: {found}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Storms: nothing is lost, nothing paid twice.")
    parser.add_argument("--seed", type=int, help="play this storm, in this process")
    parser.add_argument("--family", choices=get_args(Family), help="by default the seed's own")
    parser.add_argument("--first", type=int, default=1, help="of many: the first seed")
    parser.add_argument("--count", type=int, default=200, help="of many: how many")
    parser.add_argument("--jobs", type=int, default=AT_A_TIME, help="of many: how many at a time")
    parser.add_argument("--keep", action="store_true", help="keep what is known of it anyhow")
    given = parser.parse_args()
    if given.seed is None:
        begun = time.monotonic()
        seeds = list(range(given.first, given.first + given.count))
        failed = play_many(seeds, given.jobs, given.family)
        took = time.monotonic() - begun
        print(f"{len(seeds) - len(failed)} of {len(seeds)} storms weathered in {took:.0f} s")
        return 1 if failed else 0
    try:
        print(play(draw(given.family or family_of(given.seed), given.seed), keep=given.keep))
    except NotWeathered as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
