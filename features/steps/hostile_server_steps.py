"""Steps of a server that means harm, before the installed command."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from behave import given, then, when
from behave.runner import Context
from hostile_server import Answer, HostileServer, Trick
from staging import KEY, make_provider, start_api

import claude_batch as cb
from claude_batch.wire.connection import Connection

KILLED_AFTER = 150.0
"""Seconds after which a command has not ended by itself."""

DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@given("a server that means harm, before an API")
def _(context: Context) -> None:
    start_api(context, latency=0.05)
    server = context.hostile = HostileServer(context.api.url)
    server.start()
    context.add_cleanup(server.stop)
    os.environ["ANTHROPIC_BASE_URL"] = server.url
    context.prompts = ["prompt one", "prompt two", "prompt three"]
    write_prompts(context, context.prompts)
    context.out = context.tmp / "out.jsonl"


def write_prompts(context: Context, prompts: list[str]) -> None:
    lines = [json.dumps({"id": words.split()[1], "prompt": words}) for words in prompts]
    context.asked = context.tmp / "prompts.jsonl"
    context.asked.write_text("\n".join(lines))


@when("the server means no harm any more")
def _(context: Context) -> None:
    context.hostile.trick = lambda answer: None


# Tricks with results ---------------------------------------------------------------------------


def message_of(line: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = line["result"]["message"]
    return found


def tokens(count: object) -> Callable[[dict[str, Any]], None]:
    return lambda line: message_of(line)["usage"].update(input_tokens=count)


def failed(details: object) -> Callable[[dict[str, Any]], None]:
    error = {"type": "invalid_request_error", "message": "two", "details": details}
    outer = {"type": "error", "error": error, "request_id": None}
    return lambda line: line.update(result={"type": "errored", "error": outer})


LINES: dict[str, Callable[[dict[str, Any]], None]] = {
    "without content": lambda line: message_of(line).pop("content"),
    "with a string as content": lambda line: message_of(line).update(content="text"),
    "with a number as text": lambda line: message_of(line)["content"][0].update(text=5),
    "with 10 ** 16 tokens": tokens(10**16),
    "with fewer than no tokens": tokens(-5),
    "with half a token": tokens(0.5),
    "with 12.0 tokens": tokens(12.0),
    "with bytes that are no UTF-8": lambda line: None,
    "without a message": lambda line: line["result"].update(message=None),
    "with an unknown type": lambda line: line["result"].update(type="completed"),
    "without a model": lambda line: message_of(line).update(model=None),
    "with a lone surrogate": lambda line: message_of(line)["content"][0].update(text="\ud800"),
    "nested 200,000 deep": lambda line: None,
}


FAILURES: dict[str, Callable[[dict[str, Any]], None]] = {
    "with a list as details": failed(details=["user_facing"]),
    "with a string as details": failed(details="user_facing"),
    "with an error nested once": lambda line: line.update(
        result={"type": "errored", "error": {"type": "invalid_request_error", "message": "two"}}
    ),
}


@given("it gives the second of three results {how}")
def _(context: Context, how: str) -> None:
    def trick(answer: Answer) -> None:
        if answer.kind == "retrieve" and how in FAILURES and answer.json().get("ended_at"):
            answer.change({**answer.json(), "request_counts": {"succeeded": 2, "errored": 1}})
        if answer.kind != "results" or answer.status != 200:
            return
        lines = [json.loads(line) for line in answer.body.splitlines()]
        # By the prompt, which the sandbox repeats: results come in no order.
        encoded: list[bytes] = []
        for line in lines:
            if "two" not in json.dumps(line):
                encoded.append(json.dumps(line).encode())
                continue
            {**LINES, **FAILURES}[how](line)
            raw = json.dumps(line).encode()
            if how == "with bytes that are no UTF-8":
                raw = raw.replace(b"two", b"tw\xff")
            if how == "nested 200,000 deep":
                raw = raw.replace(b'"usage":', b'"deep": ' + DEEP + b', "usage":')
            encoded.append(raw)
        answer.body = b"\n".join(encoded)

    context.hostile.trick = trick


# Tricks with ids -------------------------------------------------------------------------------

IDS: dict[str, Callable[[str], str]] = {
    "with ../ and a question": lambda own: f"../../v1/models/{own}?x=",
    "with control characters": lambda own: f"{own}\x1b[2J\r\nx: y",
    "of five million characters": lambda own: own * 200_000,
}


@given("it gives every new batch the id of the first one")
def _(context: Context) -> None:
    known: list[str] = []

    def trick(answer: Answer) -> None:
        if answer.kind == "create" and answer.status == 200:
            batch = answer.json()
            known.append(batch["id"])
            answer.change({**batch, "id": known[0]})

    context.hostile.trick = trick


@given("it gives every new batch the id {which}")
def _(context: Context, which: str) -> None:
    def trick(answer: Answer) -> None:
        if answer.kind == "create" and answer.status == 200:
            batch = answer.json()
            answer.change({**batch, "id": IDS[which](batch["id"])})

    context.hostile.trick = trick


# Tricks with what cannot be read, or does not end ----------------------------------------------


def deep(answer: Answer) -> None:
    answer.body = DEEP


def deep_error(answer: Answer) -> None:
    answer.status = 500
    answer.body = b'{"type":"error","error":{"type":"api_error","details":' + DEEP + b"}}"


def wait_for_ever(answer: Answer) -> None:
    answer.status = 429
    answer.headers |= {"retry-after-ms": "1", "retry-after": "1e400"}
    answer.change({"type": "error", "error": {"type": "rate_limit_error", "message": "wait"}})


def changed_batches(**changes: Any) -> Trick:
    def trick(answer: Answer) -> None:
        value = answer.json()
        for batch in value.get("data", [value]):
            batch.update(changes)
        answer.change(value)

    return trick


def loose_counts(answer: Answer) -> None:
    value = answer.json()
    counts = value["request_counts"]
    counts["processing"] = float(counts["processing"])
    counts["succeeded"] = str(counts["succeeded"])
    answer.change(value)


@functools.cache
def gigabyte() -> bytes:
    packer = zlib.compressobj(wbits=31)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(1024)]
    return b"".join([*parts, packer.flush()])


def zeros(status: int) -> Trick:
    def trick(answer: Answer) -> None:
        answer.status = status
        answer.body = gigabyte()
        answer.headers["content-encoding"] = "gzip"

    return trick


def repeated_page(answer: Answer) -> None:
    answer.change({"data": [], "has_more": True, "last_id": "msgbatch_again"})


def endless(piece: bytes) -> Callable[[HostileServer], Trick]:
    def made(server: HostileServer) -> Trick:
        def pieces() -> Iterator[bytes]:
            while not server.stopping.is_set():
                yield piece * (1 + (1 << 16) // len(piece))

        def trick(answer: Answer) -> None:
            answer.pieces = pieces

        return trick

    return made


def endless_lines(server: HostileServer) -> Trick:
    def pieces() -> Iterator[bytes]:
        number = 0
        while not server.stopping.is_set():
            number += 1
            yield b"".join(
                b'{"custom_id":"%d-%d","result":{"type":"expired"}}\n' % (number, each)
                for each in range(1000)
            )

    def trick(answer: Answer) -> None:
        answer.pieces = pieces

    return trick


def dripping(server: HostileServer) -> Trick:
    def trick(answer: Answer) -> None:
        answer.pieces = lambda: server.drip(b" ")

    return trick


def continuing(server: HostileServer) -> Trick:
    def trick(answer: Answer) -> None:
        answer.before = lambda: server.drip(b"HTTP/1.1 100 Continue\r\n\r\n")

    return trick


def endless_pages(answer: Answer) -> None:
    number = int(answer.path.rpartition("msgbatch_")[2] or 0) if "after_id" in answer.path else 0
    batch = {
        "id": f"msgbatch_{number + 1}",
        "processing_status": "ended",
        "created_at": "2199-01-01T00:00:00Z",
    }
    answer.change({"data": [batch], "has_more": True, "last_id": batch["id"]})


def plain(trick: Trick) -> Callable[[HostileServer], Trick]:
    return lambda server: trick


ANSWERS: dict[str, Callable[[HostileServer], Trick]] = {
    "JSON nested 200,000 deep": plain(deep),
    "an error nested deep": plain(deep_error),
    "a date of the year 99999": plain(
        lambda answer: answer.headers.update(date="Fri, 31 Dec 99999 23:59:59 GMT")
    ),
    "a wait of 1e400 seconds": plain(wait_for_ever),
    "counts of 10 ** 30": plain(changed_batches(request_counts={"processing": 10**30})),
    "counts below zero": plain(changed_batches(request_counts={"succeeded": -3})),
    "counts as floats and strings": plain(loose_counts),
    "another batch's id": plain(changed_batches(id="msgbatch_of_somebody_else")),
    "a stream of somebody's gzip": plain(
        lambda answer: answer.headers.update({"content-encoding": "gzip"})
    ),
    "a gigabyte of zeros, compressed": plain(zeros(200)),
    "an error of a gigabyte, compressed": plain(zeros(500)),
    "a page that repeats itself": plain(repeated_page),
    "a line that does not end": endless(b"x"),
    "lines that do not end": endless_lines,
    "a byte now and then": dripping,
    "a 100 Continue now and then": continuing,
    "pages that do not end": plain(endless_pages),
}


@given("it answers the first {count:d} {calls} calls with {what}")
def _(context: Context, count: int, calls: str, what: str) -> None:
    chosen = ANSWERS[what](context.hostile)
    left = [count]

    def trick(answer: Answer) -> None:
        if answer.kind == calls and answer.status == 200 and left[0]:
            left[0] -= 1
            chosen(answer)

    context.hostile.trick = trick


# Tricks with the key ---------------------------------------------------------------------------


@given("it echoes the key in {where}")
def _(context: Context, where: str) -> None:
    context.live = where.endswith("live")

    def trick(answer: Answer) -> None:
        sent = answer.sent.get("authorization", "").removeprefix("Bearer ")
        key = sent or answer.sent.get("x-api-key", "")
        assert key == KEY
        error = {"type": "authentication_error", "message": f"the key {key} is not known"}
        match where:
            case "the body of a 401" if answer.kind == "list":
                answer.status = 401
                answer.change({"type": "error", "error": error})
            case "a page that is no JSON" if answer.kind == "list":
                answer.status, answer.body = 502, f"<p>{key}</p>".encode()
            case "the location of a redirect" if answer.kind == "create":
                answer.status = 307
                answer.headers["location"] = f"http://user:{key}@127.0.0.1:9/{key}"
            case "the error of a result" if answer.kind == "results":
                lines = [json.loads(line) for line in answer.body.splitlines()]
                error["type"] = "invalid_request_error"
                for line in lines:
                    line["result"] = {"type": "errored", "error": {"type": "error", "error": error}}
                answer.body = b"\n".join(json.dumps(line).encode() for line in lines)
            case "the text of an answer" if answer.kind == "results":
                answer.body = answer.body.replace(b"prompt", key.encode())
            case "the body of a 400, live" if answer.kind == "live":
                answer.status = 400
                answer.change({"type": "error", "error": {**error, "type": "api_error"}})
            case _:
                pass

    context.hostile.trick = trick


# The command -----------------------------------------------------------------------------------


def command(context: Context, *words: str, quick: bool = True) -> None:
    """Run the command to its end; what it printed, its exit code and its memory are kept."""
    more = ["--poll-interval", "100ms", "--settling", "1s"] if quick else []
    said = context.tmp / "said.txt"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "claude_batch", *words, *more],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        context.add_cleanup(process.kill)
        context.memory = 0
        begun = time.monotonic()
        end = begun + KILLED_AFTER
        while process.poll() is None:
            context.memory = max(context.memory, most_memory(process.pid))
            if time.monotonic() > end:
                process.kill()
                process.wait()
            time.sleep(0.05)
    context.took = time.monotonic() - begun
    context.code = process.returncode
    context.killed = context.code == -signal.SIGKILL
    context.said = said.read_text("utf-8", "replace")


def most_memory(process: int) -> int:
    """The most bytes that a process has had in memory; what getrusage says holds its parent's."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def run(context: Context, *words: str) -> None:
    mode = ["--mode", "live"] if getattr(context, "live", False) else []
    asked = [str(context.asked), "-o", str(context.out)]
    command(context, "run", "--model", "claude-haiku-4-5", *asked, *mode, *words)


