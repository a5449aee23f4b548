"""Everything that is done with a body once it is here: decoded, priced, mapped, shown, continued.

Each function takes bytes and raises nothing but what it found wrong: any exception that gets out of
it, and any `AssertionError` of its own, is a fault of claude-batch.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from random import Random
from typing import Any

import claude_batch as cb
from claude_batch.core.answer_parts import Usage
from claude_batch.core.outcome import Disposition
from claude_batch.core.states import RequestState
from claude_batch.integrations.http_messages import response_of
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.collection import result_row_of as stored_result
from claude_batch.money.prices import prices_of
from claude_batch.providers.export import csv_line, output_line
from claude_batch.providers.mapping import result_of
from claude_batch.wire.conversation import (
    ToolOutcome,
    after_pause,
    after_rejection,
    after_tools,
    schema_problem,
    tool_uses,
)
from claude_batch.wire.encoding import parse_custom_id
from claude_batch.wire.error_table import fault_of_response
from claude_batch.wire.inbound import (
    LARGEST_COUNT,
    LONGEST_WAIT,
    Redaction,
    header_word,
    retry_after,
    server_time,
)
from claude_batch.wire.messages import (
    UnreadableLine,
    decode_line,
    decode_message,
    error_of_line,
    message_of_line,
)
from claude_batch.wire.pace import Pace, Turn
from fuzzing.bodies import KEY

__all__ = [
    "REDACTION",
    "check_usage",
    "read_answer",
    "read_error",
    "read_headers",
    "read_line",
    "read_malformed",
    "read_message",
    "says_no_key",
]

REDACTION = Redaction([KEY])

_PRICES = prices_of()

_PARAMS = json.dumps(
    {
        "model": "claude-haiku-4-5",
        "max_tokens": 100,
        "container": {"id": "before", "skills": []},
        "messages": [{"role": "user", "content": "ask"}],
        "output_config": {
            "format": {
                "type": "json_schema",
                "schema": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                    "required": ["name", "age"],
                    "additionalProperties": False,
                },
            }
        },
    }
).encode()

_STATES = {
    Disposition.FINAL: RequestState.SUCCEEDED,
    Disposition.REFUSED: RequestState.REFUSED,
    Disposition.WINDOW_EXCEEDED: RequestState.WINDOW_EXCEEDED,
    Disposition.MALFORMED: RequestState.MALFORMED,
    Disposition.UNDOCUMENTED: RequestState.MALFORMED,
    Disposition.TOOLS: RequestState.STOPPED,
    Disposition.PAUSED: RequestState.STOPPED,
}
"""What a success becomes in a run that converses."""


def says_no_key(words: str) -> None:
    """Assert that a message can be printed, and holds no credential."""
    words.encode()
    assert KEY not in words, words[:500]


def is_json(data: bytes) -> Any:
    """Assert that something is JSON; integers may have more digits than Python takes."""
    return json.loads(data, parse_int=float)


def check_usage(usage: Usage) -> None:
    """Assert that every count of an answer is one."""
    for name in ("input_tokens", "output_tokens", "web_search_requests"):
        count = getattr(usage, name)
        assert type(count) is int and 0 <= count <= LARGEST_COUNT, (name, count)
    written = usage.cache_creation_5m_input_tokens + usage.cache_creation_1h_input_tokens
    assert 0 <= written == usage.cache_creation_input_tokens, usage


def read_line(raw: bytes, rng: Random) -> None:
    """Read a line as collection does, and give it to a caller in every form."""
    try:
        line = decode_line(raw)
    except UnreadableLine as error:
        says_no_key(str(error))
        return
    parse_custom_id(line.custom_id)
    if line.usage is not None:
        check_usage(line.usage)
    stored = stored_result(line, raw, 1, 1, 1, _PRICES, batch=rng.random() < 0.5, at=1.7e9)
    for nano in (stored.cost, stored.live_cost, stored.uncached_cost):
        # A million of them still fit into the ledger's 64 bits.
        assert nano is None or 0 <= nano < 2**63 // 1_000_000, nano
    state = {
        "succeeded": _STATES.get(line.disposition, RequestState.SUCCEEDED),
        "errored": RequestState.ERRORED,
        "canceled": RequestState.CANCELED,
        "expired": RequestState.EXPIRED,
    }[line.outcome]
    for each in {state, RequestState.MALFORMED if line.usage is None else state}:
        if line.outcome == "succeeded" or each is state:
            read_answer(_answer(each, raw, stored.cost, line.outcome))
    if line.outcome == "errored":
        is_json(error_of_line(raw))
    if state in (RequestState.SUCCEEDED, RequestState.STOPPED):
        converse(message_of_line(raw))


def read_malformed(line: bytes) -> None:
    """Give a stored malformed answer to a caller, whatever can be read of it."""
    read_answer(_answer(RequestState.MALFORMED, line, None, "succeeded"))


def _answer(state: RequestState, raw: bytes, cost: int | None, outcome: str) -> Answer:
    stop = "tools" if state is RequestState.STOPPED else None
    return Answer(
        *(1, "run-1", 0, "key", state, 1, 1, raw, "msgbatch_1", cost, "batch", 0, 1.7e9, 1, stop),
        note=None,
        outcome=outcome,
        canceler="api" if state is RequestState.CANCELED else None,
        kind="run",
    )


def read_answer(answer: Answer) -> None:
    """Give a stored answer to a caller in Python, and as a line of each output format."""
    result = result_of(answer)
    if result.response is not None:
        use(result.response)
    else:
        assert result.error is not None
        says_no_key(str(result.error))
        if isinstance(result.error, cb.MalformedAnswerError):
            assert result.error.raw == answer.raw and result.error.problem
        if isinstance(result.error, cb.AnswerError) and result.error.response is not None:
            use(result.error.response)
    is_json(output_line(answer))
    csv_line(answer, safe=True)
    is_json(response_of(answer, stream=False).content)
    response_of(answer, stream=True).text.encode()


def use(response: cb.ActorResponse) -> None:
    """Look at everything that an answer shows."""
    check_usage(response.usage)
    response.text.encode()
    _ = (response.id, response.model, response.stop_reason, response.stop_sequence)
    _ = (response.citations, response.field_citations, response.cost_usd, repr(response))
    try:
        _ = response.parsed_output
    except cb.OutputValidationError as error:
        says_no_key(str(error))
    try:
        _ = response.message
    except cb.MalformedAnswerError as error:
        # In a field that nothing else reads.
        says_no_key(str(error))
    json.dumps(response.to_dict())
    assert pickle.loads(pickle.dumps(response)) == response


def read_message(raw: bytes, rng: Random) -> None:
    """Read the body of a live answer."""
    try:
        message = decode_message(raw)
    except UnreadableLine as error:
        says_no_key(str(error))
        return
    check_usage(message.usage)
    use(cb.ActorResponse(raw))
    converse(raw)


def converse(message: bytes) -> None:
    """Make the next turn of an answer, in each way there is."""
    outcomes = [ToolOutcome(use.id, b'"done"', False) for use in tool_uses(message)]
    schema_problem(_PARAMS, message)
    for params in (
        after_tools(_PARAMS, message, outcomes),
        after_pause(_PARAMS, message),
        after_rejection(_PARAMS, message, "again"),
    ):
        assert is_json(params)["messages"][0]["content"] == "ask"


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Read an answer that is no success, and ask what it means."""
    fault = fault_of_response(status, headers, body, REDACTION)
    says_no_key(fault.describe())
    says_no_key(fault.location or "")
    _ = (fault.account_reason, fault.disposition, fault.is_not_billed, fault.passes)
    _ = fault.verdict


def read_headers(headers: Mapping[str, str], rng: Random) -> None:
    """Read an answer's headers, and pace calls by them: none may hold up calls for ever."""
    seconds = retry_after(headers)
    assert seconds is None or 0 <= seconds <= LONGEST_WAIT, seconds
    now = server_time(headers)
    assert now is None or math.isfinite(now), now
    word = header_word(headers, "request-id")
    assert word is None or (word.isprintable() and len(word) <= 256), word
    pace, at = Pace(), 1000.0
    for _ in range(3):
        # A wait may be a little too short, by the rounding of the time.
        for _ in range(10):
            turn = pace.ask(at, pace.cost_of(4000, 100), 8)
            if isinstance(turn, Turn):
                break
            assert 0 < turn < 2 * LONGEST_WAIT, turn
            at += turn
        assert isinstance(turn, Turn), (turn, at)
        if rng.random() < 0.5:
            pace.answered(at, turn, headers, input_tokens=10, output_tokens=20)
        else:
            pace.refused(at, turn, headers, seconds)
