"""Steps of the command line: its inputs in-process, its commands against a real sandbox."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from click.testing import CliRunner
from rich.console import Console
from staging import KEY, start_api, until
from tables import rule

import claude_batch as cb
from claude_batch.actor.inputs import Inputs
from claude_batch.cli import run_command, run_delivery, user_messages
from claude_batch.cli.app import group
from claude_batch.cli.user_messages import BadOutput, printing_errors
from claude_batch.core.errors import BadInput
from claude_batch.core.states import BatchState, RequestState, RunState
from claude_batch.ledger.store import Ledger
from claude_batch.providers import progress_reports
from claude_batch.providers.status import BatchStatus, RunStatus, newest_statuses

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
    path = Path(with_bytes(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = context.text.replace("SERVER", getattr(context, "server", "SERVER"))
    path.write_text(f"{text}\n", "utf-8")


def with_bytes(text: str) -> str:
    """Return a text as Python has the byte 0xff of a name or an argument."""
    return text.replace(r"\udcff", "\udcff")


def bytes_of(text: str) -> bytes:
    """Read literals of bytes, multiplied and added up."""
    whole = b""
    for part in text.split(" + "):
        literal, _, times = part.partition(" * ")
        whole += ast.literal_eval(literal) * int(times or 1)
    return whole


@given('a command\'s file "{name}" of the bytes {literal}')
def _(context: Context, name: str, literal: str) -> None:
    Path(name).write_bytes(bytes_of(literal))


@given('a command\'s file "{name}" of {count:d} prompts')
def _(context: Context, name: str, count: int) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("".join(f'"prompt {n}"\n' for n in range(1, count + 1)))


@given('a command\'s folder named "{name}"')
def _(context: Context, name: str) -> None:
    Path(with_bytes(name)).mkdir()


@when('a command\'s folder named "{name}" is removed')
def _(context: Context, name: str) -> None:
    shutil.rmtree(name)


@given("a command's environment has {name} = {value}")
@when("a command's environment has {name} = {value}")
def _(context: Context, name: str, value: str) -> None:
    os.environ[name] = "" if value == "nothing" else value.replace("the folder", str(context.tmp))


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
            for given_request in context.inputs:
                try:
                    context.requests.append(cb.ActorRequest.of(given_request))
                except cb.InvalidRequestError as error:
                    context.inputs.refuse(error)
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
    words = words.replace("RUN", getattr(context, "run_id", "RUN"))
    words = with_bytes(words)
    if "PORT" in words:
        words = words.replace("PORT", context.api.url.rpartition(":")[2])
    context.ended = CliRunner().invoke(
        group, shlex.split(words), input=stdin, prog_name="claude-batch"
    )
    context.errors = context.ended.stderr
    exception = context.ended.exception
    assert exception is None or isinstance(exception, SystemExit), repr(exception)
    assert "Traceback" not in context.ended.output, context.ended.output
    assert KEY not in context.ended.output
    if found := re.search(r"run-\w{10}", context.ended.output):
        context.run_id = found[0]


def keep_end(context: Context, exit_code: Any, printed: str, said: str) -> None:
    """Keep how a command's process has ended, as `command` does."""
    context.ended = SimpleNamespace(exit_code=exit_code, stdout=printed, output=printed + said)
    context.errors = said
    assert "Traceback" not in said and "This is a bug" not in said, said
    if found := re.search(r"run-\w{10}", printed + said):
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
            keep_end(context, error.code, "", errors.getvalue())


@then("the command line exits with {code:d}")
def _(context: Context, code: int) -> None:
    ended = context.ended
    assert ended.exit_code == code, (ended.exit_code, ended.output)


@then("the command line exits with {code:d} and says")
@then('the command line exits with {code:d} and says "{words}"')
def _(context: Context, code: int, words: str | None = None) -> None:
    context.execute_steps(f"Then the command line exits with {code}")
    says(context.errors, context, words)


@then("the command line says")
@then("the command line says: {words}")
def _(context: Context, words: str | None = None) -> None:
    says(context.errors, context, words)


@then("the command line has said one line")
def _(context: Context) -> None:
    assert len(context.errors.splitlines()) == 1, context.errors
    assert context.ended.stdout == "", context.ended.stdout


@then("the command line says {count:d} times: {words}")
def _(context: Context, count: int, words: str) -> None:
    assert context.errors.count(words) == count, context.errors


