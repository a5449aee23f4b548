"""Steps of runs as data frames."""

from __future__ import annotations

import asyncio
import re
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import polars as pl
from behave import then
from behave.runner import Context
from tables import rule

import claude_batch as cb


@then("the run's data frame has the rows")
def _(context: Context) -> None:
    rows = cb.to_frame(context.run).rows(named=True)
    assert len(rows) == len(context.table.rows), rows
    for row, expected in zip(rows, context.table, strict=True):
        for name, words in expected.items():
            value = row[name]
            if words == "-":
                assert value is None, (row["id"], name, value)
                continue
            assert value is not None, (row["id"], name)
            text = str(value).lower() if isinstance(value, bool) else str(value)
            pattern = ".*".join(map(re.escape, words.split("…")))
            assert re.fullmatch(pattern, text, re.DOTALL), (row["id"], name, value)


@then("its costs, tokens, models, batches, messages and times are those of the run's results")
def _(context: Context) -> None:
    frame = cb.to_frame(context.run)
    assert frame["cost_usd"].sum() > 0
    assert frame.schema["asked"] == frame.schema["answered"] == pl.Datetime("us", "UTC")
    assert frame["asked"].null_count() == 0
    times = [time for time in frame["answered"] if time is not None]
    assert times and frame["asked"].max() <= min(times) <= max(times) <= datetime.now(UTC), frame
    results = list(cb.open_run(context.run.id, drive=False))
    for row, result in zip(frame.rows(named=True), results, strict=True):
        error: Any = result.error
        response: Any = result.response or getattr(error, "response", None)
        assert row["error_message"] == (None if error is None else str(error))
        assert row["position"] == result.position
        assert row["answered"] == result.answered
        if response is None:
            assert row["batch_id"] == error.batch_id
            assert row["cost_usd"] is row["model"] is row["input_tokens"] is row["via"] is None
            continue
        assert row["cost_usd"] == float(response.cost_usd)
        assert row["text"] == response.text
        assert row["turns"] == response.turns
        for name in ("model", "stop_reason", "batch_id", "attempt", "via"):
            assert row[name] == getattr(response, name), (name, row)
        for name in frame.columns:
            if name.endswith("_tokens"):
                assert row[name] == getattr(response.usage, name), (name, row)


@then("by its id, in an event loop, as pandas and with rows in its place it is the same")
def _(context: Context) -> None:
    frame = cb.to_frame(context.run)

    async def inside() -> pl.DataFrame:
        return cb.to_frame(context.run)

    assert asyncio.run(inside()).equals(frame)
    rows = list(context.run.rows())
    assert pl.DataFrame(rows, schema=frame.schema).equals(frame)
    assert list(rows[0]) == frame.columns
    named = cb.to_frame(context.run.id)
    # The parser of the answers is this process's own: another one reads the number as it is.
    assert named.drop("parsed").equals(frame.drop("parsed"))
    assert named["parsed"][0] == '{"number":"12","total":3}'
    converted = frame.to_pandas()
    assert converted["id"].tolist() == frame["id"].to_list()
    assert converted["cost_usd"].sum() == frame["cost_usd"].sum()


@then("its data frame takes less than a third of the Python memory of its rows")
def _(context: Context) -> None:
    held = _peak(lambda: list(context.run.rows()))
    framed = _peak(lambda: cb.to_frame(context.run))
    assert len(cb.to_frame(context.run)) == len(context.prompts)
    assert framed < held / 3, (framed, held)


def _peak(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@rule("data frames are refused")
def _(what: str) -> None:
    absent: dict[str, Any] = {"polars": None} if what == "without polars" else {}
    provider = cb.ClaudeBatchProvider(drive=False, api_key="sk-none")
    actor = cb.ActorConfiguration(name="a", model="claude-haiku-4-5")
    with provider, mock.patch.dict(sys.modules, absent):
        run: Any = "run-none"
        given: dict[str, Any] = {}
        if what == "run and ledger":
            run, given = provider.store(actor, ["one"]), {"ledger": "other.db"}
        cb.to_frame(run, **given)
