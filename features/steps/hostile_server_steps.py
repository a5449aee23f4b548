"""Steps of a server that means harm, before the installed command."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import parse
import programs
from behave import given, register_type, then, when
from behave.runner import Context
from cli_steps import keep_end
from event_steps import keep_log
from hostile_server import DEEP, MESSAGES, Answer, HostileServer, Trick, spelled
from staging import KEY, start_api
from tables import rule

from claude_batch.wire.connection import Connection

KILLED_AFTER = 150.0
"""Seconds after which a command has not ended by itself."""


@given("a server that means harm, before an API")
@given("a server that means harm, before an API that takes {seconds:g} seconds for a batch")
def _(context: Context, seconds: float = 0.05) -> None:
    start_api(context, latency=seconds, cancel_latency=seconds)
    HostileServer(context.api.url).stand_before(context)
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


def failed(details: object) -> Callable[[dict[str, Any]], None]:
    error = {"type": "invalid_request_error", "message": "two", "details": details}
    outer = {"type": "error", "error": error, "request_id": None}
    return lambda line: line.update(result={"type": "errored", "error": outer})


LINES: dict[str, Callable[[dict[str, Any]], None]] = {
    "without a message": lambda line: line["result"].update(message=None),
    "with an unknown type": lambda line: line["result"].update(type="completed"),
    "with a list as details": failed(details=["user_facing"]),
    "with a string as details": failed(details="user_facing"),
    "with an error nested once": lambda line: line.update(
        result={"type": "errored", "error": {"type": "invalid_request_error", "message": "two"}}
    ),
}


@parse.with_pattern("the second of three results|the results of every batch but the first")
def _which(words: str) -> str:
    return words


register_type(WhichResults=_which)


@given("it gives {which:WhichResults} {how}")
def _(context: Context, which: str, how: str) -> None:
    is_second = which.startswith("the second")
    paths: list[str] = []

    def trick(answer: Answer) -> None:
        fails = is_second and how.endswith(("details", "nested once"))
        if answer.kind == "retrieve" and fails and answer.json().get("ended_at"):
            answer.change({**answer.json(), "request_counts": {"succeeded": 2, "errored": 1}})
        if answer.kind != "results" or answer.status != 200:
            return
        if answer.path not in paths:
            paths.append(answer.path)
        lines = [json.loads(line) for line in answer.body.splitlines()]
        if is_second:
            # By the prompt, which the sandbox repeats: results come in no order.
            [chosen] = [[line] for line in lines if "two" in json.dumps(line)]
        else:
            chosen = [] if answer.path == paths[0] else lines
        for line in chosen:
            if how in LINES:
                LINES[how](line)
            else:
                MESSAGES[how](line["result"]["message"])
        answer.body = b"\n".join(map(spelled, lines))

    context.hostile.trick = trick


# Tricks with ids -------------------------------------------------------------------------------

IDS: dict[str, Callable[[str, str], str]] = {
    "with ../ and a question": lambda own, first: f"../../v1/models/{own}?x=",
    "with control characters": lambda own, first: f"{own}\x1b[2J\r\nx: y",
    "of five million characters": lambda own, first: own * 200_000,
    "of the first one": lambda own, first: first,
}


@given("it gives every new batch the id {which}")
def _(context: Context, which: str) -> None:
    known: list[str] = []

    def trick(answer: Answer) -> None:
        if answer.kind == "create" and answer.status == 200:
            batch = answer.json()
            known.append(batch["id"])
            answer.change({**batch, "id": IDS[which](batch["id"], known[0])})

    context.hostile.trick = trick


# Tricks with what cannot be read, or does not end ----------------------------------------------


def deep(answer: Answer) -> None:
    answer.body = b'{"a":' + DEEP + b"}"


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


def without_counts(answer: Answer) -> None:
    if answer.kind == "results":
        return
    value = answer.json()
    for batch in value.get("data", [value]):
        del batch["request_counts"]
    answer.change(value)


def counts_at_first(
    change: Callable[[dict[str, int]], dict[str, int]],
) -> Callable[[HostileServer], Trick]:
    """Other counts, when an ended batch is asked for the first time."""

    def made(server: HostileServer) -> Trick:
        seen: set[str] = set()

        def trick(answer: Answer) -> None:
            value = answer.json()
            for batch in value.get("data", [value]):
                if batch["processing_status"] == "ended" and batch["id"] not in seen:
                    seen.add(batch["id"])
                    batch["request_counts"] = change(batch["request_counts"])
            answer.change(value)

        return trick

    return made


@functools.cache
def gigabyte() -> bytes:
    packer = zlib.compressobj(1, wbits=31)
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


def moved_line(server: HostileServer) -> Trick:
    first: list[bytes] = []

    def trick(answer: Answer) -> None:
        lines = answer.body.splitlines(keepends=True)
        if not first:
            first.extend(lines)
        answer.body = b"".join(lines[1:] if lines == first else [first[0], *lines])

    return trick


def other_count_once(more: int) -> Callable[[HostileServer], Trick]:
    """Count other requests of the newest batch, the second time that the list has one."""

    def made(server: HostileServer) -> Trick:
        pages: list[Any] = []

        def trick(answer: Answer) -> None:
            page = answer.json()
            pages.extend([page] if page["data"] else [])
            if len(pages) == 2:
                page["data"][0]["request_counts"]["processing"] += more
                answer.change(page)

        return trick

    return made


def lines_of_others(count: int) -> Callable[[HostileServer], Trick]:
    lines = [b'{"custom_id":"theirs-%d","result":{"type":"expired"}}\n' % n for n in range(count)]
    return plain(lambda answer: setattr(answer, "body", b"".join(lines)))


def other_clock(seconds: float) -> Callable[[HostileServer], Trick]:
    return plain(lambda answer: answer.headers.update(date=formatdate(time.time() + seconds)))


def repeated_create(server: HostileServer) -> Trick:
    """Answer the first create call with a batch that the list showed before."""
    listed: list[str] = []
    creates = itertools.count()

    def trick(answer: Answer) -> None:
        if answer.kind == "list":
            listed.extend(batch["id"] for batch in answer.json()["data"])
        elif answer.kind == "create" and next(creates) == 0:
            answer.change({**answer.json(), "id": listed[0]})

    return trick


def with_strange_entry(**entry: str) -> Callable[[HostileServer], Trick]:
    """List an entry of somebody else's first that has no status."""

    def trick(answer: Answer) -> None:
        page = answer.json()
        answer.change({**page, "data": [{"processing_status": None, **entry}, *page["data"]]})

    return plain(trick)


