"""Steps about the forms that results are written in."""

from __future__ import annotations

import csv
from pathlib import Path

from behave import then
from behave.runner import Context
from sqlalchemy import select
from staging import ledger_values

from claude_batch.core.states import RequestState
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.schema import requests, results
from claude_batch.providers.export import chunks


@then('the rows of "{name}" have')
def _(context: Context, name: str) -> None:
    with open(name, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, strict=True))
    assert len(rows) == len(context.table.rows), rows
    for row, wanted in zip(rows, context.table, strict=True):
        assert wanted["says"] in row["text"], row
        for column in wanted.headings:
            if column != "says" and wanted[column] != "-":
                assert row[column] == wanted[column], (column, row)


@then('the folder "{name}" has the files {names}')
def _(context: Context, name: str, names: str) -> None:
    root = Path(name)
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert found == names.split(", "), found


@then('the raw lines of the folder "{name}" are the API\'s, byte for byte')
def _(context: Context, name: str) -> None:
    query = select(results.c.raw).join(requests, requests.c.seq == results.c.request_seq)
    kept = ledger_values(query.order_by(requests.c.position))
    assert (Path(name) / "raw" / "results.jsonl").read_bytes().splitlines() == kept


_CONTENT = (
    rb'[ {"type":"thinking","thinking":"h","signature":"s"},'
    rb' {"text":"a\u00e9\/\"\\\n","type":"text","citations":[]}, {"type":"text","text":"b"}]'
)
_USAGE = b'{"input_tokens":1.0, "new_field":{"x":1e3}}'


@then("output lines hold text, content, usage and context byte for byte, and costs in one form")
def _(context: Context) -> None:
    line = (
        b'{"custom_id":"c","result":{"type":"succeeded","message":{"id":"m","model":"haiku",'
        b'"stop_reason":"end_turn","content":%b,"usage":%b}}}'
        % (_CONTENT.replace(b"[ ", b"[\r"), _USAGE)
    )
    state = RequestState.SUCCEEDED
    plain = Answer(1, "run-1", 6, None, state, 2, 1, line, "msgbatch_1")
    priced = plain._replace(key="k", cost=1_000_145_000, via="live", reused=1, context=b'{"a": 1}')
    refused = priced._replace(state=RequestState.REFUSED, reused=None)
    same = (
        b'"text":"a\\u00e9\\/\\"\\\\\\nb","content":%b,"stop_reason":"end_turn","model":"haiku","usage":%b,'
        b'"batch_id":"msgbatch_1","attempt":2' % (_CONTENT, _USAGE)
    )
    written = b"".join(chunks([plain, priced, refused], "jsonl")).split(b"\n")
    assert written[0] == b'{"id":"7","ok":true,%b,"via":"batch"}' % same, written[0]
    more = b'"via":"live","cost_usd":1.000145000,"reused":true,"context":{"a": 1}}'
    assert written[1] == b'{"id":"k","ok":true,%b,%b' % (same, more), written[1]
    assert written[2].startswith(b'{"id":"k","ok":false,"error":{"type":"refus'), written[2]
    assert written[2].endswith(b'"cost_usd":1.000145000,"context":{"a": 1}}'), written[2]
    assert written[3:] == [b""], written
