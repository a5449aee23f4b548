"""Plays random histories, many or one again."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import hypothesis
import ledgers_on_postgres
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.stateful import run_state_machine_as_test

from claude_batch.core.errors import LedgerError
from histories.conversation_machine import ConversationMachine
from histories.join_machine import JoinMachine
from histories.live_machine import LiveMachine
from histories.machine import LifecycleMachine
from histories.mutants import MUTANTS
from histories.orders_machine import OrdersMachine
from histories.process import in_memory, staged
from histories.restore_machine import RestoreMachine
from histories.restored_conversation_machine import RestoredConversationMachine
from histories.restored_orders_machine import RestoredOrdersMachine
from histories.verdict import Violation

__all__ = ["find_out", "play"]

REPLAY = os.environ.get("HISTORY_REPLAY")
"""What a broken promise told: that history is played again, and no other."""

STEPS = 30

FAMILIES: Mapping[str, type[LifecycleMachine]] = {
    "": LifecycleMachine,
    "live calls": LiveMachine,
    "conversations": ConversationMachine,
    "restored copies": RestoreMachine,
    "runs that are asked again": OrdersMachine,
    "equal requests": JoinMachine,
    "conversations in restored copies": RestoredConversationMachine,
    "runs that are asked again in restored copies": RestoredOrdersMachine,
}
"""The machine that makes the histories, by what they have beside batches."""

_SHARES = {
    "restored copies": 4,
    "conversations": 12,
    "runs that are asked again": 4,
    "equal requests": 10,
    "conversations in restored copies": 20,
    "runs that are asked again in restored copies": 20,
}
"""A history with these takes longer, so that only one of so many is played."""

FRESH_STARTS, A_FEW = 40, 25
"""So many times so many histories are played to find out a mutant."""

_BLOB = re.compile(r"@reproduce_failure\('([^']+)', b'([^']+)'\)")


@contextmanager
def _always_alike() -> Generator[None]:
    """Draw the same histories whatever modules there are, unless new ones are wanted.

    Hypothesis also draws constants that it finds in the sources of all local modules. A change of
    any step, and of where the package is installed, would lead to other histories.
    """
    if "HISTORIES" in os.environ:
        yield
        return
    with patch.object(providers, "_get_local_constants", Constants):
        yield


@contextmanager
def _quiet() -> Generator[None]:
    # What a driver logs of thousands of histories helps nobody.
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _so_many() -> int:
    """How many the suite plays; `nox -s storms` plays thousands.

    One on PostgreSQL takes ten times as long, as the server gets a schema for each.
    """
    few = "15" if ledgers_on_postgres.VARIABLE in os.environ else "60"
    return int(os.environ.get("HISTORIES", few))


def find_out(mutant: str) -> str | None:
    """Play histories until one shows what a mutant breaks; gives it, or None, in words.

    A few from each of many seeds: Hypothesis varies what it has drawn, and of a seed whose first
    histories show nothing it may play hundreds that show nothing either.
    """
    seeds = (MUTANTS[mutant].seed, *range(1, FRESH_STARTS))
    return next(filter(None, (play(A_FEW, mutant=mutant, seed=seed) for seed in seeds)), None)


def play(
    count: int | None = None, *, mutant: str | None = None, seed: int = 0, family: str = ""
) -> str | None:
    """Play histories; gives None, or the one that broke a promise, in words.

    ``mutant`` is one of `histories.mutants.MUTANTS`, and ``family`` one of `FAMILIES`.
    """
    if mutant is not None:
        family = MUTANTS[mutant].family
    machine = type("Histories", (FAMILIES[family],), {})
    if REPLAY and mutant is None:
        machine = hypothesis.reproduce_failure(hypothesis.__version__, REPLAY.encode())(machine)
    broken = nullcontext()
    if mutant is not None:
        broken = MUTANTS[mutant].breaking()
        hypothesis.seed(seed)(machine)
    with _always_alike(), _quiet(), in_memory() as folder, staged(Path(folder)) as template, broken:
        machine.template = template
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=count or max(1, _so_many() // _SHARES.get(family, 1)),
                    stateful_step_count=STEPS,
                    # Made short a history tells little more, and that takes minutes.
                    phases=[Phase.generate],
                    # The suite plays the same ones each time, so that it fails for a change and
                    # nothing else; `nox -s storms` plays new ones.
                    derandomize=mutant is None and "HISTORIES" not in os.environ,
                    deadline=None,
                    database=None,
                    print_blob=True,
                    report_multiple_bugs=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except Violation as error:
            notes = "\n".join(getattr(error, "__notes__", ()))
            blob = _BLOB.search(notes)
            again = f"Play it again: HISTORY_REPLAY={blob[2]}" if blob else ""
            return f"{error}\n{notes}\n{again}"
        except LedgerError:
            # A broken driver may run into a guard of the ledger before it breaks a promise.
            if mutant is None:
                raise
    return None
