"""Steps of commands whose standard streams are closed, or lead nowhere."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from behave import then
from behave.runner import Context
from cli_steps import search_path


@then("a command in a shell ends with a code and says")
def _(context: Context) -> None:
    full = any("/dev/full" in row["command"] for row in context.table)
    if full and not Path("/dev/full").exists():
        context.scenario.skip("this system has no such device")
        return
    python = f"{shlex.quote(sys.executable)} -m claude_batch"
    for row in context.table:
        words = row["command"].replace("RUN", context.run_id)
        command, bar, reader = words.partition("|")
        script = f"{{ {command.replace('claude-batch', python)}; echo $? >code; }} {bar}{reader}"
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, timeout=60,
            stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": search_path()},
        )  # fmt: skip
        code = int(Path("code").read_text())
        assert code == int(row["code"]), (row["command"], code, done.stderr)
        expected = row["says"].replace("RUN", context.run_id)
        assert expected in done.stderr, (row["command"], done.stderr)
        assert expected or not done.stderr, (row["command"], done.stderr)
        for wrong in ("bug in claude-batch", "Traceback", "Exception ignored"):
            assert wrong not in done.stderr, (row["command"], done.stderr)
