"""The sandbox's model with longer answers, for requests of middle size."""

from __future__ import annotations

from typing import Any

_SENTENCE = "The team for damaged parcels answers within a day and names order {order}. "
_BYTES = 1000


def kilobyte(params: dict[str, Any]) -> str:
    """Return an answer of 1 kB that begins with the prompt's ticket."""
    ticket = str(params["messages"][0]["content"])[:14]
    sentence = _SENTENCE.format(order=ticket)
    return (sentence * (_BYTES // len(sentence) + 1))[:_BYTES]
