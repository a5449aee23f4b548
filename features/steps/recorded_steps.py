"""Steps that replay the recorded answers of the service."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from behave import given, then
from behave.runner import Context
from hostile_server import Answer, HostileServer
from recordings import Recorded, encoded, recorded, recording
from tables import rule

import claude_batch.wire.batches_client as client
from claude_batch.cli.doctor_command import record_sandbox
from claude_batch.providers.service_record import (
    Record,
    compare,
    observe,
    observe_line,
    whole_results,
)
from claude_batch.wire.error_table import fault_of_response
from claude_batch.wire.inbound import Redaction
from claude_batch.wire.messages import ResultLine, decode_line

# Reading ------------------------------------------------------------------------------------------


@rule("a recorded batch is read")
def _(recording_name: str, step: str) -> dict[str, Any]:
    found = recording(recording_name)[step]
    value = found.value["data"][0] if step == "list" else found.value
    batch = msgspec.json.decode(encoded(value), type=client.RemoteBatch)
    assert batch.created is not None and batch.counts.total, batch
    return {
        "status": batch.processing_status,
        "processing": batch.counts.processing,
        "finished": batch.counts.finished,
        "ended": batch.ended is not None,
    }


@rule("a recorded error is judged")
def _(recording_name: str, step: str) -> dict[str, Any]:
    found = recording(recording_name)[step]
    fault = fault_of_response(found.status, found.headers, found.body, Redaction(()))
    return {
        "type": fault.error_type,
        "of_a_POST": fault.verdict.name,
        "reading_passes": fault.passes,
        "wait": fault.retry_after,
    }


def line_of(recording_name: str, custom_id: str) -> ResultLine:
    return decode_line(encoded(recording(recording_name)["results"].lines[custom_id]))


@rule("a recorded answer of a model is read")
def _(recording_name: str, custom_id: str) -> dict[str, Any]:
    line = line_of(recording_name, custom_id)
    assert line.usage is not None and not line.fault, line
    return {
        "disposition": line.disposition,
        "model": line.model,
        "input": line.usage.input_tokens,
        "output": line.usage.output_tokens,
        "written": line.usage.cache_creation_input_tokens,
        "searches": line.usage.web_search_requests,
    }


@rule("a recorded line without an answer is read")
def _(custom_id: str) -> dict[str, Any]:
    line = line_of("2026-line-errors", custom_id)
    error = line.error
    return {
        "outcome": line.outcome,
        "disposition": line.disposition,
        "type": error and error.type,
        "request_id": error and error.request_id,
    }


@then("each recorded answer stands in a table of this page")
def _(context: Context) -> None:
    text = " ".join(
        " ".join(row.cells)
        for scenario in context.feature.scenarios
        for step in scenario.steps
        for row in step.table or ()
    )
    names = {
        name
        for each in recorded()
        for name in (each.lines or (each.step,))
        if each.step != "results of a canceled batch"
    }
    assert not [name for name in names if name not in text], names


# A service that answers so ------------------------------------------------------------------------

OWN = ("id", "request_counts", "results_url")
"""Fields of a batch that say something of this batch."""


def as_recorded(own: dict[str, Any], found: Recorded, results: Recorded) -> dict[str, Any]:
    """The sandbox's batch in the form of a recorded one, with the counts of recorded results."""
    value = {**found.value, **{name: own[name] for name in OWN}}
    if own["processing_status"] == "ended":
        outcomes = Counter(line["result"]["type"] for line in results.lines.values())
        value["request_counts"] = {name: outcomes[name] for name in own["request_counts"]}
    for name in (name for name in value if name.endswith("_at")):
        value[name] = own[name] and own[name].replace("Z", "+00:00")
    return value


STEPS = {"in_progress": "batch in progress", "canceling": "batch canceling", "ended": "batch ended"}


def in_pieces(body: bytes, size: int) -> Callable[[], Iterator[bytes]]:
    """Chunks of a few bytes, which split lines, characters and escapes."""

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), size):
            piece = body[start : start + size]
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
        yield b"0\r\n\r\n"

    return pieces


@given("a service that answers as in {name}, {form}, and finds results after {seconds:d} s")
def _(context: Context, name: str, form: str, seconds: int) -> None:
    answers, batches = recording(name), recording("2026-09-captures")
    words = form.split()
    ended: list[float] = []

    def results(answer: Answer) -> None:
        ended.append(time.monotonic())
        if ended[-1] - ended[0] < seconds:
            missing = recording("2024-10-cassettes")["results not found"]
            answer.status, answer.body = missing.status, missing.body
            answer.headers.update(missing.headers)
            return
        found = answers["results"]
        own = [json.loads(line) for line in answer.body.splitlines()]
        lines = [
            encoded({**recorded_line, "custom_id": line["custom_id"]})
            for line in own
            for custom_id, recorded_line in found.lines.items()
            if f"as {custom_id}." in json.dumps(line)
        ]
        assert len(lines) == len(own), own
        answer.headers.update(found.headers)
        answer.body = b"\n".join(lines) + (b"" if found.last_line_ends is False else b"\n")
        if "gzip" in words:
            answer.compress()
        answer.headers["transfer-encoding"] = "chunked"
        answer.pieces = in_pieces(answer.body, int(words[-2]))

    def trick(answer: Answer) -> None:
        if answer.status != 200:
            return
        if answer.kind == "results":
            results(answer)
        elif (own := answer.json()).get("type") == "message_batch":
            found = batches[STEPS[own["processing_status"]]]
            answer.headers.update(found.headers)
            answer.change(as_recorded(own, found, answers["results"]))

    server = HostileServer(context.api.url)
    server.trick = trick
    server.stand_before(context)


@given("prompts that are answered as the lines of {name}")
def _(context: Context, name: str) -> None:
    with open("asks.jsonl", "w") as stream:
        for custom_id in recording(name)["results"].lines:
            stream.write(json.dumps({"id": custom_id, "prompt": f"as {custom_id}."}) + "\n")


@then("the results were looked for more than once")
def _(context: Context) -> None:
    calls = [path for path in context.hostile.paths if path.endswith("/results")]
    assert len(calls) > 1, calls


# The sandbox --------------------------------------------------------------------------------------

LINES = {"doctor-text": "plain", "doctor-tool": "tool", "doctor-error": "bad-model"}
"""Which of the newest recorded lines is like which line of doctor's batch."""


def as_record() -> Record:
    """The newest recorded answer of each step, as doctor records a service."""
    record: Record = {}
    lines: dict[str, dict[str, Any]] = {}
    for each in recorded():
        lines |= each.lines
        shown = whole_results(each.body) if each.lines else each.value
        record[each.step] = observe(each.status, each.headers, shown)
    record |= {f"line {name}": observe_line(lines[like]) for name, like in LINES.items()}
    return record


@then("the sandbox differs in nothing from the newest recorded answers")
def _(_: Context) -> None:
    ours, expected = asyncio.run(record_sandbox("claude-haiku-4-5")), as_record()
    assert len(ours.keys() & expected.keys()) > 15, ours.keys() & expected.keys()
    # Of most answers only some headers were recorded, and of the newest results no last byte.
    found = [
        str(each)
        for each in compare(ours, expected)
        if each.what != "field last_line_break"
        and (each.expected or not each.what.startswith("header "))
    ]
    assert not found, "\n".join(found)
