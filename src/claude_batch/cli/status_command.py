"""`claude-batch status`, `results` and `export`: read the ledger. None of them needs a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from claude_batch.cli.exits import EXIT_CODES, Exit
from claude_batch.cli.options import (
    ProviderOptions,
    folder_option,
    format_option,
    open_provider,
    option,
)
from claude_batch.cli.user_messages import (
    forget_stdout,
    print_json,
    print_line,
    require_stdout,
    say,
    unwritable,
)
from claude_batch.core.errors import RunNotFoundError
from claude_batch.core.ledger_location import default_ledger, has_ledger, without_password
from claude_batch.core.quantities import count_of

if TYPE_CHECKING:
    from claude_batch.providers.cost_report import CostReport
    from claude_batch.providers.export import Format
    from claude_batch.providers.progress import Progress
    from claude_batch.providers.run import Run
    from claude_batch.providers.status import RunStatus


# Status command -----------------------------------------------------------------------------------


def require_ledger(location: str) -> None:
    """Raise `RunNotFoundError` if there is no ledger; reading must not create one."""
    if not has_ledger(location):
        raise RunNotFoundError(
            f"there is no ledger at {without_password(location)} yet; `claude-batch run` creates it"
        )


@click.command("status")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@option("ledger")
def status_command(run_id: str | None, as_json: bool, ledger: str | None) -> None:
    """Show a run, or the newest 50; needs no key.

    RUN is a run's id, or its first characters if no other run has them.
    """
    require_stdout()
    location = default_ledger(ledger)
    if run_id is not None:
        require_ledger(location)
    found = _statuses(location, run_id)
    cost = None if run_id is None else _cost(location, found[0].run_id)
    if as_json:
        values = [status.to_dict() for status in found]
        if cost is not None:
            values[0]["cost"] = cost.to_dict()
            values[0]["progress"] = _progress(location, found[0]).to_dict()
        print_json(values if run_id is None else values[0])
    else:
        progress = None if run_id is None else _progress(location, found[0])
        _show(found, cost, progress)


def _progress(location: str, status: RunStatus) -> Progress:
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.progress import ProgressReader

    ledger = Ledger(location)
    try:
        return ProgressReader(ledger, status.run_id).read(status)
    finally:
        ledger.close()


def _cost(location: str, run_id: str) -> CostReport:
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.cost_report import cost_of

    ledger = Ledger(location)
    try:
        return cost_of(ledger, run_id)
    finally:
        ledger.close()


def _statuses(location: str, run_id: str | None) -> list[RunStatus]:
    if not has_ledger(location):
        return []
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.status import all_statuses, status_of

    ledger = Ledger(location)
    try:
        return all_statuses(ledger) if run_id is None else [status_of(ledger, run_id)]
    finally:
        ledger.close()


def _show(found: list[RunStatus], cost: CostReport | None, progress: Progress | None) -> None:
    """Show one run, with its cost and progress, or all of them."""
    from claude_batch.cli.display import (
        cache_line,
        console,
        progress_lines,
        runs_table,
    )
    from claude_batch.providers.progress import run_details

    if not found:
        print_line("no runs yet")
        return
    line = None if cost is None else cache_line(cost.total)
    try:
        if cost is None or progress is None:
            console().print(runs_table(found))
        else:
            more = [*progress_lines(progress), *([] if line is None else [line])]
            console().print(run_details(found[0], more=more))
    except BrokenPipeError:
        forget_stdout()  # the reader has seen enough
    except OSError as error:
        raise unwritable(error) from None


@click.command("results", epilog=EXIT_CODES)
@click.argument("run_id", metavar="RUN")
@click.option("-o", "--output", metavar="OUT", help="A file; by default standard output.")
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
    if output is not None or results_dir is None:
        check_writable(output)
    check_folder(results_dir)
    options = ProviderOptions({"ledger": ledger, "base_url": base_url, "api_key_env": api_key_env})
    require_ledger(options.location)
    with parkable(), open_provider(options, drive=False) as provider:
        run = provider.open_run(run_id)
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
    from claude_batch.cli.run_delivery import (
        check_writable,
        parkable,
        say_unfinished,
        write_partial,
    )

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
