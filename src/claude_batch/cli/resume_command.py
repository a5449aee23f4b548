"""`claude-batch cancel`, `resume` and `advance`: work on earlier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from claude_batch.cli.exits import EXIT_CODES, Exit
from claude_batch.cli.options import ProviderOptions, open_provider, provider_options
from claude_batch.cli.status_command import has_ledger, require_ledger
from claude_batch.cli.user_messages import BadOutput, say
from claude_batch.core.errors import ActorConfigurationError

if TYPE_CHECKING:
    from claude_batch.providers.batch import ClaudeBatchProvider


@click.command("cancel", epilog=EXIT_CODES)
@click.argument("run_id", metavar="RUN")
@provider_options
def cancel_command(run_id: str, options: ProviderOptions) -> None:
    """Withdraw unsent requests, and cancel the batches that contain only requests of this run."""
    from claude_batch.cli.run_delivery import parkable

    require_ledger(options.location)
    with parkable(), open_provider(options, drive=False) as provider:
        run = provider.open_run(run_id)
        if run.status().finished:
            say(f"{run.id} is finished; there is nothing to cancel")
            return
        run.cancel_sync()
        if not run.status().finished:
            code = _tell_the_api(provider, run.id)
            if code is not Exit.OK:
                raise SystemExit(code)
        status = run.status()
        say(f"{run.id} is cancelled; the results so far are kept")
        if not status.finished:
            say(f"its batches end soon. Wait for them with: {options.command('resume', run.id)}")


def _tell_the_api(provider: ClaudeBatchProvider, run_id: str) -> Exit:
    """Ask the API to cancel; if another process drives the ledger, leave it to that process."""
    kept = f"{run_id} is marked as cancelled, but the cancel request has not reached the API yet"
    try:
        drove = provider.advance_sync()
    except ActorConfigurationError as error:
        say(f"{kept}: {error}")
        return Exit.USAGE
    if drove and not provider.contact.made:
        why = provider.contact.last_failure or "sending is halted; see claude-batch status"
        say(f"{kept}: {why}. Send it with: claude-batch resume {run_id}")
        return Exit.PARKED
    return Exit.OK


@click.command("resume", epilog=EXIT_CODES)
@click.argument("run_id", metavar="[RUN]", required=False)
@provider_options
def resume_command(run_id: str | None, options: ProviderOptions) -> None:
    """Continue a run, or all unfinished runs, and write the output of each.

    The output is written to the file that the run was started with, else to standard output.
    """
    from claude_batch.cli.run_delivery import parkable, wait_and_deliver

    require_ledger(options.location)
    with parkable(), open_provider(options) as provider:
        found = (
            provider.outstanding() if run_id is None else [provider.open_run(run_id).outstanding()]
        )
        if not found:
            say("there is no unfinished run")
            return
        if any(not left.finished for left in found):
            provider.resume()
        code = Exit.OK
        for left in found:
            if not left.finished and left.base_url != (here := provider.address.rstrip("/")):
                say(
                    f"{left.id} was sent to {left.base_url}, but this command uses {here}. "
                    f"Continue with: claude-batch resume {left.id} --base-url {left.base_url}"
                )
                code = max(code, Exit.PARKED)
                continue
            run = provider.open_run(left.id)
            write = left.kind == "run"
            try:
                ended = wait_and_deliver(provider, run, left.output, options, write=write)
            except BadOutput as error:
                say(f"error: {error}")
                ended = Exit.USAGE
            code = max(code, ended)
            if provider.closed:  # it was parked: no other run is waited for either
                break
    raise SystemExit(code)


@click.command("advance", epilog=EXIT_CODES)
@provider_options
def advance_command(options: ProviderOptions) -> None:
    """Make one pass over everything that is due, then exit; for cron.

    The output of each run that is then complete is written to the file that it was started with.
    If nothing is due, or there is no ledger yet, the command reports it and exits with 0.
    """
    from claude_batch.cli.run_delivery import deliver, parkable
    from claude_batch.core.states import RunState

    if not has_ledger(options.location):
        say(f"there is no ledger at {options.location} yet: nothing is due")
        return
    code = Exit.OK
    with parkable(), open_provider(options, drive=False) as provider:
        drove = provider.advance_sync()
        found = provider.outstanding()
        if not drove:
            say("another process drives this ledger; it sends batches and collects results")
        elif not provider.contact.made and provider.contact.failures:
            say(f"{provider.address} cannot be reached: {provider.contact.last_failure}")
            code = Exit.PARKED
        elif not found:
            say("nothing is due")
        for left in found:
            run = provider.open_run(left.id)
            status = run.status()
            if status.halt is not None:
                say(f"{status.run_id}: {status.waiting_for}")
                code = max(code, Exit.HALTED)
            elif status.state is RunState.HELD:
                say(f"{status.run_id}: {status.waiting_for}")
                code = max(code, Exit.PARKED)
            elif (missing := provider.missing_tools(left.id)) is not None:
                say(
                    f"{status.run_id}: its conversations wait for tools that this process does "
                    f"not have: {missing}"
                )
                code = max(code, Exit.PARKED)
            elif status.finished:
                try:
                    deliver(provider, run, status.output)
                except BadOutput as error:
                    say(f"error: {error}")
                    code = max(code, Exit.USAGE)
                if status.failed:
                    code = max(code, Exit.FAILED)
    raise SystemExit(code)