def unsteady_clock(server: HostileServer) -> Trick:
    answers = itertools.count(1)

    def trick(answer: Answer) -> None:
        if next(answers) % 5 == 0:
            other_clock(3600)(server)(answer)

    return trick


def not_found(days: int, server: HostileServer) -> Trick:
    dates = iter([0, days * 86400])

    def trick(answer: Answer) -> None:
        answer.status = 404
        answer.change({"type": "error", "error": {"type": "not_found_error", "message": "gone"}})
        answer.headers["date"] = formatdate(time.time() + next(dates, 0), usegmt=True)

    return trick


def pages_without_last_id(answer: Answer) -> None:
    page = answer.json()
    rest = page["data"][1:]
    answer.change({"data": page["data"][:1], "has_more": bool(rest) or page["has_more"]})


def pages_without_more(answer: Answer) -> None:
    answer.change({"data": answer.json()["data"][:1]})


def endless_pages(answer: Answer) -> None:
    number = int(answer.path.rpartition("msgbatch_")[2] or 0) if "after_id" in answer.path else 0
    batch = {
        "id": f"msgbatch_{number + 1}",
        "processing_status": "ended",
        "created_at": "2199-01-01T00:00:00Z",
    }
    answer.change({"data": [batch], "has_more": True, "last_id": batch["id"]})


def pages_beside(*ids: str, **changes: Any) -> Trick:
    """Once there are two batches: pages of one other batch each, without an end."""
    left = itertools.cycle(ids) if ids else map("msgbatch_{}".format, itertools.count())
    cursors: Iterator[dict[str, Any]] = iter(())

    def trick(answer: Answer) -> None:
        nonlocal cursors
        if len(page := answer.json()["data"]) > 1:
            # The sandbox refuses cursors that it has not made.
            cursors = itertools.cycle(page)
        if (batch := next(cursors, None)) is not None:
            data = [{**batch, "id": next(left), **changes}]
            answer.change({"data": data, "has_more": True, "last_id": batch["id"]})

    return trick


def late(server: HostileServer) -> Trick:
    def trick(answer: Answer) -> None:
        def wait() -> Iterator[bytes]:
            server.stopping.wait(15)
            yield b""

        answer.before = wait

    return trick


def key_of(answer: Answer) -> str:
    sent = answer.sent.get("authorization", "").removeprefix("Bearer ")
    key = sent or answer.sent.get("x-api-key", "")
    assert key == KEY
    return key


