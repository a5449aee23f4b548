"""Steps about paths, temporary files and locks where a neighbour means harm."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from behave import given, then, when
from behave.runner import Context
from cli_steps import keep_end
from tables import rule

from claude_batch.ledger.store import Ledger

NOBODY = 65534
OUTSIDE = "somebody else's"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@rule("a ledger that is opened and backed up at a path leads to files, with their modes,")
def _(context: Context, path: str) -> dict[str, str]:
    with TemporaryDirectory(dir=context.tmp) as folder, contextlib.chdir(folder):
        ledger = Ledger(str(Path.cwd() / path))
        ledger.backup(Path(f"{path}.backup"))
        ledger.close()
        found = sorted(Path.cwd().iterdir())
        return {"files": ", ".join(f"{each.name} {_mode(each):o}" for each in found)}


@given("links at the foreseeable names of temporary files, to a file of somebody else")
def _(context: Context) -> None:
    context.add_cleanup(os.umask, os.umask(0o022))
    outside = Path("outside")
    outside.write_text(OUTSIDE)
    Path("kept/raw").mkdir(parents=True)
    state = Path(os.environ["CLAUDE_BATCH_STATE_DIR"])
    state.mkdir()
    names = ["out.jsonl", "kept/000001.json", "kept/000002.json", "kept/summary.json"]
    names += ["kept/raw/results.jsonl", "copy.db"]
    for name in names:
        path = Path(name)
        path.with_name(f".{path.name}.{os.getpid()}.partial").symlink_to(outside.absolute())
    Path(f"kept/.{os.getpid()}.partial").symlink_to(outside.absolute())
    # Whatever stands where a result is written is replaced, and not written through.
    Path("kept/000001.json").symlink_to(outside.absolute())
    Path("kept/raw/results.jsonl").symlink_to(outside.absolute())


@then("the file of somebody else is as it was")
def _(context: Context) -> None:
    assert Path("outside").read_text() == OUTSIDE


@rule("files have the mode")
def _(context: Context, files: str) -> str:
    found = list(context.tmp.glob(files))
    assert found, sorted(context.tmp.rglob("*"))
    assert not [path for path in found if path.is_symlink()], found
    [mode] = {_mode(path) for path in found}
    return f"{mode:o}"


@given('"{name}" is being written by another process')
def _(context: Context, name: str) -> None:
    held = open(name)  # noqa: SIM115 - until the scenario ends
    context.add_cleanup(held.close)
    fcntl.flock(held, fcntl.LOCK_EX)


@given("this process may give files away")
def _(context: Context) -> None:
    if os.geteuid() != 0:
        context.scenario.skip("only root may give a file to another user")
        return
    assert pwd.getpwuid(NOBODY).pw_name == "nobody"


@given("this process may mount a file")
def _(context: Context) -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-rm", "mount", "--bind", ".", "."], check=False).returncode
    ):
        context.scenario.skip("this system gives users no mounts of their own")


@when('the files "{files}" get the mode {mode}')
@when('the files "{files}" belong to {user:w}')
def _(context: Context, files: str, mode: str = "", user: str = "") -> None:
    found = list(context.tmp.glob(files))
    assert found, sorted(context.tmp.rglob("*"))
    for path in found:
        if mode:
            path.chmod(int(mode, 8))
        else:
            owner = pwd.getpwnam(user)
            os.chown(path, owner.pw_uid, owner.pw_gid)


_AS_NOBODY = """
import os, sys
from click.testing import CliRunner
from claude_batch.cli.app import group
user, *words = sys.argv[1:]
# Once as root, so that all is imported: what is installed may lie where only root may read.
CliRunner().invoke(group, words)
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
ended = CliRunner().invoke(group, words)
print(ended.output)
sys.exit(ended.exit_code)
"""


@when("the user nobody runs a command: {words}")
def _(context: Context, words: str) -> None:
    given = [word.replace("RUN", getattr(context, "run_id", "RUN")) for word in words.split()]
    ended = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(NOBODY), *given],
        capture_output=True,
        text=True,
        timeout=120,
    )
    # What is printed has also what was said.
    keep_end(context, ended.returncode, ended.stdout, ended.stdout + ended.stderr)
