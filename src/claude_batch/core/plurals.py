"""Numbers of things in words: the one place that knows a plural."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["count_of", "tally"]


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """``1 request``, ``1,200 requests``; ``plural`` if an ``s`` does not make it."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def tally(counts: Mapping[str, int]) -> str:
    """``2 overloaded_error, 1 expired``: counts by a word that stays as it is."""
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())