def error_with_key(answer: Answer, type_: str) -> dict[str, Any]:
    error = {"type": type_, "message": f"the key {key_of(answer)} is not known"}
    return {"type": "error", "error": error}


def refused_with_key(status: int, type_: str) -> Trick:
    def trick(answer: Answer) -> None:
        answer.status = status
        answer.change(error_with_key(answer, type_))

    return trick


def refused_with_header(answer: Answer) -> None:
    answer.status = 400
    words = f"the key {answer.sent['x-gateway-key']} is not known"
    answer.change({"type": "error", "error": {"type": "api_error", "message": words}})


def page_with_key(answer: Answer) -> None:
    answer.status, answer.body = 502, f"<p>{key_of(answer)}</p>".encode()


def redirect_with_key(answer: Answer) -> None:
    key, answer.status = key_of(answer), 307
    answer.headers["location"] = f"http://user:{key}@127.0.0.1:9/{key}"


def results_with_key(answer: Answer) -> None:
    lines = [json.loads(line) for line in answer.body.splitlines()]
    for line in lines:
        error = error_with_key(answer, "invalid_request_error")
        line["result"] = {"type": "errored", "error": error}
    answer.body = b"\n".join(json.dumps(line).encode() for line in lines)


def texts_with_key(answer: Answer) -> None:
    answer.body = answer.body.replace(b"prompt", key_of(answer).encode())


def plain(trick: Trick) -> Callable[[HostileServer], Trick]:
    return lambda server: trick


ANSWERS: dict[str, Callable[[HostileServer], Trick]] = {
    "JSON nested 200,000 deep": plain(deep),
    "an error nested deep": plain(deep_error),
    "a date of the year 99999": plain(
        lambda answer: answer.headers.update(date="Fri, 31 Dec 99999 23:59:59 GMT")
    ),
    "a clock that is an hour ahead": other_clock(3600),
    "a clock that is an hour behind": other_clock(-3600),
    "a clock that is an hour ahead at times": unsteady_clock,
    "a 404, the second one with a date 2 days ahead": functools.partial(not_found, 2),
    "a 404, the second one with a date 30 days ahead": functools.partial(not_found, 30),
    "no date": plain(lambda answer: answer.headers.pop("date")),
    "a wait of 1e400 seconds": plain(wait_for_ever),
    "counts of 10 ** 30": plain(changed_batches(request_counts={"processing": 10**30})),
    "counts below zero": plain(changed_batches(request_counts={"succeeded": -3})),
    "counts as floats and strings": plain(loose_counts),
    "no counts": plain(without_counts),
    "no status": plain(changed_batches(processing_status=None)),
    "a strange entry that is old": with_strange_entry(
        id="msgbatch_x", created_at="2026-01-01T00:00:00Z"
    ),
    "a strange entry without a date": with_strange_entry(),
    "null counts": plain(changed_batches(request_counts=None)),
    "counts of a batch in progress": plain(
        changed_batches(request_counts={"processing": 3, "succeeded": 0})
    ),
    "a batch in progress": plain(changed_batches(processing_status="in_progress")),
    "old counts at first": counts_at_first(
        lambda counts: {"processing": sum(counts.values()), "succeeded": 0}
    ),
    "3 successes too many at first": counts_at_first(lambda counts: counts | {"succeeded": 3}),
    "a request less, once": other_count_once(-1),
    "a request more, once": other_count_once(1),
    "a line of somebody else": lines_of_others(1),
    "4 lines of somebody else": lines_of_others(4),
    "an earlier batch as the first new one": repeated_create,
    "another batch's id": plain(changed_batches(id="msgbatch_of_somebody_else")),
    "a stream of somebody's gzip": plain(
        lambda answer: answer.headers.update({"content-encoding": "gzip"})
    ),
    "a gigabyte of zeros, compressed": plain(zeros(200)),
    "an error of a gigabyte, compressed": plain(zeros(500)),
    "a page that repeats itself": plain(repeated_page),
    "a line of the first batch moved": moved_line,
    "a line that does not end": endless(b"x"),
    "lines that do not end": endless_lines,
    "a byte now and then": dripping,
    "a 100 Continue now and then": continuing,
    "pages that do not end": plain(endless_pages),
    "pages that go round in a circle": lambda server: pages_beside("msgbatch_a", "msgbatch_b"),
    "endless pages of old batches": lambda server: pages_beside(created_at="2025-01-01T00:00:00Z"),
    "pages of one batch that name no last id": plain(pages_without_last_id),
    "pages of one batch that name nothing": plain(pages_without_more),
    "an answer after 15 s": late,
    "a 401 that has the key": plain(refused_with_key(401, "authentication_error")),
    "a 400 that has the key": plain(refused_with_key(400, "api_error")),
    "a 400 that has the gateway's key": plain(refused_with_header),
    "a page that has the key": plain(page_with_key),
    "a redirect to a URL with the key": plain(redirect_with_key),
    "errors that have the key": plain(results_with_key),
    "texts that have the key": plain(texts_with_key),
}


