"""Steps of ledgers that name code: whose it is, whether it ran here, and what is said of it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import programs
from behave import given, then, when
from behave.runner import Context
from sqlalchemy import select, update
from staging import QUICK, until, writing

import claude_batch as cb
from claude_batch.ledger.schema import runs

THEIRS = '''
import os
from pathlib import Path

with Path(os.environ["TESTS_IMPORTS"]).open("a") as stream:
    stream.write(f"{os.getpid()}\\n")


def tide(harbour: str) -> str:
    """The tide."""
    return "the tide is high"
'''

STORES = """
import sys, claude_batch as cb
provider = cb.ClaudeBatchProvider(drive=False, linger=0.3, poll_interval=0.05)
actor = cb.ActorLoader.load(sys.argv[1])
print(provider.store(actor, ["Look [[sandbox:tools]]"]).id)
"""


@given("a ledger whose run calls a function of somebody else's file")
def _(context: Context) -> None:
    context.add_cleanup(os.chdir, os.getcwd())
    context.add_cleanup(setattr, sys, "path", list(sys.path))
    os.chdir(context.tmp)
    context.theirs = context.tmp / "theirs"
    context.theirs.mkdir()
    context.module = f"theirs_{uuid.uuid4().hex}"
    context.add_cleanup(sys.modules.pop, context.module, None)
    (context.theirs / f"{context.module}.py").write_text(THEIRS)
    (context.theirs / "actor.yaml").write_text(
        "name: tests/asker\nmodel: claude-haiku-4-5\nbatch_processing: true\n"
        f"tools: ['{context.module}:tide']\n"
    )
    context.imports = context.tmp / "imports.txt"
    context.imports.touch()
    os.environ["TESTS_IMPORTS"] = str(context.imports)
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "50ms"
    done = programs.run(STORES, str(context.theirs / "actor.yaml"))
    assert done.returncode == 0, done.stderr
    context.run_id = context.theirs_id = done.stdout.strip()
    context.prompt = "Look [[sandbox:tools]]"


@given("that ledger has an ordinary run too")
def _(context: Context) -> None:
    actor = cb.ActorConfiguration(name="tests/plain", model="claude-haiku-4-5")
    with cb.ClaudeBatchProvider(drive=False, **QUICK) as provider:
        context.ordinary = provider.store(actor, ["hello"]).id


@when("it is driven until nothing goes on")
def _(context: Context) -> None:
    with cb.ClaudeBatchProvider(**QUICK) as provider:
        provider.resume()
        theirs = provider.open_run(context.theirs_id)
        until(lambda: theirs.status().counts.get(cb.RequestState.CONTINUING))
        if "ordinary" in context:
            provider.open_run(context.ordinary).wait_sync()
        # It has been looked for its tools.
        until(lambda: provider.missing_tools(context.theirs_id))


def _imported_here(context: Context) -> int:
    return context.imports.read_text().split().count(str(os.getpid()))


@then("nothing of that file has run here")
def _(context: Context) -> None:
    assert _imported_here(context) == 0, context.imports.read_text()


@then("that file has run here once")
def _(context: Context) -> None:
    assert _imported_here(context) == 1, context.imports.read_text()


@then("the ordinary run is answered, and the other one waits between two turns")
def _(context: Context) -> None:
    with cb.open_run(context.ordinary, drive=False) as ordinary:
        [result] = ordinary.results_sync()
        assert result.ok, result
        theirs = ordinary.provider.open_run(context.theirs_id).status()
    assert theirs.counts == {cb.RequestState.CONTINUING: 1}, theirs
    assert theirs.failed == 0 and not theirs.finished, theirs


def _change_tools(change: Any) -> None:
    with writing() as tx:
        [before] = tx.scalars(select(runs.c.tools).where(runs.c.tools.is_not(None)))
        tx.execute(update(runs).where(runs.c.tools.is_not(None)).values(tools=change(before)))


@given("the ledger says of its tools {literal}")
def _(context: Context, literal: str) -> None:
    word, _, times = literal.partition(" * ")
    value = ast.literal_eval(word)
    with writing() as tx:
        # As anybody may write it: past the types of the schema.
        tx.exec_driver_sql(
            "UPDATE runs SET tools = ? WHERE tools IS NOT NULL",
            (value * int(times) if times else value,),
        )


@given("that file {change}")
def _(context: Context, change: str) -> None:
    file: Path = context.theirs / f"{context.module}.py"
    elsewhere = context.tmp / "elsewhere"
    elsewhere.mkdir()
    match change:
        case "has been changed since":
            file.write_text(file.read_text() + "\n# changed\n")
        case "is gone, and another one is on the path":
            shutil.move(file, elsewhere / file.name)
            (elsewhere / file.name).write_text(THEIRS + "\n# another one\n")
            sys.path.append(str(elsewhere))
        case "is gone":
            file.unlink()
        case "was stored by a version without digests":
            _change_tools(
                lambda before: json.dumps([{**each, "source": None} for each in json.loads(before)])
            )
        case "is named by its path":
            _change_tools(
                lambda before: json.dumps(
                    [{**each, "function": f"{file}:tide"} for each in json.loads(before)]
                )
            )
        case _:
            raise AssertionError(change)


@when("its actor file is loaded here, and the run is waited for")
def _(context: Context) -> None:
    with cb.load_actor(context.theirs / "actor.yaml", **QUICK) as actor:
        assert actor.configuration.toolset is not None
        with cb.open_run(context.theirs_id, **QUICK) as run:
            context.results = list(run.results_sync())
