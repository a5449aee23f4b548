"""`claude-batch cost` and `budget`, which need no key; costs and estimates in words."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

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
from claude_batch.cli.user_messages import (
    confirmed,
    print_drawn,
    print_json,
    print_line,
    require_stdout,
    say,
)
from claude_batch.core.errors import BadInput
from claude_batch.core.quantities import count_of, dollars, nano_dollars, roughly, write_usd
from claude_batch.core.terminal import ColumnKind, Rows

if TYPE_CHECKING:
    from claude_batch.core.errors import BudgetScope
    from claude_batch.ledger.budgets import Budget
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.cost_report import CostReport, CostShare
    from claude_batch.providers.estimation import Estimate


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
        words.append(_unpriced("answers", report.unpriced))
    if report.unreadable_usage:
        answers = count_of(report.unreadable_usage, "answer")
        words.append(f"{answers} of unknown cost, because the usage cannot be read")
    return words


def _duration(seconds: float) -> str:
    return roughly(max(1, seconds))


# Words about estimates ----------------------------------------------------------------------------

_COUNTED = {
    "counted": "estimated from the API's count of a few",
    "seen": "estimated from earlier answers",
    "rule": "estimated from their size",
}


def estimate_line(found: Estimate, count: int, *, is_sampled: bool) -> str:
    """Return an estimate in one line; ``is_sampled``: of a run of which only some was read.

    ``count``: requests of the run, of which an earlier command may have sent others.
    """
    part = ""
    if found.requests < count:
        verb = "is" if found.requests == 1 else "are"
        part = f" for the {found.requests:,} of {count:,} requests that {verb} still to be sent"
    if len(found.unpriced) and not found.cost:
        return f"estimate{part}: unknown, {_unpriced('requests', found.unpriced)}"
    live = "live" if found.way == "live" else f"live {dollars(found.live_cost)}"
    words = (
        f"estimate{part}: about {dollars(found.cost)}, {_most(found, is_sampled)}; {live}; "
        f"tokens: {found.input_tokens:,} in ({_COUNTED[found.counted]}), "
        f"{found.output_expected:,} out"
    )
    if found.search_fees:
        words += f"; {_searches(found)}"
    return f"{words}; {_unpriced('requests', found.unpriced)}" if found.unpriced else words


def _most(found: Estimate, is_sampled: bool) -> str:
    if found.unbounded:
        return "at most an unknown amount"
    about = "about " if is_sampled else ""
    most = f"at most {about}{dollars(found.cost_most)}"
    if found.turns == 1:
        return most
    return f"{most} for first turns, {about}{_most_of_all(found)}"


def _most_of_all(found: Estimate) -> str:
    return f"{dollars(found.cost_most_turns)} for up to {found.turns} (without what tools return)"


def _searches(found: Estimate) -> str:
    fees = dollars(found.search_fees)
    return f"the expected cost does not include web searches, which may cost up to {fees} a turn"


def _unpriced(what: str, counts: Mapping[str, int]) -> str:
    models = ", ".join(f"{count:,} of {model or 'no model'}" for model, count in counts.items())
    return f"{what} without a price: {models} (name one with --prices)"


def estimate_details(found: Estimate) -> list[str]:
    """Return an estimate in full, a line for each of its parts."""
    low, expected, most = map(dollars, (found.cost_low, found.cost, found.cost_most))
    saved, live = dollars(found.saved_by_batch), dollars(found.live_cost)
    outputs = (found.output_low, found.output_expected, found.output_most)
    way, compared = "in batches", f"the same live: {live}; batches save {saved}"
    most_is = ", the sum that a budget reserves"
    if found.way == "live":
        way, compared = "live", "all requests are sent live, at full price"
    elif found.way == "either":
        most_is = " if all requests have to be sent live"
    requests = count_of(found.requests, "request")
    batches = count_of(found.batches, "batch", "batches")
    lines = [
        f"{requests}, {count_of(found.size, 'byte')}, at least {batches}",
        f"tokens in: about {found.input_tokens:,} ({_COUNTED[found.counted]})",
        "tokens out: {:,} low, {:,} expected, {:,} at most (max_tokens)".format(*outputs),
        f"cost {way}: {low} low, {expected} expected, {most} at most{most_is}",
        compared,
    ]
    if found.saved_by_cache:
        lines.append(
            f"the prompt cache may save up to {dollars(found.saved_by_cache)} of it; cache hits "
            "in batches are not certain"
        )
    if found.search_fees:
        lines.append(_searches(found))
    if found.unbounded:
        lines.append(
            f"{count_of(found.unbounded, 'request has', 'requests have')} no known upper bound, "
            "so the most that the run costs does not include them"
        )
    if found.turns > 1:
        lines.append(
            "all of this is for first turns; a request may take more (tools, validation_attempts): "
            f"at most {_most_of_all(found)}"
        )
    if found.unpriced:
        lines.append(_unpriced("requests", found.unpriced))
    return lines


def confirm(found: Estimate, above: Any) -> None:
    """Ask for confirmation of an expensive run. Raises `BadInput` without a yes or a terminal."""
    limit = nano_dollars(above)
    if found.cost_most_turns <= limit and not found.unpriced and not found.unbounded:
        return
    most = dollars(found.cost_most_turns)
    if found.turns > 1:
        most += f" in up to {found.turns} turns"
    if found.unpriced or found.unbounded:
        most = "an unknown amount"
    words = f"this can cost {most}, more than --confirm-above {write_usd(limit)}"
    if not confirmed(words, "Send it?", _what_helps(found)):
        raise BadInput(f"{words}, and was not confirmed")


def _what_helps(found: Estimate) -> str:
    """Return the remedy for an expensive run if there is no terminal to ask on."""
    if not found.unpriced and not found.unbounded:
        return "Raise --confirm-above, or leave it out and set --budget"
    # No amount is enough, and a budget refuses these requests.
    ways: list[str] = []
    if found.unpriced:
        ways.append(f"name the price of {', '.join(found.unpriced)} with --prices")
    if found.unbounded > sum(found.unpriced.values()):
        ways.append("give all tools a limit (`max_uses`) or leave out those that take none")
    return f"To bound it, {' and '.join(ways)}; or leave out --confirm-above"


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