@then("the command line does not say: {words}")
def _(context: Context, words: str) -> None:
    assert words not in context.errors, context.errors


@then("the command line prints")
def _(context: Context) -> None:
    says(context.ended.stdout, context)


@then("the command line does not print: {words}")
def _(context: Context, words: str) -> None:
    assert words not in context.ended.stdout, context.ended.stdout


@then("the command line prints this block")
def _(context: Context) -> None:
    assert context.text in context.ended.stdout, context.ended.stdout


@then("the command line prints in this order")
def _(context: Context) -> None:
    left = context.ended.stdout
    for line in context.text.replace("RUN", getattr(context, "run_id", "RUN")).split("\n"):
        assert line in left, f"{line!r} does not follow in:\n{context.ended.stdout}"
        left = left.partition(line)[2]


def says(told: str, context: Context, words: str | None = None) -> None:
    """Compare with a line of the step, or with those below it."""
    for line in [words] if words is not None else context.text.split("\n"):
        line = line.replace("RUN", getattr(context, "run_id", "RUN"))
        line = line.replace("PID", str(getattr(context, "pid", "PID")))
        assert line in told, f"{line!r} is not in:\n{told}"


@then("the command line prints nothing but {what}")
def _(context: Context, what: str) -> None:
    told = {"the run's id": f"{getattr(context, 'run_id', None)}\n", "errors": ""}
    assert context.ended.stdout == told[what], context.ended.stdout


# Outputs


def lines_of(context: Context, name: str) -> list[dict[str, Any]]:
    if hasattr(context, "pipe_reader"):
        context.pipe_reader.join(20)
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


@given('a command\'s link "{name}" to "{target}"')
def _(context: Context, name: str, target: str) -> None:
    Path(name).symlink_to(target)


@given('a command\'s pipe "{name}" whose reader writes "{kept}"')
def _(context: Context, name: str, kept: str) -> None:
    os.mkfifo(name)
    context.pipe_reader = threading.Thread(
        target=lambda: Path(kept).write_text(Path(name).read_text())
    )
    context.pipe_reader.start()
    context.add_cleanup(context.pipe_reader.join, 20)


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
        return ledger.query(lambda tx: newest_statuses(ledger, tx))
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


@when("a command's process gets {name} once {count:d} batches are created: {words}")
@when("a command's process gets {name} once {count:d} batch is created: {words}")
def _(context: Context, name: str, count: int, words: str) -> None:
    process = spawn(context, words)
    until(lambda: len([call for call in creates(context) if call["status"] == 200]) == count)
    until(lambda: any(call["route"] == "retrieve" for call in context.api.log()[-1:]))
    process.send_signal(getattr(signal, name))
    printed, said = process.communicate(timeout=20)
    keep_end(context, process.returncode, printed, said)


@when('a command runs in a Python that begins with "{code}": {words}')
def _(context: Context, code: str, words: str) -> None:
    code += "; from claude_batch.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *shlex.split(words)], capture_output=True, text=True,
        timeout=60, env={**os.environ, "PYTHONPATH": search_path()},
    )  # fmt: skip
    keep_end(context, done.returncode, done.stdout, done.stderr)


@when("a command's process is a gateway until it gets SIGTERM: {words}")
def _(context: Context, words: str) -> None:
    process = spawn(context, words)
    assert process.stdout is not None and process.stderr is not None
    port = process.stdout.readline().rpartition(":")[2].strip()
    errors = ""
    while "ANTHROPIC_BASE_URL" not in errors and (line := process.stderr.readline()):
        errors += line
    process.send_signal(signal.SIGTERM)
    printed, more = process.communicate(timeout=20)
    keep_end(context, process.returncode, printed, (errors + more).replace(f":{port}", ":PORT"))


SLOW = ("anthropic", "sqlalchemy", "starlette", "httpx2", "asyncio", "yaml", "rich")


