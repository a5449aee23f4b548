"""Rules of the wire: encoding, the table of errors, result lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pages import agreement
from staging import KeptLog
from tables import rule

from claude_batch.core.answer_parts import Usage
from claude_batch.core.outcome import Disposition
from claude_batch.wire import error_table
from claude_batch.wire.encoding import (
    BODY_END,
    BODY_START,
    body_items,
    custom_id,
    encode_params,
    parse_custom_id,
)
from claude_batch.wire.error_table import SendVerdict, classify_line, fault_of_response
from claude_batch.wire.inbound import Redaction, retry_after
from claude_batch.wire.messages import (
    DecodedMessage,
    LineError,
    ResultLine,
    decode_line,
    decode_message,
    message_of_line,
)

GOOD: dict[str, Any] = {
    "model": "claude-haiku-4-5",
    "max_tokens": 10,
    "messages": [{"role": "user", "content": "hello"}],
}
NO_SECRETS = Redaction(())
PROXY = b"<html>a proxy speaks</html>"


# Params


def _encode(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    log, logger = KeptLog(), logging.getLogger("claude_batch.wire.encoding")
    logger.addHandler(log)
    try:
        encoded = encode_params(given, **more)
    finally:
        logger.removeHandler(log)
    params = json.loads(encoded.params)
    assert {name: params[name] for name in GOOD} == {name: given[name] for name in GOOD}, params
    return {
        "added": {name: value for name, value in params.items() if name not in GOOD},
        "api_version": encoded.headers.api_version,
        "headers": encoded.headers.as_headers(),
        "warning": "\n".join(log.lines),
    }


@rule("changed params are encoded for a batch")
def _(
    changes: dict[str, Any] | None = None,
    without: str = "",
    defaults: dict[str, Any] | None = None,
    capabilities: dict[str, bool] | None = None,
) -> dict[str, Any]:
    params = {**GOOD, **(changes or {})}
    params.pop(without, None)
    return _encode(params, defaults=defaults, capabilities=capabilities)


@rule("changed params are encoded for a live call")
def _(changes: dict[str, Any]) -> dict[str, Any]:
    return _encode({**GOOD, **changes}, batch=False)


@rule("params with betas and a profile get headers")
def _(betas_in_the_params: list[str], betas_beside_them: list[str], profile: str) -> dict[str, Any]:
    params = {**GOOD, "betas": betas_in_the_params}
    found = _encode(params, betas=betas_beside_them, user_profile=profile)
    assert "betas" not in found["added"], found
    return found


@rule("a custom_id is made")
def _(request: str, ledger: str, sending: int) -> str:
    return custom_id(request, ledger, sending)


@rule("a custom_id is read")
def _(custom_id: str) -> tuple[str, str, int] | None:
    return parse_custom_id(custom_id)


@rule("a body of these items is written")
def _(items: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    pairs = [(name, json.dumps(params).encode()) for name, params in items]
    body = json.loads(BODY_START + b"".join(body_items(pairs, first=True)) + BODY_END)
    assert list(body) == ["requests"], body
    return body["requests"]


# Errors


def _api_error(error_type: str, message: str, error_code: str = "") -> bytes:
    error: dict[str, Any] = {"type": error_type, "message": message}
    if error_code:
        error["details"] = {"error_code": error_code}
    return json.dumps({"type": "error", "error": error}).encode()


@rule("a create call that is answered so is judged")
def _(status: int, error_type: str, message: str, error_code: str) -> object:
    body = _api_error(error_type, message, error_code)
    fault = fault_of_response(status, {"request-id": "req_1"}, body, NO_SECRETS)
    assert "req_1" in fault.describe() and error_type in fault.describe()
    assert fault.is_refusal is (fault.verdict is SendVerdict.WAIT)
    return fault.verdict


@rule("a create call that another server answers is judged")
def _(status: int) -> object:
    headers = {"location": "http://elsewhere/"} if status < 400 else {}
    verdicts: set[object] = set()
    # A gateway may pass on the API's request-id, or imitate its bodies.
    for more, body in (
        ({}, PROXY),
        ({"request-id": "req_1"}, PROXY),
        ({}, _api_error("overloaded_error", "a proxy speaks")),
    ):
        fault = fault_of_response(status, headers | more, body, NO_SECRETS)
        assert not fault.from_api and fault.account_reason is None
        assert fault.disposition is Disposition.FINAL
        assert "a proxy speaks" in fault.describe()
        assert fault.is_redirect is (fault.verdict is SendVerdict.MISPLACED)
        verdicts.add(fault.verdict)
    [verdict] = verdicts
    return verdict


@rule("a result line with an error is judged")
def _(error_type: str, message: str, error_code: str) -> str:
    return classify_line(error_type, message, {"error_code": error_code})


@rule("a stored failure passes by itself or not,")
def _(error_type: str, message: str) -> bool:
    return classify_line(error_type, message, None) is not Disposition.FINAL


@rule("an answer to a live call proves that nothing is billed,")
def _(status: int, sender: str) -> bool:
    if sender == "a proxy":
        return fault_of_response(status, {}, PROXY, NO_SECRETS).is_not_billed
    assert sender == "the API", sender
    body = _api_error("api_error", "m")
    return fault_of_response(status, {"request-id": "req_1"}, body, NO_SECRETS).is_not_billed


@rule("the headers of an answer ask to wait")
def _(headers: dict[str, str]) -> float | None:
    return retry_after(headers)


# The documentation's tables


def _table_of_errors() -> list[str]:
    fates = {"retry": "tried again", "account": "back to the queue", "final": "final"}
    return [
        f"| `{row.error_type}` | {_told(row)} | {fates[row.disposition]} | {row.halt or ''} | "
        f"{row.source} |"
        for row in error_table.MEANINGS
    ]


def _told(row: error_table.Meaning) -> str:
    if row.error_code is not None:
        return f"`error_code` is `{row.error_code}`"
    if row.words is None:
        return "any"
    return (
        f"begins “{row.words.pattern.removeprefix('^').replace('(workspace )?', '[workspace] ')}”"
    )


def _table_of_answers() -> list[str]:
    return [
        f"| {_statuses(row.statuses)} | {'yes' if row.in_api_words else 'no'} | {row.meaning} | "
        f"{row.source} |"
        for row in error_table.NOT_BILLED
    ]


def _statuses(found: range) -> str:
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


@agreement("the tables of errors")
def tables_of_errors() -> None:
    text = (Path(__file__).parents[2] / "docs/explanation/guarantees.md").read_text()
    for rows in (_table_of_errors(), _table_of_answers()):
        assert "\n".join(rows) in text, "\n".join(rows)


# Result lines


def _line(result: str) -> bytes:
    return f'{{"custom_id":"a","result":{result}}}'.encode()


def _success(message: str) -> bytes:
    return _line(f'{{"type":"succeeded","message":{message}}}')


@rule("a result line is decoded")
def _(result: str) -> ResultLine:
    line = decode_line(_line(result))
    assert bool(line.fault) == (line.disposition in ("malformed", "undocumented")), line
    return line


@rule("the error of a result line, nested twice, is decoded")
def _(error_object: str) -> LineError | None:
    return decode_line(_line(f'{{"type":"errored","error":{error_object}}}')).error


@rule("the usage of a result line is decoded")
def _(usage: str) -> Usage | None:
    message = f'{{"content":[],"usage":{usage}}}'
    found = decode_line(_success(message)).usage
    assert found == decode_message(message.encode()).usage
    return found


@rule("the message of a result line keeps its bytes,")
def _(message: str) -> DecodedMessage:
    raw = message_of_line(_success(message))
    assert raw == message.encode(), raw
    return decode_message(raw)
