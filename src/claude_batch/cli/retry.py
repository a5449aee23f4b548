"""`claude-batch retry`: retry the failed requests of a run."""

from __future__ import annotations

import click

from claude_batch.cli.exits import EXIT_CODES, Exit
from claude_batch.cli.options import ProviderOptions, open_provider, provider_options
from claude_batch.cli.status_command import require_ledger
from claude_batch.cli.user_messages import say
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.plurals import count_of
from claude_batch.core.states import RequestState


@click.command("retry", epilog=EXIT_CODES)
@click.argument("run_id", metavar="RUN")
@click.option(
    "--only",
    multiple=True,
    metavar="expired|errored|canceled|malformed|missing|type=TYPE",
    help="Retry only requests with this outcome or type of error; repeatable.",
)
@provider_options
def retry_command(run_id: str, only: tuple[str, ...], options: ProviderOptions) -> None:
    """Send the failed requests of a run again, wait, and write its whole output again.

    Requests that succeeded are not sent again, and keep their place. Requests that were cancelled
    with their run are sent only with `--only canceled`. Requests without a result may have been
    paid for: `--only missing` first fetches the results again, free of charge. It sends only what
    is still missing, which may then be paid for twice.
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
                f"{left.id} was sent to {left.base_url}, but this command uses {here}. Nothing "
                f"was changed. Repeat it with --base-url {left.base_url}"
            )
            raise SystemExit(Exit.USAGE)
        try:
            retried = run.retry(only or None)
        except InvalidRequestError as error:
            say(f"error: {error}")
            raise SystemExit(Exit.USAGE) from None
        for batch_id, reason in retried.refused.items():
            say(
                f"the results of batch {batch_id} cannot be fetched ({reason}), so its requests "
                "are not sent again. To send them without a look at the results: claude-batch "
                f"unknown {left.id} --resubmit"
            )
        if retried.found:
            say(f"found {count_of(retried.found, 'missing result')}, at no further cost")
        if retried.missing:
            still = count_of(retried.missing, "request still has", "requests still have")
            say(f"{still} no result; sent again, and may be paid for twice")
        if retried.answered:
            say(f"found answers for {count_of(retried.answered, 'request')}")
        if retried.cancelled:
            say(
                f"{count_of(retried.cancelled, 'request was', 'requests were')} cancelled with the "
                "run and not sent again; --only canceled sends them"
            )
        if not (retried.queued or retried.answered or retried.found):
            say(f"{left.id} has no other request to retry; nothing was changed")
            status = run.status()
            if lost := status.counts.get(RequestState.LOST):
                have = count_of(lost, "request has", "requests have")
                say(
                    f"{have} no result and may have been paid for; --only missing fetches the "
                    "results again first"
                )
            failed = status.failed
            raise SystemExit(Exit.FAILED if failed else Exit.OK)
        if retried.queued:
            again = count_of(retried.queued, "request is", "requests are")
            say(f"{left.id}: {again} sent again")
        provider.resume()
        raise SystemExit(wait_and_deliver(provider, run, left.output, options))
