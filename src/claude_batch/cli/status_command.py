"""`claude-batch status`, `results` and `export`: read the ledger. None of them needs a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from claude_batch.cli.completion import optional_run_argument, run_argument
from claude_batch.cli.existing_ledger import is_there, require_ledger
from claude_batch.cli.exits import EXIT_CODES, Exit
from claude_batch.cli.options import (
    ProviderOptions,
    folder_option,
    format_option,
    open_provider,
    option,
    output_option,
)
from claude_batch.cli.user_messages import (
    forget_stdout,
    print_json,
    print_line,
    require_stdout,
    say,
    unwritable,
)
from claude_batch.core.ledger_location import default_ledger, without_password
from claude_batch.core.quantities import count_of

if TYPE_CHECKING:
    from claude_batch.providers.export import Format
    from claude_batch.providers.run import Run


# Status command -----------------------------------------------------------------------------------


@click.command("status")
@optional_run_argument
@click.option(
    "--watch",
    is_flag=True,
    help="Show every change until the run ends, or until Ctrl-C; without RUN until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@option("ledger")
def status_command(run_id: str | None, watch: bool, as_json: bool, ledger: str | None) -> None:
    """Show a run, or the newest 50; needs no key.

    RUN is a run's id, or its first characters if no other run has them.
    """
    if watch and as_json:
        raise click.UsageError("--watch shows changes to people; leave out --json")
    require_stdout()
    location = default_ledger(ledger)
    if run_id is not None or watch:
        require_ledger(location)
    elif not is_there(location):
        if as_json:
            print_json([])
        else:
            print_line(f"there is no ledger at {without_password(location)} yet")
        return
    from claude_batch.cli.status_report import StatusReader, watch_status
    from claude_batch.ledger.store import Ledger

    store = Ledger(location)
    try:
        reader = StatusReader(store, run_id)
        if watch:
            watch_status(store, reader)
            return
        report = reader.read()
    finally:
        store.close()
    if as_json:
        print_json(report.to_dict())
    else:
        from claude_batch.cli.display import console

        try:
            console().print(report.draw())
        except BrokenPipeError:
            forget_stdout()  # the reader has seen enough
        except OSError as error:
            raise unwritable(error) from None


@click.command("results", epilog=EXIT_CODES)
@run_argument
@output_option
@format_option
@folder_option
@click.option(
    "--refetch",
    is_flag=True,
    help="First fetch missing and lost results again, free of charge; needs the key.",
)
@option("ledger")
@option("base_url")
@option("api_key_env")
def results_command(
    run_id: str,
    output: str | None,
    form: Format | None,
    results_dir: str | None,
    refetch: bool,
    ledger: str | None,
    base_url: str | None,
    api_key_env: str | None,
) -> None:
    """Write a run's results again; needs no key.

    If the run is not finished, the results so far are written, and the exit code is 3.
    """
    from claude_batch.cli.run_delivery import (
        check_folder,
        check_writable,
        deliver,
        parkable,
        write_partial,
    )
    from claude_batch.ledger.deliveries import Forms

    output = None if output == "-" else output
    options = ProviderOptions({"ledger": ledger, "base_url": base_url, "api_key_env": api_key_env})
    if output is not None or results_dir is None:
        check_writable(output, options.location)
    require_ledger(options.location)
    with parkable(), open_provider(options, drive=False) as provider:
        run = provider.open_run(run_id)
        check_folder(results_dir)  # it makes the folder, so only for a run that exists
        if refetch:
            _refetch(run)
        status = run.status()
        if not status.finished:
            if any(state.is_final for state in status.counts):
                write_partial(provider, run, output, form)
            say(f"{run.id} is not finished: {status.waiting_for}")
            raise SystemExit(Exit.PARKED)
        deliver(provider, run, output, Forms(form, results_dir))
        raise SystemExit(Exit.FAILED if status.failed else Exit.OK)


def _refetch(run: Run) -> None:
    fetched = run.fetch_missing()
    for batch_id, reason in fetched.refused.items():
        say(f"the results of batch {batch_id} cannot be fetched: {reason}")
    if fetched.found:
        found = count_of(fetched.found, "missing result")
        say(f"found {found} of {run.id}, at no further cost")
    if fetched.missing:
        left = count_of(fetched.missing, "result")
        say(
            f"still missing: {left} of {run.id}. To send these requests again, which may be paid "
            f"for twice: claude-batch retry {run.id} --only missing"
        )
    elif not fetched.found:
        say(f"{run.id} has no missing results that could be fetched again")


# Export -------------------------------------------------------------------------------------------


@click.command("export", epilog=EXIT_CODES)
@run_argument
@output_option
@format_option
@option("ledger")
def export_command(
    run_id: str, output: str | None, form: Format | None, ledger: str | None
) -> None:
    """Write the results of a run so far, also if it is unfinished; needs no key.

    Unlike `results`, this does not mark the run as delivered: its own output is still written
    later.
    """
    from claude_batch.cli.run_delivery import (
        check_writable,
        parkable,
        say_unfinished,
        write_partial,
    )

    output = None if output == "-" else output
    options = ProviderOptions({"ledger": ledger})
    check_writable(output, options.location)
    require_ledger(options.location)
    with parkable(), open_provider(options, drive=False) as provider:
        run = provider.open_run(run_id)
        status = run.status()
        write_partial(provider, run, output, form)
        if not status.finished:
            say_unfinished(run, status)
            raise SystemExit(Exit.PARKED)
        raise SystemExit(Exit.FAILED if status.failed else Exit.OK)