@when("three prompts are run")
def _(context: Context) -> None:
    run(context)


@when("{count} prompts are run with {flags}")
def _(context: Context, count: str, flags: str) -> None:
    write_prompts(context, context.prompts[: {"two": 2, "three": 3}[count]])
    run(context, *flags.split())


@when("the run is resumed")
def _(context: Context) -> None:
    command(context, "resume", "--max-wait", "60s")


@then("the command exits with {code:d}")
def _(context: Context, code: int) -> None:
    assert context.code == code, (context.code, context.said)
    assert "bug" not in context.said and "Traceback" not in context.said, context.said


@then("it did not have to be killed")
def _(context: Context) -> None:
    assert not context.killed, context.said


@then("it took less than {most:d} MB of memory")
def _(context: Context, most: int) -> None:
    assert context.memory < most << 20, context.memory


def outputs(context: Context) -> dict[str, Any]:
    lines = [json.loads(line) for line in context.out.read_text().splitlines()]
    return {line["id"]: line for line in lines}


@then('the answers of the first and the third are delivered, and the second is "{fault}"')
def _(context: Context, fault: str) -> None:
    lines = outputs(context)
    assert [lines[name]["ok"] for name in ("one", "two", "three")] == [True, False, True], lines
    assert lines["two"]["error"]["type"] == fault, lines["two"]
    context.run_id = next(word for word in context.said.split() if word.startswith("run-")).strip(
        ":"
    )


