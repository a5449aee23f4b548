"""`claude-batch export`: write a run's results so far, to any file and in any format."""

from __future__ import annotations

import click

from claude_batch.cli.exits import EXIT_CODES, Exit
from claude_batch.cli.options import (
    Format,
    ProviderOptions,
    format_option,
    open_provider,
    option,
)
from claude_batch.cli.status_command import require_ledger


@click.command("export", epilog=EXIT_CODES)
@click.argument("run_id", metavar="RUN")
@click.option("-o", "--output", metavar="OUT", help="A file; by default standard output.")
@format_option
@option("ledger")
def export_command(
    run_id: str, output: str | None, form: Format | None, ledger: str | None
) -> None:
    """Write the results that a run has by now, also of an unfinished one; needs no key.

    Unlike `results` it leaves the run as it is: where its own output waits to be written, it does
    so still.
    """
    from claude_batch.cli.outputs import check_writable
    from claude_batch.cli.run_delivery import parkable, say_unfinished, write_partial

    output = None if output == "-" else output
    check_writable(output)
    options = ProviderOptions({"ledger": ledger})
    require_ledger(options.location)
    with parkable(), open_provider(options, drive=False) as provider:
        run = provider.open_run(run_id)
        status = run.status()
        write_partial(provider, run, output, form)
        if not status.finished:
            say_unfinished(run, status)
            raise SystemExit(Exit.PARKED)
        raise SystemExit(Exit.FAILED if status.failed else Exit.OK)
