"""Steps of mutated answers, and of single ones that they have found to do harm."""

from __future__ import annotations

import asyncio
import json
from random import Random
from unittest.mock import patch

from behave import given, then, when
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
from claude_batch.integrations.http_answers import response_of
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


@given("a border where {fault}")
def _(context: Context, fault: str) -> None:
    MUTANTS[fault].start()
    context.add_cleanup(MUTANTS[fault].stop)


@when("{count:d} mutated answers are read")
def _(context: Context, count: int) -> None:
    context.report = play(SEED, count, kept=context.tmp)
    context.count = count


@then("nothing but named errors came out")
def _(context: Context) -> None:
    report = context.report
    assert not report.failures, "\n".join(report.failures)
    assert report.answers >= context.count
    wanted = {"line", "message", "error", "headers", "network", "stored"}
    assert set(report.kinds) == wanted, report.kinds


@then("a case is reported, with what plays it again")
def _(context: Context) -> None:
    [words] = context.report.failures
    assert words.splitlines()[-1].startswith(f"again: nox -s fuzz -- --seed {SEED} --only "), words
    context.only = int(words.split()[-1])
    assert (context.tmp / f"{SEED}-{context.only}.bin").exists()


@then("that case fails again by itself")
def _(context: Context) -> None:
    assert play(SEED, 1, only=context.only).failures


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


@when("a success comes with {fields}")
def _(context: Context, fields: str) -> None:
    context.message = _success(fields)


@then("its message for the SDK raises MissingResultError, and all else is there")
def _(context: Context) -> None:
    response = cb.ActorResponse(context.message)
    assert (response.text, response.usage.output_tokens) == ("", 87)
    try:
        _ = response.message
    except cb.MissingResultError as error:
        assert "out of range" in str(error), error
    else:
        raise AssertionError("the message was made")


@when('an error comes whose request id is "{identifier}"')
def _(context: Context, identifier: str) -> None:
    error = {**ERRORS[0][1], "request_id": identifier}
    line = {"custom_id": "one", "result": {"type": "errored", "error": error}}
    state = RequestState.ERRORED
    context.answer = Answer(1, "run-1", 0, "one", state, 1, 1, encoded(line), None)


@then("the SDK is answered with that error, and without a request id")
def _(context: Context) -> None:
    answer = response_of(context.answer, stream=False)
    assert answer.status_code == 400 and "request-id" not in answer.headers, answer.headers
    assert json.loads(answer.content)["error"] == ERRORS[0][1]["error"]


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


@given('a server that sets a cookie with the value "{value}"')
def _(context: Context, value: str) -> None:
    context.cookie = value.encode().decode("unicode_escape")


@when("it is asked twice")
def _(context: Context) -> None:
    async def ask() -> None:
        async with Network() as network:
            body = encoded(PAGE)
            head = f"HTTP/1.1 200 OK\r\nset-cookie: a={context.cookie}\r\nconnection: close\r\n"
            network.answer = b"%bcontent-length: %d\r\n\r\n%b" % (
                head.encode("latin-1"),
                len(body),
                body,
            )
            for _ in range(2):
                context.pages.append(await network.client.list_page())
            context.asked = network.asked

    context.pages = []
    asyncio.run(ask())


@then("both calls are answered, and no cookie was sent back")
def _(context: Context) -> None:
    assert [len(page.data) for page in context.pages] == [3, 3], context.pages
    assert len(context.asked) == 2
    assert not any(b"cookie:" in head.lower() for head in context.asked), context.asked


@when("an error page comes that repeats the key where its message is cut")
def _(context: Context) -> None:
    page = b"<p>" + b"x" * 180 + KEY.encode() + b"</p>"
    context.fault = fault_of_response(502, {}, page, REDACTION)


@then("no part of the key is in the message")
def _(context: Context) -> None:
    assert "xxx" in context.fault.message and KEY[:8] not in context.fault.message, context.fault


@rule("nano-dollars are written")
def _(nano: int) -> dict[str, str]:
    return {"exact": cost_usd(nano).decode(), "short": write_usd(nano), "rounded": dollars(nano)}
