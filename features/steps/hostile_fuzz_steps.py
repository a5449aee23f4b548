"""Steps of mutated answers, and of single ones that they have found to do harm."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import nullcontext
from random import Random
from unittest.mock import patch

from behave.runner import Context
from fuzzing.bodies import ERRORS, KEY, MESSAGES, PAGE
from fuzzing.mutations import encoded
from fuzzing.network import Network
from fuzzing.play import play
from fuzzing.readers import REDACTION, read_line, read_message
from tables import rule

import claude_batch as cb
from claude_batch.core.outcome import Disposition
from claude_batch.core.quantities import dollars, write_usd
from claude_batch.core.states import RequestState
from claude_batch.integrations.http_messages import response_of
from claude_batch.ledger.queries import Answer
from claude_batch.providers.export import cost_usd
from claude_batch.wire import messages
from claude_batch.wire.error_table import fault_of_response
from claude_batch.wire.inbound import Redaction
from claude_batch.wire.messages import ResultLine, UnreadableLine, decode_line, decode_message
from claude_batch.wire.pace import Pace, Turn

SEED = 1
"""The suite plays the same cases each time, so that it fails for a change and nothing else."""

MUTANTS = {
    "text is not checked": patch.object(messages, "check_text", lambda data: None),
    "blocks are not checked": patch.object(messages, "_check_blocks", lambda content: None),
    "credentials are not replaced": patch.object(Redaction, "text", lambda self, words: words),
}


@rule("mutated answers are read, and end in named errors, or in a case that can be played again,")
def _(context: Context, fault: str, answers: int) -> dict[str, int]:
    with MUTANTS.get(fault, nullcontext()):
        report = play(SEED, answers, kept=context.tmp)
        for words in report.failures:
            found = re.search(f"again: nox -s fuzz -- --seed {SEED} --only (\\d+)$", words)
            assert found, words
            assert (context.tmp / f"{SEED}-{found[1]}.bin").exists()
            assert play(SEED, 1, only=int(found[1])).failures
    if not report.failures:
        assert report.answers >= answers
        wanted = {"line", "message", "error", "headers", "network", "stored"}
        assert set(report.kinds) == wanted, report.kinds
    return {"failures": len(report.failures)}


# Single answers --------------------------------------------------------------------------------


def line_of(message: bytes) -> bytes:
    identifier = b"0123456789abcdef0123456789abcdef-01234567-0001"
    return b'{"custom_id":"%b","result":{"type":"succeeded","message":%b}}' % (identifier, message)


def _success(fields: str) -> bytes:
    kept = {name: MESSAGES[0][name] for name in ("id", "model", "stop_reason", "usage")}
    words = fields.replace("BRACKETS", "[{" * 500 + '\\"[')
    words = words.replace("DEEP", "[" * 150 + "]" * 150)
    return encoded(kept)[:-1] + f",{words}}}".encode()


@rule("a success with these fields is decoded")
def _(what: str, fields: str) -> ResultLine:
    message = _success(fields)
    raw = line_of(message)
    read_line(raw, Random(0))
    found = decode_line(raw)
    if found.disposition is Disposition.FINAL:
        read_message(message, Random(0))
        return found
    assert found.fault, found
    try:
        decode_message(message)
    except UnreadableLine:
        return found
    raise AssertionError("it is taken for a Message")


@rule("a success with these fields is read with the SDK's types")
def _(fields: str) -> dict[str, object]:
    response = cb.ActorResponse(_success(fields))
    found: dict[str, object] = {"text": response.text, "tokens": response.usage.output_tokens}
    try:
        return {**found, "kind": type(response.message).__name__, "says": ""}
    except cb.MalformedAnswerError as error:
        return {**found, "kind": "MalformedAnswerError", "says": str(error)}


@rule("the SDK is answered with an error that came with a request id")
def _(request_id: str) -> dict[str, object]:
    error = {**ERRORS[0][1], "request_id": request_id}
    line = {"custom_id": "one", "result": {"type": "errored", "error": error}}
    state = RequestState.ERRORED
    answer = response_of(
        Answer(1, "run-1", 0, "one", state, 1, 1, encoded(line), None), stream=False
    )
    assert json.loads(answer.content)["error"] == ERRORS[0][1]["error"]
    return {"status": answer.status_code, "header": answer.headers.get("request-id")}


@rule("after an answer with such a limit of requests the next call leaves within a minute,")
def _(limit: str, remaining: str) -> dict[str, bool]:
    pace = Pace()
    turn = pace.ask(0.0, pace.cost_of(100, 10), 8)
    assert isinstance(turn, Turn)
    headers = {
        "anthropic-ratelimit-requests-limit": limit,
        "anthropic-ratelimit-requests-remaining": remaining,
    }
    pace.answered(0.0, turn, headers, input_tokens=1, output_tokens=1)
    return {"leaves": isinstance(pace.ask(60.0, pace.cost_of(100, 10), 8), Turn)}


@rule("calls after an answer with a cookie are made")
def _(cookie: str) -> dict[str, int]:
    async def ask() -> dict[str, int]:
        async with Network() as network:
            body = encoded(PAGE)
            head = f"HTTP/1.1 200 OK\r\nset-cookie: a={cookie}\r\nconnection: close\r\n"
            lengthy = f"{head}content-length: {len(body)}\r\n\r\n"
            network.answer = lengthy.encode("latin-1") + body
            pages = [await network.client.list_page() for _ in range(2)]
            heads = [head for head in network.asked if b"cookie:" in head.lower()]
            return {"answered": sum(len(page.data) == 3 for page in pages), "cookies": len(heads)}

    return asyncio.run(ask())


@rule("an error page that repeats the key has a message")
def _(letters_before: int, blanks_before: int) -> dict[str, object]:
    start = b"<p>" + b"x" * letters_before + b" " * blanks_before
    page = start + KEY.encode() + b"</p>" + b" " * 2000
    message = fault_of_response(502, {}, page, REDACTION).message
    return {"begins": message[:10], "has_the_key": KEY[:8] in message}


@rule("nano-dollars are written")
def _(nano: int) -> dict[str, str]:
    return {"exact": cost_usd(nano).decode(), "short": write_usd(nano), "rounded": dollars(nano)}