@given("it answers the first {count:d} {calls} calls with {what}")
def _(context: Context, count: int, calls: str, what: str) -> None:
    chosen = ANSWERS[what](context.hostile)
    left = [count]

    def trick(answer: Answer) -> None:
        if calls in ("API", answer.kind) and answer.status == 200 and left[0]:
            left[0] -= 1
            chosen(answer)

    context.hostile.trick = trick


# The command -----------------------------------------------------------------------------------


_COMMAND = """
import atexit, re, sys
from pathlib import Path
from claude_batch.cli import main
kept = Path(sys.argv.pop(1))
def keep():
    # What getrusage says holds the memory of the process that this one was forked from.
    kept.write_text(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
atexit.register(keep)
main()
"""


def command(context: Context, *words: str, quick: bool = True) -> None:
    """Run the command to its end; what it printed, its exit code and its memory are kept."""
    more = ["--poll-interval", "100ms", "--settling", "200ms"] if quick else []
    kept, begun = context.tmp / "memory", time.monotonic()
    done = programs.run(_COMMAND, str(kept), *words, *more, timeout=KILLED_AFTER)
    context.used = {
        "s": time.monotonic() - begun,
        "MB of memory": int(kept.read_text()) / 1024,
    }
    keep_end(context, done.returncode, done.stdout, done.stderr)


def run(context: Context, *words: str) -> None:
    asked = [str(context.asked), "-o", str(context.out)]
    command(context, "run", "--model", "claude-haiku-4-5", *asked, *words)


@when("three prompts are run")
def _(context: Context) -> None:
    run(context)


@when("{count} prompts are run with {flags}")
def _(context: Context, count: str, flags: str) -> None:
    write_prompts(context, context.prompts[: {"two": 2, "three": 3}[count]])
    run(context, *flags.replace("HOST", context.hostile.url.removeprefix("http://")).split())


@when("the run is resumed")
def _(context: Context) -> None:
    command(context, "resume", "--max-wait", "60s")


@then("it used less than {most:d} {what}")
def _(context: Context, most: int, what: str) -> None:
    assert context.used[what] < most, context.used


def outputs(context: Context) -> dict[str, Any]:
    lines = [json.loads(line) for line in context.out.read_text().splitlines()]
    return {line["id"]: line for line in lines}


@then('{good} delivered, and the second is "{fault}"')
def _(context: Context, good: str, fault: str) -> None:
    names = {"the first answer is": ["one"], "the first and the third answer are": ["one", "three"]}
    lines = outputs(context)
    assert [name for name, line in lines.items() if line["ok"]] == names[good], lines
    assert lines["two"]["error"]["type"] == fault, lines["two"]


@then("{verb} gives the same answers")
def _(context: Context, verb: str) -> None:
    again = str(context.tmp / "again.jsonl")
    command(context, verb, context.run_id, "-o", again, quick=verb == "resume")
    assert context.ended.exit_code in (0, 1), context.ended.output
    assert Path(again).read_bytes() == context.out.read_bytes()


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


@then("the {secret} is neither on the screen nor in the ledger")
def _(context: Context, secret: str) -> None:
    secrets = {"key": KEY, "password": "open-sesame-42", "gateway's key": "gw-open-sesame-42"}
    not_seen(context, secrets[secret])


def not_seen(context: Context, secret: str) -> None:
    assert secret not in context.ended.output, context.ended.output
    folder = Path(os.environ["CLAUDE_BATCH_LEDGER"]).parent
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in [*files, context.out]:
        if path.exists():
            assert secret.encode() not in path.read_bytes(), path


@rule("clients of these URLs warn")
def _(context: Context, urls: list[str]) -> dict[str, object]:
    keep_log(context, logging.WARNING)
    for url in urls:
        Connection(base_url=url, api_key=KEY)
    warnings = [record.getMessage() for record in context.kept]
    return {"warnings": len(warnings), "says": "\n".join(warnings)}
