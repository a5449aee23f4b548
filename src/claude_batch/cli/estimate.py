"""`claude-batch estimate`: the cost of a run before anything is stored or sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from claude_batch.cli.cost_lines import dollars
from claude_batch.cli.exits import EXIT_CODES
from claude_batch.cli.options import ProviderOptions, provider_options, run_options
from claude_batch.cli.request_options import Asked, input_options
from claude_batch.cli.user_messages import BadInput, say, tell, tell_json
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError

if TYPE_CHECKING:
    from claude_batch.money.estimates import Estimate, Rule
    from claude_batch.providers.estimation import Estimator


@click.command("estimate", epilog=EXIT_CODES)
@input_options
@click.option("--offline", is_flag=True, help="Do not have the API count a few of the requests.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@run_options
@provider_options
def estimate_command(asked: Asked, offline: bool, as_json: bool, options: ProviderOptions) -> None:
    """Tell what `run` with the same ACTOR and INPUT would cost; nothing is stored or sent.

    Tokens in are counted by the API on a few of the requests, which is free; without a key, or with
    --offline, by what the ledger has seen of the model, else by a rule. So are tokens out. What
    --reuse and --dedupe would spare is not foreseen.
    """
    from claude_batch.actor.request import RequestEncoders
    from claude_batch.core.settings import resolve_mode
    from claude_batch.money.prices import prices_of
    from claude_batch.providers.estimation import Estimator
    from claude_batch.wire.caching import CacheMarks

    actor, inputs = asked.actor_and_inputs()
    mode = resolve_mode(actor.batch_processing or True, options.settings)
    estimator = Estimator(prices_of(options.settings["prices"]), mode, CacheMarks.of(mode))
    encoder = RequestEncoders({}).of(actor)
    for request in inputs:
        try:
            own = None if request.documents else request.prompt
            estimator.add(encoder.encode(request), prompt=own)
        except InvalidRequestError as error:
            inputs.refuse(error)
    if not estimator.loads:
        raise BadInput(inputs.nothing())
    found = estimator.estimate(_rules(estimator, actor.name, options, offline=offline))
    if as_json:
        tell_json(found.to_dict())
        return
    for line in _details(found):
        tell(line)


def _rules(
    estimator: Estimator, actor: str, options: ProviderOptions, *, offline: bool
) -> dict[str, Rule]:
    from claude_batch.cli.status_command import has_ledger
    from claude_batch.ledger.store import Ledger
    from claude_batch.money.estimates import UNKNOWN
    from claude_batch.providers.entrance import find_credentials
    from claude_batch.providers.estimation import count_tokens, rules_seen
    from claude_batch.wire.batches_client import ApiError, BatchesClient, Unreachable
    from claude_batch.wire.connection import CredentialFault

    rules: dict[str, Rule] = {}
    if has_ledger(options.location):
        store = Ledger(options.location)
        try:
            rules = rules_seen(store, actor, estimator.loads)
        finally:
            store.close()
    if offline:
        return rules

    def client() -> BatchesClient:
        given = options.settings
        found = find_credentials(given["base_url"], None, given["api_key_env"])
        base_url, api_key = found.get("base_url"), found.get("api_key")
        made = BatchesClient(base_url=base_url, api_key=api_key, attempts=2)
        if not made.credential:
            raise ActorConfigurationError("there is no API key")
        return made

    try:
        counted = count_tokens(client, estimator.sample)
    except (ApiError, Unreachable, CredentialFault, ActorConfigurationError) as error:
        say(f"tokens are not counted by the API ({error}), but by a rule")
        return rules
    for model, ratio in counted.items():
        known = rules.get(model, UNKNOWN)
        rules[model] = known._replace(tokens_per_byte=ratio, source="counted")
    return rules


_COUNTED = {
    "counted": "by the API's count of a few",
    "seen": "by what the ledger has seen",
    "rule": "by a rule",
}


def estimate_line(found: Estimate) -> str:
    """Return an estimate in one line."""
    if len(found.unpriced) and not found.cost:
        return "estimate: unknown, " + _unpriced(found)
    live = "live" if found.way == "live" else f"live {dollars(found.live_cost)}"
    words = (
        f"estimate: about {dollars(found.cost)}, at most {dollars(found.cost_most)}; {live}; "
        f"tokens: {found.input_tokens:,} in ({_COUNTED[found.counted]}), "
        f"{found.output_expected:,} out"
    )
    return f"{words}; {_unpriced(found)}" if found.unpriced else words


def _unpriced(found: Estimate) -> str:
    models = ", ".join(f"{count:,} of {model}" for model, count in found.unpriced.items())
    return f"requests without a price: {models} (name one with --prices)"


def _details(found: Estimate) -> list[str]:
    low, expected, most = map(dollars, (found.cost_low, found.cost, found.cost_most))
    saved, live = dollars(found.saved_by_batch), dollars(found.live_cost)
    outputs = (found.output_low, found.output_expected, found.output_most)
    way, compared = "in batches", f"live, the same would cost {live}: batches save {saved}"
    most_is = ", which a budget reserves"
    if found.way == "live":
        way, compared = "live", "all is asked live, at full price"
    elif found.way == "either":
        most_is = " where all of it has to be asked live"
    lines = [
        f"{found.requests:,} requests, {found.size:,} bytes, {found.batches:,} batches at least",
        f"tokens in: about {found.input_tokens:,} ({_COUNTED[found.counted]})",
        "tokens out: {:,} low, {:,} expected, {:,} at most (max_tokens)".format(*outputs),
        f"cost {way}: {low} low, {expected} expected, {most} at most{most_is}",
        compared,
    ]
    if found.saved_by_cache:
        lines.append(
            f"the prompt cache may save up to {dollars(found.saved_by_cache)} of it; hits in "
            "batches are not sure"
        )
    if found.unbounded:
        lines.append(
            f"{found.unbounded:,} requests have no known bound, and are in no sum of what it costs "
            "at most"
        )
    if found.unpriced:
        lines.append(_unpriced(found))
    return lines


def confirm(found: Estimate, above: Any) -> None:
    """Ask for confirmation of an expensive run; raise `BadInput` if nobody confirms, or can."""
    import sys

    from claude_batch.core.dollars import nano_dollars, write_usd

    limit = nano_dollars(above)
    if found.cost_most <= limit and not found.unpriced and not found.unbounded:
        return
    most = "an unknown sum" if found.unpriced or found.unbounded else dollars(found.cost_most)
    words = f"it can cost {most}, more than the {write_usd(limit)} of --confirm-above"
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(f"{words}, and nobody can be asked. Raise it, or set a --budget")
    if not click.confirm(f"{words}. Send it?", err=True):
        raise BadInput(f"{words}; it was not confirmed")
