"""`claude-batch ledger`: show, back up, move, recover and prune the ledger."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from claude_batch.cli.help_sections import SectionedCommand
from claude_batch.cli.options import (
    ProviderOptions,
    Written,
    complete_files,
    complete_runs,
    existing_ledger,
    open_provider,
    provider_options,
    reading_options,
    require_ledger,
    require_value,
    run_argument,
)
from claude_batch.cli.user_messages import (
    EXIT_CODES,
    BadOutput,
    CommandGroup,
    Exit,
    print_json,
    print_line,
    require_stdout,
    say,
)
from claude_batch.core.errors import BadInput, InvalidRequestError
from claude_batch.core.quantities import count_of, parse_duration, roughly
from claude_batch.core.settings import default_ledger, on_server

if TYPE_CHECKING:
    from claude_batch.lifecycle.recovery import Recovered


@click.group("ledger", cls=CommandGroup)
def ledger_group() -> None:
    """Show, back up, move, recover or prune the ledger."""


@ledger_group.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reading_options("ledger")
def show_command(as_json: bool, options: ProviderOptions) -> None:
    """Show what the ledger contains; needs no key.

    Also reports whether it is behind its high-water mark, so that it must be recovered.
    """
    from claude_batch.cli.status_report import worker_line
    from claude_batch.providers.ledger_care import facts_of

    require_stdout()
    require_ledger(options.location)
    facts = facts_of(options.location)
    if as_json:
        print_json(facts.to_dict())
        return
    values = facts.to_dict()
    for name, by_state in (("requests", facts.requests), ("batches", facts.batches)):
        counted = (f"{count:,} {state}" for state, count in by_state.items())
        values[name] = ", ".join(counted) or "none"
    values["waiting_to_be_recovered"] = ", ".join(facts.waiting_to_be_recovered) or "none"
    del values["workers"]
    for name, value in values.items():
        print_line(f"{name.replace('_', ' ')}: {value}")
    for worker in facts.workers:
        print_line(worker_line(worker))
    recover = options.command("ledger", "recover")
    if facts.high_water == "above":
        say(f"it is behind its high-water mark; recover it with: {recover}")
    elif facts.waiting_to_be_recovered:
        say(f"its recovery has not ended yet; continue it with: {recover}")


@ledger_group.command("backup", epilog=EXIT_CODES)
@click.argument(
    "file",
    required=False,
    metavar="[FILE]",
    callback=require_value,
    shell_complete=complete_files,
)
@reading_options("ledger")
def backup_command(file: str | None, options: ProviderOptions) -> None:
    """Copy the ledger to FILE; never overwrites a file.

    Other processes may write to the ledger meanwhile. Without FILE the copy is beside the ledger,
    with the time in its name. A restored copy sends nothing before `claude-batch ledger recover`.
    """
    if file == "-":
        raise click.UsageError("a backup is not written to standard output; name a file")
    with existing_ledger(options.location) as store:
        moment = time.strftime(".%Y%m%d-%H%M%S")
        # Nothing is beside a server's ledger: the folder is that of the user.
        is_remote = on_server(options.location)
        beside = f"ledger{moment}.dump" if is_remote else store.backend.address + moment
        target = Path(beside if file is None else file)
        try:
            store.backup(target)
        except FileExistsError:
            raise BadOutput(
                f"{target}: the file exists and is not overwritten; give another name"
            ) from None
        except OSError as error:
            raise BadOutput(f"{target}: cannot be written: {error.strerror}") from None
    print_line(str(target))


@ledger_group.command("copy", epilog=EXIT_CODES)
@click.argument("file", metavar="FILE", shell_complete=complete_files, callback=require_value)
@click.argument("url", metavar="[URL]", required=False)
def copy_command(file: str, url: str | None) -> None:
    """Move the ledger in FILE to PostgreSQL.

    First end all programs that use FILE. From then on only the ledger on the server is used: FILE
    stays as it is, but every command refuses it. Without URL, the ledger is moved to the URL in
    CLAUDE_BATCH_LEDGER; other users of the machine can read the arguments of a command. After an
    interruption, repeat the command.
    """
    from claude_batch.ledger.transfer import move_ledger

    require_ledger(file)
    moved = move_ledger(file, default_ledger(url))
    if moved.was_moved:
        say(f"{file} had been moved to {moved.location} already")
    else:
        count = count_of(moved.requests, "request")
        say(f"moved {file} with {count} to {moved.location}; from now on, use that one")
    if moved.unknown:
        those = count_of(moved.unknown, "batch is", "batches are")
        say(
            f"the outcome of {those} unknown; nothing is sent again before it is known. Any "
            "command that drives the new ledger finds it out"
        )
    if moved.lost_calls:
        say(
            f"{count_of(moved.lost_calls, 'live call')} ended with a process that died: they may "
            "have been paid for, and are not sent again automatically"
        )


@ledger_group.command("recover", cls=SectionedCommand, epilog=EXIT_CODES)
@click.option(
    "--force",
    is_flag=True,
    help="Send again although the outcome of some requests is unknown. They may be paid for twice.",
)
@click.option(
    "--even-if-whole",
    is_flag=True,
    help="Recover although the ledger has every sending that its mark counts, because the mark "
    "was restored too.",
)
@provider_options
def recover_command(force: bool, even_if_whole: bool, options: ProviderOptions) -> None:
    """Recover a restored or copied ledger.

    After that it can send again. Batches that the ledger has forgotten are searched for at the API,
    with your key, and their results are collected. Nothing is sent. Other processes must not use
    the ledger meanwhile.

    A ledger that has every sending that its high-water mark counts is left as it is.
    """
    from claude_batch.providers.ledger_care import recover_ledger

    require_ledger(options.location)
    with open_provider(options, drive=False) as provider:
        found = recover_ledger(provider, force=force, even_if_whole=even_if_whole)
        raise SystemExit(_print(found, options, begun_again=even_if_whole))


def _age(text: str) -> float:
    seconds = parse_duration(text)
    # `30` probably means days, and the runs that 30 seconds would remove are lost.
    if seconds and text.strip()[-1].isdigit():
        raise ValueError(f"{text} has no unit; write {text}d for days or {text}s for seconds")
    return seconds


@ledger_group.command("prune", cls=SectionedCommand, epilog=EXIT_CODES)
@click.argument(
    "runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_runs, callback=require_value
)
@click.option(
    "--older-than",
    type=Written("duration", _age),
    default="30d",
    show_default=True,
    help="Without RUN: remove runs that were delivered at least this long ago.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@provider_options
def prune_command(
    runs: tuple[str, ...], older_than: float, dry_run: bool, options: ProviderOptions
) -> None:
    """Remove finished and delivered runs.

    Files that were uploaded for these runs alone are deleted at the API. Runs that are unfinished,
    not delivered or unknown are kept. A removed run is forgotten: the same requests make a new run,
    which is billed, and its costs disappear from the reports.
    """
    source = click.get_current_context().get_parameter_source("older_than")
    if runs and source is not ParameterSource.DEFAULT:
        raise click.UsageError(
            f"--older-than chooses runs by their age, and {', '.join(runs)} is named; leave out "
            "one of them"
        )
    require_ledger(options.location)
    with open_provider(options, drive=False) as provider:
        try:
            pruned = provider.prune(older_than=older_than, runs=runs, dry_run=dry_run)
        except InvalidRequestError as error:
            raise BadInput(str(error)) from None
    for run_id, why in pruned.kept.items():
        say(f"{run_id} was kept: {why}")
    if pruned.unpriced:
        say(
            f"{count_of(pruned.unpriced, 'answer')} of unknown cost: a budget that is set later "
            "counts the most that each can have cost. If a model has no price, `claude-batch cost "
            "RUN --prices FILE` prices the answers of a run before it is removed"
        )
    if dry_run:
        for run_id in pruned.runs:
            print_line(run_id)
        say(f"{count_of(len(pruned.runs), 'run')} would be removed; nothing was removed")
        return
    size = f"{pruned.size / 1_000_000:,.1f} MB of prompts and answers"
    removed = count_of(len(pruned.runs), "run")
    say(f"removed {removed} with {count_of(pruned.requests, 'request')}, {size}")
    if pruned.files:
        say(f"deleted {count_of(pruned.files, 'uploaded file')} at the API")
    if pruned.files_left:
        say(
            f"{count_of(pruned.files_left, 'uploaded file is', 'uploaded files are')} still at the "
            f"API, although no run uses them ({pruned.reason}). Repeat the command with the key of "
            "their workspace to delete them"
        )
        raise SystemExit(Exit.PARKED)


@ledger_group.command("confirm-key", cls=SectionedCommand, epilog=EXIT_CODES)
@run_argument
@provider_options
def confirm_key_command(run_id: str, options: ProviderOptions) -> None:
    """Confirm that a new key belongs to the workspace of RUN.

    This is only needed if the API does not report the workspace of a key. Be sure: with a key of
    another workspace the batches of RUN are not found, and their requests are sent again.
    """
    from claude_batch.providers.ledger_care import confirm_key

    require_ledger(options.location)
    with open_provider(options, drive=False) as provider:
        found, changed = confirm_key(provider, run_id)
    if changed:
        say(
            f"the key was accepted for the workspace of {found}. Continue with: "
            f"{options.command('resume', found)}"
        )
    else:
        say(f"the key already belongs to the workspace of {found}; nothing was changed")


def _print(found: Recovered, options: ProviderOptions, *, begun_again: bool) -> Exit:
    again = options.command("ledger", "recover")
    if found.was_whole:
        say(
            "the ledger has every sending that its high-water mark counts: there is nothing to "
            "recover. If it was restored together with its mark, or used after it was restored "
            f"without one: {options.command('ledger', 'recover', '--even-if-whole')}"
        )
        return Exit.OK
    for batch_id, count in found.adopted.items():
        say(f"batch {batch_id} was adopted, with {count_of(count, 'request')} of this ledger")
    for batch_id, count in found.strangers.items():
        those, what = count_of(count, "request"), "it" if count == 1 else "them"
        say(
            f"batch {batch_id} has the answers to {those} that this ledger does not have; submit "
            f"{what} again, which is paid for again"
        )
    for batch_id, why in found.open.items():
        say(f"batch {batch_id} cannot be recovered: {why}")
    if found.unlisted:
        say(f"batches may be missing: {found.unlisted}")
    if found.wait:
        say(
            "the last batch may have been sent so recently that the API does not list it yet; wait "
            f"{roughly(max(1, found.wait))}"
        )
    if not found.done:
        without = ", without --even-if-whole, which begins the wait again" if begun_again else ""
        say(f"nothing is sent until every batch is known; then repeat{without}: {again}")
        return Exit.PARKED
    resume = options.command("resume")
    say(f"the ledger is recovered and may send again. Continue with: {resume}")
    if found.lost:
        say(
            f"{count_of(found.lost, 'request')} may have been sent live since the copy was made. "
            "The API keeps no list of live calls, so they are lost. Send them again with: "
            f"{options.command('unknown', 'RUN', '--resubmit')}"
        )
    if found.elsewhere:
        say(
            "the workspaces of other keys still have to be recovered, at "
            f"{', '.join(found.elsewhere)}"
        )
    return Exit.OK
