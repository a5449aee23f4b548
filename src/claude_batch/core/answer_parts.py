"""Parts of an answer beside its text: token usage, as the API reports it, and citations."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
import msgspec.structs

# Usage --------------------------------------------------------------------------------------------

# Anthropic's pricing page (https://platform.claude.com/docs/en/about-claude/pricing), read on
# 2026-11-21, "Prompt caching": the price of a token relative to a plain input token. Costs use the
# model's own prices if a price source has them.
CACHE_WRITE_5M_FACTOR: Final = Decimal("1.25")
"""A cache write of five minutes costs this many times the input price."""
CACHE_WRITE_1H_FACTOR: Final = Decimal(2)
"""A cache write of one hour costs this many times the input price."""
CACHE_READ_FACTOR: Final = Decimal("0.1")
"""A cache read costs this many times the input price; less for some models, such as 0.05 for
``claude-opus-5-5`` and ``claude-sonnet-5-5``."""


def cache_hit_rate(*, plain: int, read: int, written: int) -> float:
    """Return the share of the prompts' tokens that were read from the prompt cache, from 0 to 1."""
    prompts = plain + read + written
    return read / prompts if prompts else 0.0


def effective_input_tokens(*, plain: int, read: int, written_5m: int, written_1h: int) -> int:
    """Return about how many plain input tokens cost as much as these prompts, rounded.

    The factors are those of most models. Reads of some models, such as ``claude-opus-5-5``, cost
    half of this or less. Costs are not computed from this number, but from the model's prices.

    Half the price in batches applies to all of them, and does not change the number.
    """
    return round(
        plain
        + read * CACHE_READ_FACTOR
        + written_5m * CACHE_WRITE_5M_FACTOR
        + written_1h * CACHE_WRITE_1H_FACTOR
    )


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one answer, under the API's own names."""

    input_tokens: int = 0
    """Tokens read at the full input price, without cached ones."""
    output_tokens: int = 0
    """Tokens written."""
    cache_creation_input_tokens: int = 0
    """Tokens written to the prompt cache, of both lifetimes."""
    cache_read_input_tokens: int = 0
    """Tokens read from the prompt cache."""
    cache_creation_5m_input_tokens: int = 0
    """The part of ``cache_creation_input_tokens`` with a lifetime of five minutes."""
    cache_creation_1h_input_tokens: int = 0
    """The part of ``cache_creation_input_tokens`` with a lifetime of one hour."""
    web_search_requests: int = 0
    """Searches by the API's web search tool, which have a separate fee."""
    service_tier: str | None = None
    """``batch`` for an answer at the batch price."""
    inference_geo: str | None = None
    """Where the model ran; ``us`` has a separate price. None if the API does not report it."""
    speed: str | None = None
    """``fast`` for a live answer requested at a higher speed and price."""
    is_missing: bool = False
    """Whether the answer lacks its input or its output tokens, so that its cost is unknown."""
    advisors: tuple[tuple[str, Usage], ...] = ()
    """Models that advised the one that answered (the advisor tool), and the tokens of each.

    They are billed at the advisor's prices, and no other field contains them."""
    compactions: tuple[Usage, ...] = ()
    """The tokens of each compaction, which the other fields contain, too.

    Each is a prompt of its own: its length decides its price if prices depend on the length."""

    @property
    def cache_hit_rate(self) -> float:
        """The share of the prompt's tokens that was read from the prompt cache, from 0 to 1."""
        return cache_hit_rate(
            plain=self.input_tokens,
            read=self.cache_read_input_tokens,
            written=self.cache_creation_input_tokens,
        )

    @property
    def effective_input_tokens(self) -> int:
        """About how many plain input tokens cost as much as this prompt, cache included.

        A cache read counts 0.1, a write of five minutes 1.25, one of an hour 2, as most models
        charge. Some charge less for a read, so the number is too high for them.
        """
        return effective_input_tokens(
            plain=self.input_tokens,
            read=self.cache_read_input_tokens,
            written_5m=self.cache_creation_input_tokens - self.cache_creation_1h_input_tokens,
            written_1h=self.cache_creation_1h_input_tokens,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; ``advisors`` only if there are any."""
        values = msgspec.structs.asdict(self)
        del values["is_missing"], values["compactions"]
        if advisors := values.pop("advisors"):
            values["advisors"] = [{"model": name, **used.to_dict()} for name, used in advisors]
        return values


# Citations ----------------------------------------------------------------------------------------

CitedPlace = Literal["characters", "pages", "blocks", "search_result", "web"]
"""The unit or kind of a citation's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A passage of a document that the model cites for a statement.

    Source: https://platform.claude.com/docs/en/build-with-claude/citations
    """

    text: str
    """The passage, verbatim from the document."""
    claim: str
    """The part of the answer that the passage supports."""
    kind: CitedPlace
    """``characters`` of a text, ``pages`` of a PDF, ``blocks`` of a document made of blocks, or of
    a ``search_result``; ``web`` for a page that the API's own search found.
    """
    document: int | None = None
    """Index of the document (or search result) in the request, from 0; None on the web."""
    title: str | None = None
    """The document's title, if it has one."""
    start: int | None = None
    """Start of the passage: characters and blocks from 0, pages from 1. None on the web."""
    end: int | None = None
    """End of the passage, exclusive: the first character, page or block after it."""
    file_id: str | None = None
    """The API's id of the document's file, if it was uploaded."""
    url: str | None = None
    """The address of a web page, or the source of a search result as the caller gave it."""

    @property
    def place(self) -> str:
        """Return text for people: ``page 3``, ``pages 3 to 4``, ``characters 0 to 50``, or a
        URL.
        """
        if self.start is None or self.end is None:
            return self.url or ""
        if self.kind == "characters":
            return f"characters {self.start} to {self.end}"
        word = "page" if self.kind == "pages" else "block"
        last = self.end - 1
        return f"{word} {self.start}" if last <= self.start else f"{word}s {self.start} to {last}"
