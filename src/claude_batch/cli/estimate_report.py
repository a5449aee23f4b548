"""An estimate in words, and the confirmation of an expensive run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claude_batch.cli.user_messages import confirmed
from claude_batch.core.errors import BadInput
from claude_batch.core.quantities import count_of, dollars, nano_dollars, write_usd

if TYPE_CHECKING:
    from claude_batch.providers.estimation import Estimate

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
        return f"estimate{part}: unknown, {_unpriced(found)}"
    live = "live" if found.way == "live" else f"live {dollars(found.live_cost)}"
    words = (
        f"estimate{part}: about {dollars(found.cost)}, {_most(found, is_sampled)}; {live}; "
        f"tokens: {found.input_tokens:,} in ({_COUNTED[found.counted]}), "
        f"{found.output_expected:,} out"
    )
    if found.search_fees:
        words += f"; {_searches(found)}"
    return f"{words}; {_unpriced(found)}" if found.unpriced else words


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


def _unpriced(found: Estimate) -> str:
    models = ", ".join(f"{count:,} of {model}" for model, count in found.unpriced.items())
    return f"requests without a price: {models} (name one with --prices)"


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
        lines.append(_unpriced(found))
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
