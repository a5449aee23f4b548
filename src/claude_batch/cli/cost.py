"""`claude-batch cost`, and the line about costs at the end of a run. Neither needs a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from claude_batch.cli.faults import say, tell, tell_json
from claude_batch.cli.looking import require_ledger
from claude_batch.cli.options import option
from claude_batch.cli.terminal import cell
from claude_batch.core.durations import format_duration
from claude_batch.core.settings import default_ledger

if TYPE_CHECKING:
    from rich.table import Table

    from claude_batch.providers.costs import CostReport, CostShare

__all__ = ["cache_line", "cost_command", "cost_line", "dollars"]


@click.command("cost")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--by", type=click.Choice(["actor", "model", "day"]), help="One line for each.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@option("prices")
@option("ledger")
def cost_command(
    run_id: str | None,
    by: Literal["actor", "model", "day"] | None,
    as_json: bool,
    prices: str | None,
    ledger: str | None,
) -> None:
    """Show what a run has cost, or all that the ledger holds; needs no key.

    Every result that the API gave counts, those of requests that were sent again included. Answers
    whose price was not known are priced now, where --prices or a newer genai-prices knows it.
    """
    from claude_batch.ledger.store import Ledger
    from claude_batch.money.prices import prices_of
    from claude_batch.providers.costs import cost_of, price_unpriced
    from claude_batch.providers.status import find_run_id

    known = prices_of(prices)
    location = default_ledger(ledger)
    require_ledger(location)
    store = Ledger(location)
    try:
        if run_id is not None:
            run_id = find_run_id(store, run_id)
        if newly := price_unpriced(store, known, run_id):
            say(f"priced {newly:,} answers that had no price before")
        report = cost_of(store, run_id, by)
    finally:
        store.close()
    if as_json:
        tell_json(report.to_dict())
        return
    for line in _details(report):
        tell(line)
    if by is not None:
        from claude_batch.cli.display import console

        console().print(_table(report.shares, by))


def dollars(nano: int) -> str:
    """``$1.23``, or as many digits as a small sum needs; exact sums are in --json."""
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    digits = 2 if nano >= 10_000_000_000 else 4 if nano >= 10_000_000 else 6
    unit = 10 ** (9 - digits)
    whole, rest = divmod((nano + unit // 2) // unit, 10**digits)
    return f"{sign}${whole:,}.{rest:0{digits}d}"


def cost_line(report: CostReport) -> str:
    """What a run has cost, in one line."""
    total, words = report.total, [f"cost {_cost(report.total)}"]
    if total.live_cost:
        words.append(f"live {dollars(total.live_cost)}, {_saved(total)}")
    words.append(_tokens(total))
    if report.first_answer is not None and report.last_answer is not None:
        words.append(
            f"answers after {_duration(report.first_answer)} to {_duration(report.last_answer)}"
        )
    if report.total.reused_answers:
        words.append(f"{report.total.reused_answers:,} answers reused")
    if report.unpriced:
        words.append(_unpriced(report))
    return "; ".join(words)


def _cost(share: CostShare) -> str:
    if share.unpriced_answers and share.unpriced_answers == share.results["succeeded"]:
        return "unknown"
    return dollars(share.cost) + (" and what is unpriced" if share.unpriced_answers else "")


def _saved(share: CostShare) -> str:
    words = f"saved {dollars(share.saved_by_batch)} by batch"
    if share.saved_by_cache:
        words += f" and {dollars(share.saved_by_cache)} by cache"
    return words


def cache_line(share: CostShare) -> str | None:
    """What the prompt cache has done for a run; None where it was not used."""
    tokens = share.tokens
    written = tokens.cache_write_5m + tokens.cache_write_1h
    if not (tokens.cache_read or written):
        return None
    saved = share.saved_by_cache
    what = f"saved {dollars(saved)}" if saved >= 0 else f"cost {dollars(-saved)} more than none"
    return f"prompt cache: {tokens.cache_read:,} tokens read, {written:,} written; {what}"


def _tokens(share: CostShare) -> str:
    tokens = share.tokens
    written = tokens.cache_write_5m + tokens.cache_write_1h
    words = f"tokens: {tokens.input:,} in, {tokens.output:,} out"
    if tokens.cache_read or written:
        words += f", cache {tokens.cache_read:,} read and {written:,} written"
    if share.web_searches:
        words += f"; {share.web_searches:,} web searches"
    return words


def _unpriced(report: CostReport) -> str:
    models = ", ".join(
        f"{count:,} of {model or 'no model'}" for model, count in report.unpriced.items()
    )
    return f"answers without a price: {models} (name one with --prices)"


def _duration(seconds: float) -> str:
    return format_duration(max(1, round(seconds)))


def _details(report: CostReport) -> list[str]:
    total = report.total
    lines = [f"{report.run_id or 'all runs'}: cost {_cost(total)}"]
    if total.live_cost:
        lines.append(f"live, the same would have cost {dollars(total.live_cost)}")
        lines.append(_saved(total))
    lines.append(_tokens(total))
    tokens = total.tokens
    if tokens.cache_write_5m and tokens.cache_write_1h:
        lines.append(
            f"cache writes: {tokens.cache_write_5m:,} of 5 minutes, "
            f"{tokens.cache_write_1h:,} of 1 hour"
        )
    if report.requests:
        counts = ", ".join(f"{count:,} {state}" for state, count in report.requests.items())
        lines.append(f"requests: {counts}")
    told = ", ".join(f"{count:,} {name}" for name, count in total.results.items() if count)
    lines.append(f"results of all attempts: {told or 'none yet'}")
    if total.reused_answers:
        lines.append(f"answers reused at no cost: {total.reused_answers:,}")
    if report.first_answer is not None and report.last_answer is not None:
        lines.append(
            f"first answers after {_duration(report.first_answer)}, last after "
            f"{_duration(report.last_answer)}"
        )
    if report.unpriced:
        lines.append(_unpriced(report))
    return lines


def _table(shares: tuple[CostShare, ...], by: str) -> Table:
    from rich.table import Table

    table = Table()
    for column in (by, "answers", "others", "in", "out", "read", "written", "cost", "live"):
        table.add_column(column, justify="left" if column == by else "right", no_wrap=column == by)
    for share in shares:
        tokens, told = share.tokens, share.results
        table.add_row(
            cell(share.group or "-"),
            f"{told['succeeded']:,}",
            f"{sum(told.values()) - told['succeeded']:,}",
            f"{tokens.input:,}",
            f"{tokens.output:,}",
            f"{tokens.cache_read:,}",
            f"{tokens.cache_write_5m + tokens.cache_write_1h:,}",
            _cost(share),
            dollars(share.live_cost),
        )
    return table
