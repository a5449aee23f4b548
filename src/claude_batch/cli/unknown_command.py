"""`claude-batch unknown`: submissions without an answer, and the user's choices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from claude_batch.cli.exits import EXIT_CODES
from claude_batch.cli.options import option
from claude_batch.cli.status_command import require_ledger
from claude_batch.cli.user_messages import require_stdout, say, tell, tell_json
from claude_batch.core.durations import format_duration
from claude_batch.core.plurals import count_of
from claude_batch.core.settings import default_ledger

if TYPE_CHECKING:
    from claude_batch.providers.unknown_sendings import UnknownSending


@click.command("unknown", epilog=EXIT_CODES)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option(
    "--resubmit",
    "decision",
    flag_value="resubmit",
    help="Send them again now. If the API accepted the first sending, they are paid for twice.",
)
@click.option(
    "--give-up",
    "decision",
    flag_value="give-up",
    help="End them without an answer. If the API accepted them, they are paid for.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@option("ledger")
def unknown_command(
    run_id: str | None, decision: str | None, as_json: bool, ledger: str | None
) -> None:
    """Show requests that the API may or may not have accepted; needs no key.

    The process that drives the ledger looks for them in the API's list of batches. They are
    usually decided within `--settling`; if another client's batch looks alike, when that batch has
    ended. To decide at once for a RUN, use --resubmit or --give-up.
    """
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.status import find_run_id
    from claude_batch.providers.unknown_sendings import decide_unknown, unknown_sendings

    if decision is not None and run_id is None:
        raise click.UsageError(
            f"--{decision} needs a RUN, because it applies to the requests of one run"
        )
    if decision is None:
        require_stdout()
    location = default_ledger(ledger)
    require_ledger(location)
    store = Ledger(location)
    try:
        if run_id is not None:
            run_id = find_run_id(store, run_id)
        if decision is not None and run_id is not None:
            count = decide_unknown(store, run_id, resubmit=decision == "resubmit")
            _tell(run_id, decision, count)
            return
        found = unknown_sendings(store, run_id)
    finally:
        store.close()
    if as_json:
        tell_json([sending.to_dict() for sending in found])
        return
    if not found:
        tell("no requests are unknown")
    for sending in found:
        tell(_words(sending))


def _tell(run_id: str, decision: str, count: int) -> None:
    if not count:
        say(f"{run_id} has no unknown requests; nothing was changed")
    elif decision == "resubmit":
        say(
            f"{count_of(count, 'request')} of {run_id} queued again. Requests that the API had "
            "accepted are paid for twice. If no process drives the ledger, send them with: "
            f"claude-batch resume {run_id}"
        )
    else:
        say(
            f"{count_of(count, 'request')} of {run_id} ended without an answer. Requests that the "
            "API had accepted are paid for. Send them again with: "
            f"claude-batch unknown {run_id} --resubmit"
        )


def _words(sending: UnknownSending) -> str:
    lines = [f"{sending.run_id}: {count_of(sending.requests, 'request')}"]
    if sending.since is not None:
        lines[0] += f", unknown for {format_duration(max(1, round(time.time() - sending.since)))}"
    lines[0] += f": {sending.reason}"
    if sending.lost:
        lines.append("  they ended as lost; send them again with --resubmit")
    elif not sending.settled:
        lines.append("  the API's list of batches is watched until `settling` has passed")
    elif sending.candidates:
        lines.append("  one of these batches may be it; the results will decide:")
    for candidate in sending.candidates:
        note = f" ({candidate.note})" if candidate.note else ""
        lines.append(f"    {candidate.batch_id} {candidate.state}{note}")
    return "\n".join(lines)
