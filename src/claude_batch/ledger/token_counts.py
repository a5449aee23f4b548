"""Token counts returned by the API, and the tokens per byte of params that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, func, insert, select

from claude_batch.ledger.schema import token_counts

_NEWEST = 200
"""Number of recent counts that an estimate uses, because prompts change over the years."""


class TokenCount(NamedTuple):
    """The API's token count of one request."""

    model: str
    size: int
    """Bytes of the counted params."""
    tokens: int


def add_token_counts(tx: Connection, counts: Sequence[TokenCount], now: float) -> None:
    """Store at least one token count; ``now`` is seconds since the epoch."""
    tx.execute(insert(token_counts), [{**each._asdict(), "counted": now} for each in counts])


def tokens_per_byte(tx: Connection, model: str) -> float | None:
    """Return a model's input tokens per byte of params by its newest counts; None without any."""
    newest = (
        select(token_counts.c.size, token_counts.c.tokens)
        .where(token_counts.c.model == model)
        .order_by(token_counts.c.id.desc())
        .limit(_NEWEST)
        .subquery()
    )
    size, tokens = tx.execute(select(func.sum(newest.c.size), func.sum(newest.c.tokens))).one()
    return float(tokens) / float(size) if size else None
