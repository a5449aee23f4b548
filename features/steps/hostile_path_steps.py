"""Steps about paths, temporary files and locks where a neighbour means harm."""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

from behave import given, then, when
from behave.runner import Context

from claude_batch.ledger.store import Ledger

NOBODY = 65534
OUTSIDE = "somebody else's"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _ledger() -> Path:
    return Path(os.environ["CLAUDE_BATCH_LEDGER"])


@when('a ledger is opened and backed up at the path "{name}"')
def _(context: Context, name: str) -> None:
    os.mkdir("inside")
    os.chdir("inside")
    ledger = Ledger(str(Path.cwd() / name))
    ledger.backup(Path(f"{name}.backup"))
    ledger.close()


@then('the folder has but files called "{name}", all of mode 0600')
def _(context: Context, name: str) -> None:
    found = sorted(path.name for path in Path.cwd().iterdir())
    assert found == [name, f"{name}.backup"], found
    assert {_mode(path) for path in Path.cwd().iterdir()} == {0o600}


@given("links at the foreseeable names of temporary files, to a file of somebody else")
def _(context: Context) -> None:
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


@then("the files {names} have the mode of the user's umask")
def _(context: Context, names: str) -> None:
    umask = os.umask(0o077)
    os.umask(umask)
    for name in names.split(", "):
        assert not Path(name).is_symlink(), name
        assert _mode(Path(name)) == 0o666 & ~umask, (name, oct(_mode(Path(name))))


@then("no temporary file is left")
def _(context: Context) -> None:
    left = [path for path in context.tmp.rglob("*.partial") if not path.is_symlink()]
    assert left == [], left


@then("the ledger's files, its locks, its mark and copy.db are readable by their owner alone")
def _(context: Context) -> None:
    ledger, state = _ledger(), Path(os.environ["CLAUDE_BATCH_STATE_DIR"])
    found = [*ledger.parent.glob(f"{ledger.name}*"), *state.iterdir(), Path("copy.db")]
    assert any(".seat-" in path.name for path in found), found
    assert any(path.name.endswith(".json.lock") for path in found), found
    wrong = {path.name: oct(_mode(path)) for path in found if _mode(path) != 0o600}
    assert not wrong, wrong


@given("a temporary file of a killed process, and others beside out.jsonl")
def _(context: Context) -> None:
    context.dead = Path(".out.jsonl.0123456789abcdef.partial")
    context.dead.write_text("half a line")
    context.others = [
        Path(".out.jsonl.fedcba9876543210.partial"),  # whose process lives
        Path(".out.jsonl.mine.partial"),
        Path(".other.jsonl.0123456789abcdef.partial"),
        Path(".out.jsonl.00000000000000ff.partial"),  # a link
    ]
    for path in context.others[:3]:
        path.write_text("")
    context.others[3].symlink_to("asks.jsonl")
    held = open(context.others[0])  # noqa: SIM115 - until the scenario ends
    context.add_cleanup(held.close)
    fcntl.flock(held, fcntl.LOCK_EX)


@then("only the temporary file of the killed process is gone")
def _(context: Context) -> None:
    assert not context.dead.exists()
    found = sorted(str(path) for path in Path().glob(".*.partial"))
    assert found == sorted(map(str, context.others)), found


@given("this process may give files away")
def _(context: Context) -> None:
    if os.geteuid() != 0:
        context.scenario.skip("only root may give a file to another user")
        return
    assert pwd.getpwuid(NOBODY).pw_name == "nobody"


@when("the {which} lock belongs to another user")
def _(context: Context, which: str) -> None:
    os.chown(_lock(which), NOBODY, -1)


def _lock(which: str) -> Path:
    if which == "seat":
        return Path(f"{_ledger()}.seat-1")
    (found,) = Path(os.environ["CLAUDE_BATCH_STATE_DIR"]).glob("*.lock")
    return found


@when("everything but the seat lock is given to another user")
def _(context: Context) -> None:
    for path in [context.tmp, *context.tmp.rglob("*")]:
        if path != _lock("seat"):
            os.chown(path, NOBODY, NOBODY)


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


@when("that user runs a command: {words}")
def _(context: Context, words: str) -> None:
    given = [word.replace("RUN", context.run_id) for word in words.split()]
    context.theirs = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(NOBODY), *given],
        capture_output=True,
        text=True,
        timeout=120,
    )


@then('that user is told "{words}"')
def _(context: Context, words: str) -> None:
    ended = context.theirs
    assert ended.returncode == 2, (ended.returncode, ended.stdout, ended.stderr)
    assert words in ended.stdout, ended.stdout


@when("the seat lock has the mode 0644")
def _(context: Context) -> None:
    _lock("seat").chmod(0o644)


@then("the seat lock has become the owner's alone")
def _(context: Context) -> None:
    assert _mode(_lock("seat")) == 0o600
