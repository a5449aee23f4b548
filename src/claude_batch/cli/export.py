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
    """Write the results of a run so far, also if it is unfinished; needs no key.

    Unlike `results`, this does not mark the run as delivered: its own output is still written
    later.
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
