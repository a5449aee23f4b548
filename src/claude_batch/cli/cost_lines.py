"""Format costs for the commands that print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claude_batch.core.dollars import decimal_usd
from claude_batch.core.durations import format_duration
from claude_batch.core.plurals import count_of

if TYPE_CHECKING:
    from claude_batch.providers.cost_report import CostReport, CostShare


def dollars(nano: int) -> str:
    """Return ``$1.23``, or as many digits as a small sum needs; exact sums are in --json."""
    sum_ = abs(nano)
    places = 2 if sum_ >= 10_000_000_000 else 4 if sum_ >= 10_000_000 else 6
    return f"{'-' if nano < 0 else ''}${decimal_usd(sum_, places, separator=',')}"


def cost_line(report: CostReport) -> str:
    """Return a run's cost in one line."""
    total, words = report.total, [f"cost {cost_words(report.total)}"]
    if total.live_cost:
        words.append(f"live {dollars(total.live_cost)}, {saved_words(total)}")
    words.append(token_words(total))
    if report.first_answer is not None and report.last_answer is not None:
        words.append(
            f"answers after {duration(report.first_answer)} to {duration(report.last_answer)}"
        )
    if report.total.reused_answers:
        words.append(f"{count_of(report.total.reused_answers, 'answer')} reused")
    if report.unpriced:
        words.append(unpriced_words(report))
    return "; ".join(words)


def cost_words(share: CostShare) -> str:
    if share.unpriced_answers and share.unpriced_answers == share.results["succeeded"]:
        return "unknown"
    return dollars(share.cost) + (" plus unpriced answers" if share.unpriced_answers else "")


def saved_words(share: CostShare) -> str:
    words = f"saved {dollars(share.saved_by_batch)} by batch"
    if share.saved_by_cache:
        words += f" and {dollars(share.saved_by_cache)} by cache"
    return words


def cache_line(share: CostShare) -> str | None:
    """Return the prompt cache's savings for a run, or None if it was not used."""
    tokens = share.tokens
    written = tokens.cache_write_5m + tokens.cache_write_1h
    if not (tokens.cache_read or written):
        return None
    saved = share.saved_by_cache
    what = (
        f"saved {dollars(saved)}" if saved >= 0 else f"cost {dollars(-saved)} more than without it"
    )
    return f"prompt cache: {tokens.cache_read:,} tokens read, {written:,} written; {what}"


def token_words(share: CostShare) -> str:
    tokens = share.tokens
    written = tokens.cache_write_5m + tokens.cache_write_1h
    words = f"tokens: {tokens.input:,} in, {tokens.output:,} out"
    if tokens.cache_read or written:
        words += f", cache {tokens.cache_read:,} read and {written:,} written"
    if share.web_searches:
        words += f"; {count_of(share.web_searches, 'web search', 'web searches')}"
    return words


def unpriced_words(report: CostReport) -> str:
    models = ", ".join(
        f"{count:,} of {model or 'no model'}" for model, count in report.unpriced.items()
    )
    return f"answers without a price: {models} (name one with --prices)"


def duration(seconds: float) -> str:
    return format_duration(max(1, round(seconds)))
