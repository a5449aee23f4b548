"""What surrounds every scenario: a folder and an environment of its own, and nothing left running.

`context.tmp` is a folder that goes when the scenario ends. `CLAUDE_BATCH_LEDGER` and
`CLAUDE_BATCH_STATE_DIR` lie in it; the user's own key and settings are never seen. A scenario may
change `os.environ` as it likes: it is put back.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import compiled_sql
import ledgers_on_postgres
import programs
from behave.model import Scenario
from behave.runner import Context

OURS = ("ANTHROPIC_", "CLAUDE_BATCH_")
PATIENCE, MORE_PATIENCE = 300, 1200
"""Seconds after which a scenario, or one that is tagged @slow, is taken to hang.

Where more histories are asked for than the suite plays, the latter have a second more for each."""


def before_all(context: Context) -> None:
    """Forget the user's settings; also for what steps do before the first scenario."""
    folder = Path(tempfile.mkdtemp(prefix="claude-batch-features-"))
    context.add_cleanup(shutil.rmtree, folder, ignore_errors=True)
    for name in list(os.environ):
        if name.startswith(OURS):
            del os.environ[name]
    # A proxy of the user's must not stand between the tests and their own loopback.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"
    _keep_everything_in(folder)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As for whoever runs the tests in the background; commands would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if ledgers_on_postgres.VARIABLE in os.environ:
        ledgers_on_postgres.begin()
    compiled_sql.share()
    context.add_cleanup(programs.stop_forking, programs.start_forking())


def before_scenario(context: Context, scenario: Scenario) -> None:
    """A fresh folder and ledger; both cleanups run after the scenario's own."""
    # One that hangs ends its room, and shows where each thread stood, instead of ending nothing.
    histories = int(os.environ.get("HISTORIES", "0"))
    patience = MORE_PATIENCE + histories if "slow" in scenario.effective_tags else PATIENCE
    faulthandler.dump_traceback_later(patience, exit=True, file=sys.__stderr__)
    context.tmp = Path(tempfile.mkdtemp(prefix="claude-batch-scenario-"))
    context.add_cleanup(shutil.rmtree, context.tmp, ignore_errors=True)
    context.add_cleanup(_restore, dict(os.environ))
    _keep_everything_in(context.tmp)


def after_scenario(context: Context, scenario: Scenario) -> None:
    """Park what is still running, while the servers that it talks to still answer."""
    engine = sys.modules.get("claude_batch.lifecycle.engine")
    if engine is not None:
        engine.shutdown_all()
    faulthandler.cancel_dump_traceback_later()


def _keep_everything_in(folder: Path) -> None:
    os.environ["CLAUDE_BATCH_LEDGER"] = str(folder / "ledger.db")
    os.environ["CLAUDE_BATCH_STATE_DIR"] = str(folder / "state")


def _restore(environ: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
