"""Counted nouns: the one place that forms plurals."""

from __future__ import annotations

from collections.abc import Mapping


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 request`` or ``1,200 requests``; ``plural`` is for nouns without a simple
    ``s``.
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def tally(counts: Mapping[str, int]) -> str:
    """Return ``2 overloaded_error, 1 expired``: counts by a word that has no plural."""
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())
