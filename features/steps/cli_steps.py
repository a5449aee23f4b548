"""Steps of the command line: its inputs in-process, its commands against a real sandbox."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from click.testing import CliRunner
from rich.console import Console
from rich.live import Live
from staging import KEY, start_api, until

import claude_batch as cb
from claude_batch.cli import display, run_delivery
from claude_batch.cli.app import group
from claude_batch.cli.exits import printing_errors
from claude_batch.cli.inputs import Inputs
from claude_batch.cli.user_messages import BadInput, BadOutput
from claude_batch.core.states import BatchState, RequestState, RunState
from claude_batch.ledger.store import Ledger
from claude_batch.providers import progress
from claude_batch.providers.status import BatchStatus, RunStatus, all_statuses

SOURCES = str(Path(str(cb.__file__)).parents[1])


def search_path() -> str:
    """Where a process that is started anew finds the package, and what scenarios add to it."""
    return os.pathsep.join((SOURCES, os.environ.get("PYTHONPATH", "")))


ACTOR = "name: tests/asker\nprovider: anthropic\nmodel: claude-haiku-4-5\nbatch_processing: true\n"


# The scene


@given("a command's folder")
def _(context: Context) -> None:
    context.add_cleanup(os.chdir, os.getcwd())
    os.chdir(context.tmp)


@given("a command's API")
@given("a command's API with {settings}")
def _(context: Context, settings: str = "{}") -> None:
    context.execute_steps("Given a command's folder")
    start_api(context, **json.loads(settings))
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "50ms"
    Path("actor.yaml").write_text(ACTOR)


@given('a command\'s file "{name}"')
def _(context: Context, name: str) -> None:
    path = Path(name.replace(r"\udcff", "\udcff"))  # as Python has the byte 0xff of a name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = context.text.replace("SERVER", getattr(context, "server", "SERVER"))
    path.write_text(f"{text}\n", "utf-8")


@given('a command\'s file "{name}" of the bytes {literal}')
def _(context: Context, name: str, literal: str) -> None:
    Path(name).write_bytes(ast.literal_eval(literal))


@given('a command\'s file "{name}" of {depth:d} nested lists')
def _(context: Context, name: str, depth: int) -> None:
    Path(name).write_text("[" * depth)


@given('a command\'s file "{name}" of {count:d} prompts')
def _(context: Context, name: str, count: int) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("".join(f'"prompt {n}"\n' for n in range(1, count + 1)))


@given('a command\'s folder named "{name}"')
def _(context: Context, name: str) -> None:
    Path(name).mkdir()


@given("a command's environment has {name} = {value}")
@when("a command's environment has {name} = {value}")
def _(context: Context, name: str, value: str) -> None:
    os.environ[name] = "" if value == "nothing" else value


@given("a command's environment lacks {name}")
def _(context: Context, name: str) -> None:
    os.environ.pop(name, None)


# Inputs


@when('the command line reads "{inputs}"')
@when('the command line reads "{inputs}" with {options}')
def _(context: Context, inputs: str, options: str = "{}") -> None:
    given: dict[str, Any] = json.loads(options)
    context.left_out = []
    if given.pop("skip_invalid", False):
        given["on_invalid"] = context.left_out.append
    stdin = io.TextIOWrapper(io.BytesIO(given.pop("stdin", "").encode()))
    context.requests, context.refusal = [], None
    with mock.patch("sys.stdin", stdin):
        try:
            context.inputs = Inputs(inputs.split(), **given)
            context.requests.extend(context.inputs)
        except BadInput as error:
            context.refusal = str(error)


@then("the command line has read the requests")
def _(context: Context) -> None:
    assert context.refusal is None, context.refusal
    found = [
        (request.key, request.prompt if request.prompt is not None else
         json.dumps(request.messages or request.params))
        for request in context.requests
    ]  # fmt: skip
    expected = [(row["key"], row["request"].replace("\\n", "\n")) for row in context.table]
    assert found == expected, found


@then("the command line has read the documents")
def _(context: Context) -> None:
    assert context.refusal is None, context.refusal
    for row, request in zip(context.table, context.requests, strict=True):
        names = " ".join(document.name for document in request.documents)
        found = (request.key, names, str(request.citations))
        assert found == (row["key"], row["documents"], row["citations"]), found


@then("the command line refuses the input: {message}")
def _(context: Context, message: str) -> None:
    assert context.refusal is not None, "nothing was refused"
    assert message in context.refusal, context.refusal


@then("the command line has left out")
def _(context: Context) -> None:
    expected = context.text.split("\n")
    assert len(context.left_out) == len(expected), context.left_out
    assert context.inputs.skipped == len(expected), context.inputs.skipped
    for report, start in zip(context.left_out, expected, strict=True):
        assert report.startswith(start), report


# Commands in this process


def command(context: Context, words: str, stdin: str | None = None) -> None:
    context.ended = CliRunner().invoke(
        group, shlex.split(words.replace("RUN", getattr(context, "run_id", "RUN"))), input=stdin,
        prog_name="claude-batch",
    )  # fmt: skip
    context.errors = context.ended.stderr
    exception = context.ended.exception
    assert exception is None or isinstance(exception, SystemExit), repr(exception)
    assert "Traceback" not in context.ended.output, context.ended.output
    assert KEY not in context.ended.output
    if found := re.search(r"run-\w{10}", context.ended.output):
        context.run_id = found[0]


@when("a command runs: {words}")
def _(context: Context, words: str) -> None:
    command(context, words, context.text)


def creates(context: Context) -> list[Any]:
    return [call for call in context.api.log() if call["route"] == "create"]


@when("a command runs on a thread: {words}")
def _(context: Context, words: str) -> None:
    thread = threading.Thread(target=command, args=(context, words))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


@when("a command runs where nobody reads the output: {words}")
def _(context: Context, words: str) -> None:
    class Gone(io.BytesIO):
        def write(self, *_: Any) -> int:
            raise BrokenPipeError

    stdout = io.TextIOWrapper(Gone())
    errors = io.StringIO()
    with mock.patch("sys.stdout", stdout), mock.patch("sys.stderr", errors):
        try:
            group(shlex.split(words.replace("RUN", context.run_id)), prog_name="claude-batch")
        except SystemExit as error:
            context.code = error.code
    context.errors = errors.getvalue()


@then("a command without a reader has ended with {code:d}")
def _(context: Context, code: int) -> None:
    assert context.code == code, (context.code, context.errors)


@then("the command line exits with {code:d}")
def _(context: Context, code: int) -> None:
    ended = context.ended
    assert ended.exit_code == code, (ended.exit_code, ended.output)


@then("the command line exits with {code:d} and says")
def _(context: Context, code: int) -> None:
    context.execute_steps(f"Then the command line exits with {code}")
    says(context.errors, context)


@then("the command line says")
def _(context: Context) -> None:
    says(context.errors, context)


@then("the command line has said one line")
def _(context: Context) -> None:
    assert len(context.errors.splitlines()) == 1, context.errors
    assert context.ended.stdout == "", context.ended.stdout


@then("the command line does not say: {words}")
def _(context: Context, words: str) -> None:
    assert words not in context.errors, context.errors


@then("the command line prints")
def _(context: Context) -> None:
    says(context.ended.stdout, context)


@then("the command line prints in this order")
def _(context: Context) -> None:
    left = context.ended.stdout
    for line in context.text.replace("RUN", context.run_id).split("\n"):
        assert line in left, f"{line!r} does not follow in:\n{context.ended.stdout}"
        left = left.partition(line)[2]


def says(told: str, context: Context) -> None:
    for line in context.text.split("\n"):
        line = line.replace("RUN", getattr(context, "run_id", "RUN"))
        line = line.replace("PID", str(getattr(context, "pid", "PID")))
        assert line in told, f"{line!r} is not in:\n{told}"


@then("the command line prints nothing but {what}")
def _(context: Context, what: str) -> None:
    told = {"the run's id": f"{getattr(context, 'run_id', None)}\n", "errors": ""}
    assert context.ended.stdout == told[what], context.ended.stdout


# Outputs


def lines_of(context: Context, name: str) -> list[dict[str, Any]]:
    raw = context.ended.stdout if name == "standard output" else Path(name).read_text("utf-8")
    return [json.loads(line) for line in raw.splitlines()]


@then('the command line has written to "{name}"')
def _(context: Context, name: str) -> None:
    lines = lines_of(context, name)
    assert [line["id"] for line in lines] == [row["id"] for row in context.table], lines
    for line, row in zip(lines, context.table, strict=True):
        assert line["ok"] is (row["ok"] == "yes"), line
        told = line["text"] if line["ok"] else f"{line['error']['type']}: {line['error']}"
        assert row["says"] in told, told


@then('the command line\'s {outcome} in "{name}" have the fields {names}')
def _(context: Context, outcome: str, name: str, names: str) -> None:
    good = {"successes": True, "failures": False}[outcome]
    lines = [line for line in lines_of(context, name) if line["ok"] is good]
    assert lines
    for line in lines:
        assert list(line) == names.split(", "), list(line)
        if not good:
            assert list(line["error"]) == ["type", "message"], line
            continue
        assert line["content"] == [{"type": "text", "text": line["text"]}], line
        assert line["usage"]["output_tokens"] > 0 and line["attempt"] == 1, line
        assert line["batch_id"].startswith("msgbatch_")
        assert line["model"] == "claude-haiku-4-5-20251001"
        assert line["stop_reason"] == "end_turn"


@then('the command line has written {count:d} answers in order to "{name}"')
def _(context: Context, count: int, name: str) -> None:
    lines = lines_of(context, name)
    assert [line["id"] for line in lines] == [str(n) for n in range(1, count + 1)], len(lines)
    for number, line in enumerate(lines, 1):
        assert f"prompt {number}" in line["text"], line


@then('the command line has left no "{name}"')
def _(context: Context, name: str) -> None:
    assert not Path(name).exists()
    context.execute_steps("Then the command line has left nothing half-written")


@then("the command line has left nothing half-written")
def _(context: Context) -> None:
    left = [path for path in context.tmp.rglob("*.partial") if not path.is_symlink()]
    assert not left, left


@then('the command line has kept the link "{name}"')
def _(context: Context, name: str) -> None:
    assert Path(name).is_symlink()


@given('a command\'s link "{name}" to "{target}"')
def _(context: Context, name: str, target: str) -> None:
    Path(name).symlink_to(target)


@given('a command\'s pipe "{name}" that somebody reads')
def _(context: Context, name: str) -> None:
    os.mkfifo(name)
    context.piped = []
    reader = threading.Thread(target=lambda: context.piped.append(Path(name).read_text()))
    reader.start()
    context.add_cleanup(reader.join, 20)
    context.reader = reader


@then("the command line's pipe has carried {count:d} answers")
def _(context: Context, count: int) -> None:
    context.reader.join(20)
    assert len(context.piped[0].splitlines()) == count, context.piped


# What the API and the ledger have seen


@then("the command line has sent nothing")
def _(context: Context) -> None:
    assert not creates(context), creates(context)


@then("the command line has caused {batches:d} batches of {requests:d} requests")
def _(context: Context, batches: int, requests: int) -> None:
    summary = context.api.billing_summary()
    assert (summary["batches"], summary["requests"]) == (batches, requests), summary
    assert summary["paid_more_than_once"] == 0 or "--new" in context.scenario.name


def all_runs() -> list[RunStatus]:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        return all_statuses(ledger)
    finally:
        ledger.close()


@then("the command line's ledger has {count:d} runs")
def _(context: Context, count: int) -> None:
    assert len(all_runs()) == count, all_runs()


@then("the command line has noted that the run is delivered")
def _(context: Context) -> None:
    [status] = all_runs()
    assert status.delivered is not None


@then("the command line has noted that the run is not delivered")
def _(context: Context) -> None:
    [status] = all_runs()
    assert status.delivered is None


@then("the command line's status as JSON has")
def _(context: Context) -> None:
    value = json.loads(context.ended.stdout)
    for row in context.table:
        found = value[0] if isinstance(value, list) else value
        for name in row["field"].split("."):
            found = found[int(name) if isinstance(found, list) else name]
        assert json.dumps(found) == row["value"], (row["field"], found)


@then("the command line has put the key nowhere")
def _(context: Context) -> None:
    files = [path for path in context.tmp.rglob("*") if path.is_file()]
    assert any(path.name == "ledger.db" for path in files), files
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path


@when("a command repeats every {verb} until it exits with {code:d}")
def _(context: Context, verb: str, code: int) -> None:
    def once() -> bool:
        command(context, verb)
        return context.ended.exit_code == code and all(run.finished for run in all_runs())

    until(once)


# Commands as processes


def spawn(context: Context, words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "claude_batch", *shlex.split(words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": search_path()},
    )  # fmt: skip

    def stop() -> None:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)

    context.add_cleanup(stop)
    return process


@when("a command has run as a process: {words}")
def _(context: Context, words: str) -> None:
    process = spawn(context, words)
    context.printed, context.errors = process.communicate(timeout=60)
    context.code = process.returncode
    assert "Traceback" not in context.errors, context.errors


@then('the process of the command has ended with {code:d}, saying "{words}"')
def _(context: Context, code: int, words: str) -> None:
    assert context.code == code, (context.code, context.errors)
    assert words in context.errors, context.errors


@when("a command's process gets {name} once a batch is created: {words}")
def _(context: Context, name: str, words: str) -> None:
    process = spawn(context, words)
    until(lambda: creates(context))
    process.send_signal(getattr(signal, name))
    printed, context.errors = process.communicate(timeout=20)
    context.code = process.returncode
    assert printed == "", printed
    assert "Traceback" not in context.errors, context.errors
    context.run_id = re.search(r"run-\w{10}", context.errors)[0]  # type: ignore[index]


@then("a command's process answers {words} without importing {names}")
def _(context: Context, words: str, names: str) -> None:
    script = (
        "import sys\nfrom claude_batch.cli import main\n"
        f"sys.argv = ['claude-batch', *{words.split()!r}]\n"
        "try:\n    main()\nexcept SystemExit as error:\n    assert not error.code, error.code\n"
        f"wrong = {names.split(', ')!r}\n"
        "assert not [name for name in wrong if name in sys.modules]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30,
        env={**os.environ, "PYTHONPATH": search_path()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "claude-batch" in done.stdout, done.stdout


# What is told of errors


ERRORS: dict[str, BaseException] = {
    "BadInput": BadInput("a.jsonl:1: no"),
    "BadOutput": BadOutput("out: no"),
    "AccountHaltedError": cb.AccountHaltedError("no", reason="billing"),
    "EngineStoppedError": cb.EngineStoppedError("no"),
    "LedgerError": cb.LedgerError("no"),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "BrokenPipeError": BrokenPipeError(),
    "ZeroDivisionError": ZeroDivisionError("no"),
}


@then("the command line ends {name} with {code:d}, saying: {words}")
def _(context: Context, name: str, code: int, words: str) -> None:
    errors = io.StringIO()
    with redirect_stderr(errors):
        try:
            with printing_errors():
                raise ERRORS[name]
        except SystemExit as ended:
            found = ended.code
    assert found == code, found
    told = errors.getvalue()
    assert told == "" if words == "nothing" else words in told, told
    assert ("Traceback" in told) is ("CLAUDE_BATCH_DEBUG" in os.environ), told


@then("the command line leaves the process at a second signal, and gives handlers back")
def _(context: Context) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    codes: list[int] = []
    with mock.patch("os._exit", codes.append), run_delivery.parkable():
        try:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
    assert codes == [3], codes
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# The display


def a_status(**fields: Any) -> RunStatus:
    status = RunStatus(
        run_id="run-abcdefghij", state=RunState.RUNNING, actor="tests/asker", label=None,
        kind="run", created=time.time() - 3600, delivered=None, output=None, total=1000,
        counts={RequestState.SUCCEEDED: 990, RequestState.PACKED: 10}, batches=(), halt=None,
        waiting_for="1 batch", strange_lines=0,
    )  # fmt: skip
    return replace(status, **fields)


def a_batch(number: int, **fields: Any) -> BatchStatus:
    batch = BatchStatus(
        batch_id=f"msgbatch_{number:04}", state=BatchState.IN_PROGRESS, requests=1000,
        submitted=time.time() - 120, ended=None, next_check=time.time() + 45, note=None,
    )  # fmt: skip
    return replace(batch, **fields)


@then("the command line shows plain lines of what has changed, one a second at most")
def _(context: Context) -> None:
    errors = io.StringIO()
    clock = iter([0.0, 0.5, 0.9, 1.5, 9.0])
    ticking = mock.patch("time.monotonic", lambda: next(clock))
    with redirect_stderr(errors), ticking, progress.display() as shown:
        shown.show(a_status())
        shown.show(a_status())
        shown.show(a_status(counts={RequestState.SUCCEEDED: 1000}))
        shown.show(a_status(), "no contact")
        shown.show(a_status(counts={}, waiting_for=""))
    assert errors.getvalue().splitlines() == [
        "run-abcdefghij running: 990 succeeded, 10 packed of 1,000 (1 batch)",
        "run-abcdefghij running: 990 succeeded, 10 packed of 1,000 (no contact)",
        "run-abcdefghij running: nothing yet of 1,000",
    ], errors.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@then("the command line shows a live table on a terminal")
def _(context: Context) -> None:
    terminal = Terminal()
    environment = {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    seen = mock.patch("sys.stderr", terminal)
    with seen, mock.patch.dict(os.environ, environment), progress.display() as shown:
        assert isinstance(shown._live, Live)  # type: ignore[attr-defined]
        shown.show(a_status(batches=(a_batch(1),)), "no contact")
        shown._live.refresh()  # type: ignore[attr-defined]
    drawn = terminal.getvalue()
    for words in ("990 succeeded", "no contact", "msgbatch_0001", "2m", "in 45s"):
        assert words in drawn, drawn


def rendered(what: Any) -> str:
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(what)
    return console.export_text()


@then("the command line's table of a run tells")
def _(context: Context) -> None:
    batches = tuple(a_batch(n) for n in range(23))
    odd = (
        a_batch(23, batch_id=None, submitted=None, next_check=None, note="[red]not sent[/]"),
        a_batch(24, state=BatchState.COLLECTED),
    )
    full = a_status(
        label="[bold]mine", output="/tmp/out.jsonl", strange_lines=3, batches=(*batches, *odd)
    )
    says(rendered(progress.run_details(full)), context)
    assert "msgbatch_0004" not in rendered(progress.run_details(full))
    bare = rendered(progress.run_details(a_status(waiting_for="", output="o", delivered=1.0)))
    assert "not written yet" not in bare and "waiting for" not in bare, bare


@then("the command line's table on a terminal is as wide as the terminal")
def _(context: Context) -> None:
    with mock.patch("sys.stdout", Terminal()), mock.patch.dict(os.environ, {"COLUMNS": "97"}):
        assert display.console().width == 97
    with mock.patch("sys.stdout", io.StringIO()):
        assert display.console().width == 160


# Inputs that need help to fail


@when('the command line reads "{inputs}" and the file cannot be opened')
def _(context: Context, inputs: str) -> None:
    context.refusal = None
    denied = PermissionError(13, "Permission denied")  # root, as in a container, may open any
    with mock.patch("builtins.open", side_effect=denied):
        try:
            list(Inputs([inputs]))
        except BadInput as error:
            context.refusal = str(error)


@when('a command changes to the folder "{name}"')
def _(context: Context, name: str) -> None:
    os.chdir(name)


@when("a command runs without a key: {words}")
def _(context: Context, words: str) -> None:
    with mock.patch.dict(os.environ):
        del os.environ["ANTHROPIC_API_KEY"]
        command(context, words)


@then("the command line lists the commands {names}")
def _(context: Context, names: str) -> None:
    listed = context.ended.stdout.partition("Commands:")[2].partition("Exit codes")[0]
    assert re.findall(r"^  ([a-z]+)\b", listed, re.MULTILINE) == names.split(", "), listed


@then("the command line shows in plain lines and on a terminal how much is stored, but seldom")
def _(context: Context) -> None:
    def told(errors: io.StringIO) -> str:
        clock = iter([0.0, 0.5, 1.0, 1.9, 2.1])
        now = mock.Mock(monotonic=lambda: next(clock))
        patched = mock.patch.object(display, "time", now)
        with mock.patch("sys.stderr", errors), patched, display.storing() as tell:
            for count in (1000, 2000, 3000, 4000):
                tell(count)
            if errors.isatty():
                time.sleep(0.3)  # the spinner draws by itself
        return errors.getvalue()

    assert told(io.StringIO()).splitlines() == [
        "2,000 requests are stored so far",
        "4,000 requests are stored so far",
    ]
    with mock.patch.dict(os.environ, {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}):
        drawn = told(Terminal())
    assert "4,000 requests are stored so far" in drawn, drawn
    assert "1,000" not in drawn and "3,000" not in drawn, drawn
