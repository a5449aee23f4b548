"""`claude-batch ledger`: show, back up, recover and prune the ledger."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from claude_batch.cli.exits import EXIT_CODES, Exit
from claude_batch.cli.options import (
    DURATION,
    ProviderOptions,
    open_provider,
    option,
    provider_options,
)
from claude_batch.cli.status_command import require_ledger
from claude_batch.cli.user_messages import BadInput, BadOutput, say, tell, tell_json
from claude_batch.core.durations import format_duration
from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.settings import default_ledger

if TYPE_CHECKING:
    from claude_batch.lifecycle.recovery import Recovered


@click.group("ledger")
def ledger_group() -> None:
    """Look after the ledger: show, backup, recover, confirm-key, prune."""


@ledger_group.command("show")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@option("ledger")
def show_command(as_json: bool, ledger: str | None) -> None:
    """What the ledger holds, and how it stands to its high-water mark; needs no key."""
    from claude_batch.providers.ledger_care import facts_of

    location = default_ledger(ledger)
    require_ledger(location)
    facts = facts_of(location)
    if as_json:
        tell_json(facts.to_dict())
        return
    values = facts.to_dict()
    for name, by_state in (("requests", facts.requests), ("batches", facts.batches)):
        counted = (f"{count:,} {state}" for state, count in by_state.items())
        values[name] = ", ".join(counted) or "none"
    values["waiting_to_be_recovered"] = ", ".join(facts.waiting_to_be_recovered) or "none"
    for name, value in values.items():
        tell(f"{name.replace('_', ' ')}: {value}")
    if facts.high_water == "above" or facts.waiting_to_be_recovered:
        say("it is behind its high-water mark: `claude-batch ledger recover`")


@ledger_group.command("backup", epilog=EXIT_CODES)
@click.argument("file", required=False, metavar="[FILE]")
@option("ledger")
def backup_command(file: str | None, ledger: str | None) -> None:
    """Copy the ledger to FILE, while others go on writing to it; never overwrites.

    Without FILE it lies beside the ledger, with the time in its name. Before a restored copy sends
    anything it must be recovered: `claude-batch ledger recover`.
    """
    from claude_batch.ledger.store import Ledger

    location = default_ledger(ledger)
    require_ledger(location)
    opened = Ledger(location)
    try:
        target = Path(file) if file is not None else opened.sibling(time.strftime(".%Y%m%d-%H%M%S"))
        try:
            opened.backup(target)
        except FileExistsError:
            raise BadOutput(f"{target}: exists, and is not overwritten; name another") from None
        except OSError as error:
            raise BadOutput(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        opened.close()
    tell(str(target))


@ledger_group.command("recover", epilog=EXIT_CODES)
@click.option(
    "--force",
    is_flag=True,
    help="Send again although something could not be judged: it may be paid for twice.",
)
@provider_options
def recover_command(force: bool, options: ProviderOptions) -> None:
    """Make a ledger that was restored, or copied, fit to send again.

    What was sent from it and is forgotten is looked for at the API, with your key, and its answers
    are collected. Nothing is sent. Other processes that use the ledger must have ended.
    """
    from claude_batch.providers.ledger_care import recover_ledger

    require_ledger(options.location)
    with open_provider(options, drive=False) as provider:
        raise SystemExit(_tell(recover_ledger(provider, force=force)))


@ledger_group.command("prune", epilog=EXIT_CODES)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "--older-than",
    type=DURATION,
    default="30d",
    show_default=True,
    help="How long ago a run must have been delivered, where no RUN is named.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@provider_options
def prune_command(
    runs: tuple[str, ...], older_than: float, dry_run: bool, options: ProviderOptions
) -> None:
    """Remove finished and delivered runs, and the files that were uploaded for them alone.

    What is unfinished, not delivered or unknown stays. What is removed is forgotten: asked again,
    it is a new run, which is paid for. Its costs leave the reports.
    """
    require_ledger(options.location)
    with open_provider(options, drive=False) as provider:
        try:
            pruned = provider.prune(older_than=older_than, runs=runs, dry_run=dry_run)
        except InvalidRequestError as error:
            raise BadInput(str(error)) from None
    for run_id, why in pruned.kept.items():
        say(f"{run_id} is kept: {why}")
    if dry_run:
        for run_id in pruned.runs:
            tell(run_id)
        say(f"{len(pruned.runs):,} runs would be removed; nothing was")
        return
    size = f"{pruned.size / 1_000_000:,.1f} MB of prompts and answers"
    say(f"removed {len(pruned.runs):,} runs with {pruned.requests:,} requests, {size}")
    if pruned.files:
        say(f"deleted {pruned.files:,} uploaded files at the API")
    if pruned.files_left:
        say(
            f"{pruned.files_left:,} uploaded files that no run names are left at the API "
            f"({pruned.reason}); the same command deletes them, with the key that may"
        )
        raise SystemExit(Exit.PARKED)


@ledger_group.command("confirm-key", epilog=EXIT_CODES)
@click.argument("run_id", metavar="RUN")
@provider_options
def confirm_key_command(run_id: str, options: ProviderOptions) -> None:
    """Say that your key belongs to the workspace that RUN was sent in, after the key was changed.

    Only needed where the API does not tell the workspace of a key. A key of another workspace would
    find nothing there of what was sent, and have it sent again: be sure.
    """
    from claude_batch.providers.ledger_care import confirm_key

    require_ledger(options.location)
    with open_provider(options, drive=False) as provider:
        found, changed = confirm_key(provider, run_id)
    if changed:
        say(f"the key goes on where {found} waits: {options.command('resume', found)}")
    else:
        say(f"the key belongs to the workspace of {found} already; nothing was changed")


def _tell(found: Recovered) -> Exit:
    for batch_id, count in found.adopted.items():
        say(f"{batch_id} had been forgotten: {count:,} requests of it are known")
    for batch_id, count in found.strangers.items():
        say(f"{batch_id} answers {count:,} requests that this ledger does not know; ask them anew")
    for batch_id, why in found.open.items():
        say(f"{batch_id} cannot be judged: {why}")
    if found.wait:
        say(
            "the last sending is so recent that its batch may not be in the list yet; wait "
            f"{format_duration(round(found.wait) or 1)}"
        )
    if not found.done:
        say("nothing is sent until all is known: `claude-batch ledger recover` again, then")
        return Exit.PARKED
    say("the ledger knows again what was sent, and may send; `claude-batch resume` goes on")
    if found.lost:
        say(
            f"{found.lost} requests may have been asked live since, of which the API keeps no "
            "list: they are lost, and `claude-batch unknown RUN --resubmit` asks them again"
        )
    if found.elsewhere:
        say(f"workspaces of other keys wait to be recovered, at {', '.join(found.elsewhere)}")
    return Exit.OK
