"""Plays random histories, many or one again."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from model.machine import LifecycleMachine
from model.mutants import MUTANTS
from model.process import in_memory, staged
from model.verdict import Violation

__all__ = ["EXAMPLES", "STEPS", "play"]

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "200"))
STEPS = int(os.environ.get("MODEL_STEPS", "30"))
REPLAY = os.environ.get("MODEL_REPLAY")

_BLOB = re.compile(r"@reproduce_failure\('([^']+)', b'([^']+)'\)")


@contextmanager
def _quiet() -> Generator[None]:
    # What a driver logs of thousands of histories helps nobody.
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def play(examples: int = EXAMPLES, *, mutant: str | None = None) -> str | None:
    """Play histories; gives None, or the one that broke a promise, in words and made short.

    ``mutant`` is one of `model.mutants.MUTANTS`; its histories are not made short.
    """
    machine = type("Histories", (LifecycleMachine,), {})
    if REPLAY and mutant is None:
        machine = hypothesis.reproduce_failure(hypothesis.__version__, REPLAY.encode())(machine)
    phases = [Phase.generate]
    broken = nullcontext() if mutant is None else MUTANTS[mutant]()
    with _quiet(), in_memory() as folder, staged(Path(folder)) as template, broken:
        machine.template = template
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=STEPS,
                    phases=phases,
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
            again = f"Play it again: MODEL_REPLAY={blob[2]}" if blob else ""
            return f"{error}\n{notes}\n{again}"
    return None
