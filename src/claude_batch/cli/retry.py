"""`claude-batch retry`: retry the failed requests of a run."""

from __future__ import annotations

import click

from claude_batch.cli.exits import EXIT_CODES, Exit
from claude_batch.cli.options import ProviderOptions, open_provider, provider_options
from claude_batch.cli.status_command import require_ledger
from claude_batch.cli.user_messages import say
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.states import RequestState


@click.command("retry", epilog=EXIT_CODES)
@click.argument("run_id", metavar="RUN")
@click.option(
    "--only",
    multiple=True,
    metavar="expired|errored|canceled|malformed|missing|type=TYPE",
    help="Only what ended so, or with this type of error. May be given more than once.",
)
@provider_options
def retry_command(run_id: str, only: tuple[str, ...], options: ProviderOptions) -> None:
    """Ask the failed requests of a run once more, wait, and write its whole output again.

    What succeeded is not asked again, and keeps its place. Requests of a cancelled run that did
    not run are asked only with `--only canceled`. Requests without a result may have been paid
    for: `--only missing` first fetches the results again, free of charge, and sends again only
    what is missing still, which may then be paid for twice.
    """
    from claude_batch.cli.run_delivery import parkable, wait_and_deliver
    from claude_batch.providers.retry_failed import parse_only

    try:
        parse_only(only)
    except ActorConfigurationError as error:
        raise click.UsageError(f"--{error}") from None
    require_ledger(options.location)
    with parkable(), open_provider(options) as provider:
        run = provider.open_run(run_id)
        left = run.outstanding()
        here = provider.address.rstrip("/")
        if left.base_url != here:
            say(
                f"{left.id} was asked at {left.base_url}, and this command talks to {here}; "
                f"name its server with --base-url {left.base_url}. Nothing was changed"
            )
            raise SystemExit(Exit.USAGE)
        try:
            retried = run.retry(only or None)
        except InvalidRequestError as error:
            say(f"error: {error}")
            raise SystemExit(Exit.USAGE) from None
        for batch_id, reason in retried.refused.items():
            say(
                f"the results of batch {batch_id} cannot be fetched ({reason}), so nothing of it "
                f"is sent again; `claude-batch unknown {left.id} --resubmit` sends it unseen"
            )
        if retried.found:
            were = "result was" if retried.found == 1 else "results were"
            say(f"{retried.found:,} missing {were} there now, at no further cost")
        if retried.missing:
            one = retried.missing == 1
            have, are = ("request has", "it is") if one else ("requests have", "they are")
            say(
                f"{retried.missing:,} {have} no result still; {are} sent again, and may be paid "
                "for twice"
            )
        if retried.answered:
            say(f"{retried.answered:,} requests had been answered after all")
        if retried.cancelled:
            say(
                f"{retried.cancelled:,} requests were cancelled with the run and are left so; "
                "--only canceled asks them"
            )
        if not (retried.queued or retried.answered or retried.found):
            say(f"{left.id} has nothing else that failed so; nothing was changed")
            status = run.status()
            if lost := status.counts.get(RequestState.LOST):
                have = "request has" if lost == 1 else "requests have"
                say(
                    f"{lost:,} {have} no result and may have been paid for; --only missing fetches "
                    "the results again first"
                )
            failed = status.failed
            raise SystemExit(Exit.FAILED if failed else Exit.OK)
        if retried.queued:
            say(f"{left.id}: {retried.queued:,} requests are asked again")
        provider.resume()
        raise SystemExit(wait_and_deliver(provider, run, left.output, options))