@rule("commands answer at once, without a slow import,")
def _(words: str) -> dict[str, str]:
    script = (
        "import sys\nfrom claude_batch.cli import main\n"
        f"sys.argv = ['claude-batch', *{words.split()!r}]\n"
        "try:\n    main()\nexcept SystemExit as error:\n    assert not error.code, error.code\n"
        f"print([name for name in {SLOW!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30,
        env={**os.environ, "PYTHONPATH": search_path()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "claude-batch" in done.stdout, done.stdout
    return {"slow_imports": ", ".join(ast.literal_eval(done.stdout.splitlines()[-1]))}


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
    now = 0.0
    clock = mock.patch("claude_batch.cli.run_delivery.time.monotonic", lambda: now)
    with mock.patch("os._exit", codes.append), clock, run_delivery.parkable():
        try:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            # The same signal, sent to the process's group too.
            signal.raise_signal(signal.SIGTERM)
            assert codes == [], codes
            now += run_delivery.REPEATED
            signal.raise_signal(signal.SIGINT)
    assert codes == [3], codes
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# The display


def a_status(**fields: Any) -> RunStatus:
    status = RunStatus(
        run_id="run-abcdefghij", state=RunState.RUNNING, actor="tests/asker", label=None,
        kind="run", created=time.time() - 12_345, delivered=None, output=None, total=1000,
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


@rule("a run's statuses are shown as plain lines")
def _(what: str, statuses: list[list[Any]]) -> dict[str, Any]:
    """Lines for statuses, each with a second, a number of successes and an obstacle."""
    errors = io.StringIO()
    clock = iter([float(second) for second, *_ in statuses])
    ticking = mock.patch("time.monotonic", lambda: next(clock))
    with redirect_stderr(errors), ticking, progress_reports.display() as show:
        for _, succeeded, obstacle in statuses:
            counts = {RequestState.SUCCEEDED: succeeded, RequestState.PACKED: 10}
            counts = counts if succeeded else {}
            show(a_status(counts=counts, waiting_for=obstacle or "1 batch"), None)
    return {"lines": errors.getvalue().splitlines()}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def rendered(what: Any) -> str:
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(what)
    return console.export_text()


def table_of(run: str) -> Any:
    if run == "delivered":
        return progress_reports.run_details(a_status(waiting_for="", output="o", delivered=1.0))
    if run == "not written":
        counts = {RequestState.SUCCEEDED: 1000}
        return progress_reports.run_details(a_status(counts=counts, waiting_for="", output="o"))
    if run == "not reached":
        return progress_reports.run_details(
            a_status(batches=(a_batch(1),), waiting_for="no contact")
        )
    assert run == "with 25 batches", run
    odd = (
        a_batch(23, batch_id=None, submitted=None, next_check=None, note="[red]not sent[/]"),
        a_batch(24, state=BatchState.COLLECTED),
    )
    batches = (*(a_batch(n) for n in range(23)), *odd)
    full = a_status(label="[bold]mine", output="/tmp/out.jsonl", strange_lines=3, batches=batches)
    return progress_reports.run_details(full)


@rule("the table of a run shows words")
def _(run: str, words: str) -> dict[str, bool]:
    return {"shown": words in rendered(table_of(run))}


@rule("a table is as wide as the terminal, if it is on one,")
def _(terminal: bool, columns: int) -> dict[str, int]:
    stream = Terminal() if terminal else io.StringIO()
    environment = mock.patch.dict(os.environ, {"COLUMNS": str(columns)})
    with mock.patch("sys.stdout", stream), environment:
        return {"width": user_messages.console().width}


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
    os.chdir(with_bytes(name))


@when("a command runs without a key: {words}")
def _(context: Context, words: str) -> None:
    with mock.patch.dict(os.environ):
        del os.environ["ANTHROPIC_API_KEY"]
        command(context, words)


@rule("counts of stored requests are printed")
def _(terminal: bool, stored: list[list[float]]) -> dict[str, str]:
    """The counts that are printed of those that are reached at these seconds."""
    errors = Terminal() if terminal else io.StringIO()
    clock = iter([0.0, *(second for second, _ in stored)])
    now = mock.Mock(monotonic=lambda: next(clock))
    environment = {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch("sys.stderr", errors),
        mock.patch.object(run_command, "time", now),
        run_command.StoredCount() as shown,
    ):
        for _, count in stored:
            shown.show(int(count))
        if terminal:
            time.sleep(0.3)  # the spinner draws by itself
    printed = re.findall(r"([\d,]+) requests are stored so far", errors.getvalue())
    return {"printed": " ".join(dict.fromkeys(printed))}


@then("the key is nowhere in the ledger's files")
def _(context: Context) -> None:
    files = [path for path in context.tmp.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in files), files
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path
