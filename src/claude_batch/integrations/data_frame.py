"""Runs as polars data frames: the extra ``frame``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.providers.batch import open_run
from claude_batch.providers.run import Run

if TYPE_CHECKING:
    import polars as pl

CHUNK_ROWS = 2_000
"""Rows that are Python objects at once."""

CHUNK_CHARACTERS = 16_000_000
"""Characters of answers, about, that are Python objects at once."""


@overload
def to_frame(run: Run) -> pl.DataFrame: ...
@overload
def to_frame(run: str, *, ledger: str | os.PathLike[str] | None = None) -> pl.DataFrame: ...
def to_frame(run: Run | str, *, ledger: str | os.PathLike[str] | None = None) -> pl.DataFrame:
    """Return a run as a polars data frame, one row for each request, in input order.

    Reads the ledger and waits for nothing, so it works with and without a running event loop. A
    request without an outcome has nulls. The columns are those of `Run.rows`; ``.to_pandas()``
    converts the frame.

    ``run``: a `Run`, or the id of one. ``ledger``: the ledger of a run that is named by its id; by
    default the one that `open_run` opens. Raises `RunNotFoundError`, `LedgerError`, and
    `ActorConfigurationError` if polars is not installed or ``ledger`` is given with a `Run`.
    """
    schema = _schema()
    if isinstance(run, Run):
        if ledger is not None:
            raise ActorConfigurationError("ledger: a Run has its ledger; leave this keyword out")
        return _frame(run.rows(), schema)
    with open_run(run, ledger=ledger, drive=False) as opened:
        return _frame(opened.rows(), schema)


def _schema() -> dict[str, Any]:
    """Return the columns and their types; the same for every run."""
    # Not at the module's level: `from claude_batch import *` must not need the extra.
    try:
        import polars as pl
    except ImportError as error:
        raise ActorConfigurationError(
            f"a data frame needs an extra: pip install 'claude-batch[frame]' ({error})"
        ) from None
    time = pl.Datetime("us", "UTC")
    return {
        "id": pl.String,
        "position": pl.Int64,
        "state": pl.String,
        "ok": pl.Boolean,
        "text": pl.String,
        "parsed": pl.String,
        "stop_reason": pl.String,
        "model": pl.String,
        "input_tokens": pl.Int64,
        "output_tokens": pl.Int64,
        "cache_read_input_tokens": pl.Int64,
        "cache_creation_input_tokens": pl.Int64,
        "cost_usd": pl.Float64,
        "error_type": pl.String,
        "error_message": pl.String,
        "batch_id": pl.String,
        "attempt": pl.Int64,
        "turns": pl.Int64,
        "via": pl.String,
        "reused": pl.Boolean,
        "asked": time,
        "answered": time,
        "context": pl.String,
    }


def _frame(rows: Iterable[dict[str, Any]], schema: dict[str, Any]) -> pl.DataFrame:
    """Return one frame, made of some rows at a time: they take less of it than as dictionaries."""
    import polars as pl

    frames: list[pl.DataFrame] = []
    columns: dict[str, list[Any]] = {name: [] for name in schema}
    count = size = 0
    for row in rows:
        for name, column in columns.items():
            column.append(row[name])
        count += 1
        size += len(row["text"] or "") + len(row["parsed"] or "")
        if count >= CHUNK_ROWS or size >= CHUNK_CHARACTERS:
            frames.append(pl.DataFrame(columns, schema=schema))
            columns = {name: [] for name in schema}
            count = size = 0
    return pl.concat([*frames, pl.DataFrame(columns, schema=schema)])
