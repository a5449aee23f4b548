"""`claude-batch cost` and `budget`, which need no key."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Literal

import click

from claude_batch.cli.options import (
    ProviderOptions,
    Written,
    existing_ledger,
    optional_run_argument,
    reading_options,
    require_ledger,
    require_value,
)
from claude_batch.cli.user_messages import print_drawn, print_json, print_line, require_stdout, say
from claude_batch.core.quantities import count_of, dollars, nano_dollars, roughly, write_usd
from claude_batch.core.terminal import ColumnKind, Rows

if TYPE_CHECKING:
    from claude_batch.core.errors import BudgetScope
    from claude_batch.ledger.budgets import Budget
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.cost_report import CostReport, CostShare


# Words about costs --------------------------------------------------------------------------------


def cost_line(report: CostReport) -> str:
    """Return a run's cost in one line."""
    total, words = report.total, [f"cost {_cost_words(report.total)}"]
    if total.live_cost:
        words.append(f"live {dollars(total.live_cost)}, {_saved_words(total)}")
    words.append(_token_words(total))
    if report.first_answer is not None and report.last_answer is not None:
        first, last = _duration(report.first_answer), _duration(report.last_answer)
        words.append(f"answers after {first}" + (f" to {last}" if last != first else ""))
    if report.total.reused_answers:
        words.append(f"{count_of(report.total.reused_answers, 'answer')} reused")
    words += _unpriced_words(report)
    return "; ".join(words)


def _cost_words(share: CostShare) -> str:
    if share.unpriced_answers and share.unpriced_answers == share.results["succeeded"]:
        return "unknown"
    return dollars(share.cost) + (" plus unpriced answers" if share.unpriced_answers else "")


def _saved_words(share: CostShare) -> str:
    words = f"saved {dollars(share.saved_by_batch)} by batch"
    if share.saved_by_cache:
        words += f" and {dollars(share.saved_by_cache)} by cache"
    return words


def _token_words(share: CostShare) -> str:
    tokens = share.tokens
    words = f"tokens: {tokens.input:,} in, {tokens.output:,} out"
    if tokens.cache_read or tokens.cache_write:
        words += f", cache {tokens.cache_read:,} read and {tokens.cache_write:,} written"
    if share.web_searches:
        words += f"; {count_of(share.web_searches, 'web search', 'web searches')}"
    return words


def _unpriced_words(report: CostReport) -> list[str]:
    """Return why answers have no cost, as a line for each reason."""
    words: list[str] = []
    if report.unpriced:
        models = ", ".join(
            f"{count:,} of {model or 'no model'}" for model, count in report.unpriced.items()
        )
        words.append(f"answers without a price: {models} (name one with --prices)")
    if report.unreadable_usage:
        answers = count_of(report.unreadable_usage, "answer")
        words.append(f"{answers} of unknown cost, because the usage cannot be read")
    return words


def _duration(seconds: float) -> str:
    return roughly(max(1, seconds))


# Cost ---------------------------------------------------------------------------------------------