@then("{verb} gives the same answers")
def _(context: Context, verb: str) -> None:
    again = str(context.tmp / "again.jsonl")
    command(context, verb, context.run_id, "-o", again, quick=verb == "resume")
    assert context.code in (0, 1), context.said
    assert Path(again).read_bytes() == context.out.read_bytes()


@then("CSV, a folder, the status and the costs tell of all three")
def _(context: Context) -> None:
    table, folder = str(context.tmp / "o.csv"), str(context.tmp / "folder")
    for words in (
        ("results", context.run_id, "-o", table, "--results-dir", folder),
        ("cost", context.run_id),
        ("status", context.run_id),
    ):
        command(context, *words, quick=False)
        assert "Traceback" not in context.said and "bug" not in context.said, context.said
        assert context.code in (0, 1), (words, context.said)
    assert "malformed_answer" in Path(table).read_text()
    assert len(list(Path(folder).glob("0*.json"))) == 3


@then("nothing was sent twice")
def _(context: Context) -> None:
    bill = context.api.billing_summary()
    asked = len(context.asked.read_text().splitlines())
    assert (bill["requests"], bill["paid_more_than_once"]) == (asked, 0), bill


@then("no request went anywhere but to the batch endpoints")
def _(context: Context) -> None:
    paths = [path.partition(" ")[2] for path in context.hostile.paths]
    counts = "/v1/messages/count_tokens"  # of the preflight
    assert all(path.startswith("/v1/messages/batches") or path == counts for path in paths), paths
    assert not any(".." in path or "models" in path for path in paths), paths


