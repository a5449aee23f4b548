"""`claude-batch estimate`: the cost of a run before anything is stored or sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from claude_batch.cli.exits import EXIT_CODES
from claude_batch.cli.input_options import Asked, input_options
from claude_batch.cli.options import ProviderOptions, provider_options, run_options
from claude_batch.cli.user_messages import BadInput, confirmed, print_json, print_line
from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.quantities import count_of, dollars

if TYPE_CHECKING:
    from claude_batch.money import Estimate


@click.command("estimate", epilog=EXIT_CODES)
@input_options
@click.option(
    "--offline", is_flag=True, help="Do not ask the API to count the tokens of a few requests."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@run_options
@provider_options
def estimate_command(asked: Asked, offline: bool, as_json: bool, options: ProviderOptions) -> None:
    """Estimate what `run` with the same ACTOR and INPUT would cost; nothing is stored or sent.

    The API counts the input tokens of a few requests, free of charge. Without a key, or with
    --offline, they are estimated from earlier answers of the model, else from their size. Output
    tokens are always estimated so. Savings by --reuse and --dedupe are not included.
    """
    from claude_batch.actor.request import RequestEncoders
    from claude_batch.core.batch_processing import resolve_mode
    from claude_batch.money import prices_of
    from claude_batch.providers.entrance import find_credentials
    from claude_batch.providers.estimation import Estimation

    actor, inputs = asked.actor_and_inputs()
    given = options.settings
    estimation = Estimation(
        RequestEncoders({}).of(actor),
        resolve_mode(actor.batch_processing or True, given),
        prices_of(given["prices"]),
        actor=actor.name,
        ledger=options.location,
        credentials=lambda: find_credentials(given["base_url"], None, given["api_key_env"]),
    )
    for request in inputs:
        try:
            estimation.add(request)
        except InvalidRequestError as error:
            inputs.refuse(error)
    if estimation.is_empty:
        raise BadInput(inputs.nothing())
    found = estimation.result(offline=offline)
    if as_json:
        print_json(found.to_dict())
        return
    for line in _details(found):
        print_line(line)


_COUNTED = {
    "counted": "estimated from the API's count of a few",
    "seen": "estimated from earlier answers",
    "rule": "estimated from their size",
}


def estimate_line(found: Estimate, *, is_sampled: bool) -> str:
    """Return an estimate in one line; ``is_sampled``: of a run of which only some was read."""
    if len(found.unpriced) and not found.cost:
        return "estimate: unknown, " + _unpriced(found)
    live = "live" if found.way == "live" else f"live {dollars(found.live_cost)}"
    words = (
        f"estimate: about {dollars(found.cost)}, {_most(found, is_sampled)}; {live}; "
        f"tokens: {found.input_tokens:,} in ({_COUNTED[found.counted]}), "
        f"{found.output_expected:,} out"
    )
    return f"{words}; {_unpriced(found)}" if found.unpriced else words


def _most(found: Estimate, is_sampled: bool) -> str:
    if found.unbounded:
        return "at most an unknown amount"
    about = "about " if is_sampled else ""
    most = f"at most {about}{dollars(found.cost_most)}"
    return most if found.turns == 1 else f"{most} a turn, in up to {found.turns} turns"


def _unpriced(found: Estimate) -> str:
    models = ", ".join(f"{count:,} of {model}" for model, count in found.unpriced.items())
    return f"requests without a price: {models} (name one with --prices)"


def _details(found: Estimate) -> list[str]:
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
    if found.unbounded:
        lines.append(
            f"{count_of(found.unbounded, 'request has', 'requests have')} no known upper bound, "
            "so the most that the run costs does not include them"
        )
    if found.turns > 1:
        lines.append(
            f"all of this is for first turns; a request may take up to {found.turns} (tools, "
            "validation_attempts), and each costs as much again, or more"
        )
    if found.unpriced:
        lines.append(_unpriced(found))
    return lines


def confirm(found: Estimate, above: Any) -> None:
    """Ask for confirmation of an expensive run; raise `BadInput` if nobody confirms, or can."""
    import sys

    from claude_batch.core.quantities import nano_dollars, write_usd

    limit = nano_dollars(above)
    most_of_all = found.cost_most * found.turns
    if most_of_all <= limit and not found.unpriced and not found.unbounded:
        return
    most = "an unknown amount" if found.unpriced or found.unbounded else dollars(most_of_all)
    if found.turns > 1:
        most += f" in up to {found.turns} turns"
    words = f"this can cost {most}, more than --confirm-above {write_usd(limit)}"
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(
            f"{words}, and there is no terminal to confirm it on. Raise "
            "--confirm-above, or set --budget"
        )
    if not confirmed(f"{words}. Send it?"):
        raise BadInput(f"{words}, and was not confirmed")