@click.command("cost")
@optional_run_argument
@click.option(
    "--by", type=click.Choice(["actor", "model", "day"]), help="Add a table with one row for each."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reading_options("prices", "ledger")
def cost_command(
    run_id: str | None,
    by: Literal["actor", "model", "day"] | None,
    as_json: bool,
    options: ProviderOptions,
) -> None:
    """Show the cost of a run, or of the whole ledger; needs no key.

    Every billed result counts, also if its request was sent again. Answers without a price are
    priced now if --prices or a newer genai-prices has one.
    """
    from claude_batch.money.prices import prices_of
    from claude_batch.providers.cost_report import cost_of, price_unpriced
    from claude_batch.providers.status import find_run_id

    require_stdout()
    known = prices_of(options.settings["prices"])
    with existing_ledger(options.location) as store:
        if run_id is not None:
            run_id = find_run_id(store, run_id)
        if newly := price_unpriced(store, known, run_id):
            answers = count_of(newly, "answer")
            say(f"priced {answers} that had no price before")
        report = cost_of(store, run_id, by)
    if as_json:
        print_json(report.to_dict())
        return
    for line in _details(report):
        print_line(line)
    if by is not None:
        print_drawn(_table(report.shares, by))


def _details(report: CostReport) -> list[str]:
    total = report.total
    lines = [f"{report.run_id or 'all runs'}: cost {_cost_words(total)}"]
    if total.live_cost:
        lines.append(f"the same live: {dollars(total.live_cost)}")
        lines.append(_saved_words(total))
    lines.append(_token_words(total))
    tokens = total.tokens
    if tokens.cache_write_5m and tokens.cache_write_1h:
        lines.append(
            f"cache writes: {tokens.cache_write_5m:,} for 5 minutes, {tokens.cache_write_1h:,} "
            "for 1 hour"
        )
    if total.effective_input_tokens != tokens.input:
        lines.append(
            f"cache hit rate: {total.cache_hit_rate * 100:.1f} %; the prompts cost about as much "
            f"as {total.effective_input_tokens:,} plain input tokens"
        )
    if report.requests:
        counts = ", ".join(f"{count:,} {state}" for state, count in report.requests.items())
        lines.append(f"requests: {counts}")
    results = ", ".join(f"{count:,} {name}" for name, count in total.results.items() if count)
    lines.append(f"results of all attempts: {results or 'none yet'}")
    if total.reused_answers:
        lines.append(f"answers reused at no cost: {total.reused_answers:,}")
    if report.first_answer is not None and report.last_answer is not None:
        lines.append(
            f"first answers after {_duration(report.first_answer)}, last after "
            f"{_duration(report.last_answer)}"
        )
    return lines + _unpriced_words(report)


def _table(shares: tuple[CostShare, ...], by: str) -> Rows:
    """Return a table with a row for each share; columns of tokens that are all 0 are left out."""
    tokens = {
        "in": [share.tokens.input for share in shares],
        "out": [share.tokens.output for share in shares],
        "read": [share.tokens.cache_read for share in shares],
        "written": [share.tokens.cache_write for share in shares],
    }
    used = {name: counts for name, counts in tokens.items() if any(counts)}
    names: tuple[tuple[str, ColumnKind], ...] = (
        (by, "text"), ("answers", "number"), ("others", "number"),
        *((name, "number") for name in used), ("cost", "number"), ("live", "number"),
    )  # fmt: skip
    rows = [
        (
            share.group or "-",
            f"{share.results['succeeded']:,}",
            f"{sum(share.results.values()) - share.results['succeeded']:,}",
            *(f"{counts[place]:,}" for counts in used.values()),
            _cost_words(share),
            dollars(share.live_cost),
        )
        for place, share in enumerate(shares)
    ]
    return Rows(names, rows)


# Budget -------------------------------------------------------------------------------------------


_SUM = Written("usd", lambda value: -1 if value == "none" else nano_dollars(value))
"""Dollars as nano-dollars, or ``none`` as -1."""


@click.command("budget")
@optional_run_argument
@click.argument("amount", metavar="[USD]", type=_SUM, required=False)
@click.option(
    "--actor",
    nargs=2,
    type=(str, _SUM),
    metavar="NAME USD",
    callback=require_value,
    help="The budget of all runs of an actor.",
)
@click.option(
    "--daily",
    type=_SUM,
    metavar="USD",
    help="The budget of each day (UTC), for the whole ledger.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reading_options("prices", "ledger")
def budget_command(
    run_id: str | None,
    amount: int | None,
    actor: tuple[str, int] | None,
    daily: int | None,
    as_json: bool,
    options: ProviderOptions,
) -> None:
    """Set what a run may cost, or show all budgets; needs no key.

    USD is the whole budget in dollars, including what was spent before; `none` removes it. Held
    requests that now fit are sent by the process that drives the ledger (`claude-batch resume`).
    """
    from claude_batch.ledger.store import Ledger
    from claude_batch.money.prices import prices_of
    from claude_batch.providers.cost_report import budget_dict, read_budgets, set_budget
    from claude_batch.providers.status import find_run_id

    for flag, given in (("--actor", actor), ("--daily", daily)):
        if given is not None and run_id is not None and amount is None:
            raise click.UsageError(
                f"{flag} sets another budget than that of RUN. Leave out {run_id}, or give its "
                "budget in dollars too"
            )
    if run_id is not None and amount is None and _is_sum(run_id):
        raise click.UsageError(
            f"{run_id} is an amount, and RUN is missing. Set a budget with RUN and USD, "
            "--actor NAME USD, or --daily USD"
        )
    if as_json or (amount is None and daily is None):
        require_stdout()
    if run_id is not None or daily is None:
        require_ledger(options.location)
    with closing(Ledger(options.location)) as store:
        asked: list[tuple[BudgetScope, str, int | None]] = []
        if run_id is not None:
            asked.append(("run", find_run_id(store, run_id), amount))
        if actor is not None:
            asked.append(("actor", *actor))
        if daily is not None:
            asked.append(("day", "", daily))
        known = prices_of(options.settings["prices"])
        for scope, name, sum_ in asked:
            if sum_ is not None:
                limit = set_budget(store, scope, name, None if sum_ < 0 else sum_, known)
                say(f"{_name_of(scope, name, 'each day')}: {limit}")
                if scope == "actor" and sum_ >= 0:
                    _warn_if_unknown(store, name)
        found = read_budgets(store, [(scope, name) for scope, name, _ in asked])
    if as_json:
        print_json([budget_dict(each) for each in found])
        return
    for each in found:
        print_line(_line(each))
    if not found:
        print_line("no such budget" if asked else "no budget")


def _is_sum(text: str) -> bool:
    try:
        nano_dollars(text)
    except ValueError:
        return text == "none"
    return True


_NAMED = 5
"""How many of the known actors the warning about an unknown one names."""


def _warn_if_unknown(store: Ledger, actor: str) -> None:
    """Warn about the budget of an actor without a run, because its name may be mistyped."""
    import difflib

    from claude_batch.ledger.queries import actors

    with store.read() as tx:
        known = actors(tx)
    if actor in known:
        return
    if close := difflib.get_close_matches(actor, known, n=1):
        hint = f"Did you mean {close[0]}?"
    elif known:
        more = ", …" if len(known) > _NAMED else ""
        hint = f"It has runs of {', '.join(known[:_NAMED])}{more}"
    else:
        hint = "It has no runs yet"
    say(
        f"warning: this ledger has no run of the actor {actor}; the budget counts from its first "
        f"one. {hint}"
    )


def _name_of(scope: BudgetScope, name: str, day: str) -> str:
    return {"run": name, "actor": f"actor {name}", "day": day}[scope]


def _line(each: Budget) -> str:
    words = (
        f"{_name_of(each.scope, each.name, 'today (UTC)')}: budget {write_usd(each.amount)}, "
        f"spent {dollars(each.spent)}, reserved {dollars(each.reserved)}"
    )
    if each.doubt:
        words += f", in doubt {dollars(each.doubt)}"
    return f"{words}, left {dollars(each.left)}"