@then('one answer is delivered, and the other is "{fault}"')
def _(context: Context, fault: str) -> None:
    lines = list(outputs(context).values())
    assert sorted(line["ok"] for line in lines) == [False, True], lines
    assert [line["error"]["type"] for line in lines if not line["ok"]] == [fault], lines


@then("the {secret} is neither on the screen nor in the ledger")
def _(context: Context, secret: str) -> None:
    not_seen(context, {"key": KEY, "password": "open-sesame-42"}[secret])


def not_seen(context: Context, secret: str) -> None:
    assert secret not in context.said, context.said
    folder = Path(os.environ["CLAUDE_BATCH_LEDGER"]).parent
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in [*files, context.out]:
        if path.exists():
            assert secret.encode() not in path.read_bytes(), path


@when("three prompts are run at a base URL with a user and a password")
def _(context: Context) -> None:
    url = context.hostile.url.replace("http://", "http://ali:open-sesame-42@")
    run(context, "--base-url", url)


# From Python -----------------------------------------------------------------------------------


def ask_all(context: Context) -> None:
    if not hasattr(context, "actor"):
        make_provider(context, max_attempts=1)
    context.results = list(context.actor.respond_all_sync(context.prompts))


@when("three prompts are asked from Python")
def _(context: Context) -> None:
    ask_all(context)


@then("the second is a MalformedAnswerError that holds its line and its cost")
def _(context: Context) -> None:
    first, second, third = context.results
    assert first.ok and third.ok
    error = second.error
    assert isinstance(error, cb.MalformedAnswerError), error
    assert json.loads(error.raw)["result"]["type"] == "succeeded"
    assert "content" in error.problem and "billed" in str(error)
    context.run = context.actor.submit_sync(context.prompts)
    total = context.run.cost().total
    # Its usage can be read, so it is priced like the two others.
    assert total.unpriced_answers == 0 and total.results["succeeded"] == 3, total
    assert total.cost > 0, total


@when("what is malformed is retried")
def _(context: Context) -> None:
    assert context.run.retry_failed_sync(only="malformed") == 1
    context.run.wait_sync()


@then("all three are answered, and one more request was paid for")
def _(context: Context) -> None:
    assert all(result.ok for result in context.run.results_sync())
    assert context.api.billing_summary()["requests"] == 4


@when('a client is opened for "{one}" and for "{other}"')
def _(context: Context, one: str, other: str) -> None:
    context.warned = list[str]()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            context.warned.append(record.getMessage())

    logger, handler = logging.getLogger("claude_batch.wire.connection"), Listening()
    logger.addHandler(handler)
    context.add_cleanup(logger.removeHandler, handler)
    for url in (one, other, one):
        Connection(base_url=url, api_key=KEY)


@then('one warning names "{host}"')
def _(context: Context, host: str) -> None:
    [warning] = context.warned
    assert host in warning and KEY not in warning, warning
