"""`claude-batch cancel`, `resume`, `advance`, `retry` and `unknown`: work on earlier runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from claude_batch.cli.help_sections import SectionedCommand
from claude_batch.cli.options import (
    ProviderOptions,
    existing_ledger,
    is_there,
    open_provider,
    optional_run_argument,
    provider_options,
    reading_options,
    require_ledger,
    run_argument,
)
from claude_batch.cli.user_messages import (
    EXIT_CODES,
    BadOutput,
    Exit,
    print_json,
    print_line,
    require_stdout,
    say,
)
from claude_batch.core.errors import (
    AccountHaltedError,
    ActorConfigurationError,
    RunNotFoundError,
)
from claude_batch.core.quantities import count_of, roughly
from claude_batch.core.settings import without_password
from claude_batch.core.states import RequestState, RunState

if TYPE_CHECKING:
    from claude_batch.ledger.deliveries import Outstanding
    from claude_batch.providers.batch import ClaudeBatchProvider
    from claude_batch.providers.reruns import UnknownSending
    from claude_batch.providers.run import Run
    from claude_batch.providers.status import RunStatus


# Resume command -----------------------------------------------------------------------------------


@click.command("cancel", cls=SectionedCommand, epilog=EXIT_CODES)
@run_argument
@provider_options
def cancel_command(run_id: str, options: ProviderOptions) -> None:
    """Cancel a run: withdraw unsent requests, cancel its batches.

    A batch that also contains requests of other runs is not cancelled. Results that exist are kept.
    """
    from claude_batch.cli import run_delivery

    require_ledger(options.location)
    with run_delivery.parkable(), open_provider(options, drive=False) as provider:
        run = provider.open_run(run_id)
        if run.status().finished:
            say(f"{run.id} is finished; there is nothing to cancel")
            return
        run.cancel_sync()
        code = Exit.OK if run.status().finished else _forward_cancel(provider, run, options)
        if code is Exit.OK:
            say(f"{run.id} is cancelled; the results so far are kept")
            status = run.status()
            if status.halt is not None and status.halt.reason == "ledger_behind":
                end = "its requests end when the ledger is recovered: `claude-batch ledger recover`"
                say(options.completed(end))
            elif not status.finished:
                if calls := provider.packed_requests(run.id).live:
                    those = count_of(calls, "live call is", "live calls are")
                    say(f"{those} in progress, and billed when answered")
                say(f"{run.id} ends soon. Wait for it with: {options.command('resume', run.id)}")
    raise SystemExit(code)


def _forward_cancel(provider: ClaudeBatchProvider, run: Run, options: ProviderOptions) -> Exit:
    """Ask the API to cancel a run's batches; if another process drives them, leave it to that one.

    If not every batch could be asked for, report why, and how to repeat it.
    """
    kept = f"{run.id} is marked as cancelled, but the cancel request has not reached the API yet"
    if provider.is_driven(run.id):
        if provider.packed_requests(run.id).sent:
            say("another process drives this ledger; it sends the cancel request")
        return Exit.OK
    there = run.outstanding().base_url
    try:
        here = provider.address
        if there == here:
            provider.advance_sync(send=False)
    except ActorConfigurationError as error:
        say(f"{kept}: {error}")
        return Exit.USAGE
    # Another process may have taken the ledger over meanwhile.
    unasked = provider.uncancelled(run.id)
    if not unasked or provider.is_driven(run.id):
        return Exit.OK
    again = options.command("cancel", run.id)
    if there != here:
        why = f"the run was sent to {there}, but this command uses {here}"
        again = options.command("cancel", run.id, base_url=there)
    elif provider.contact.last_failure and not provider.contact.made:
        why = provider.contact.last_failure
    elif (halt := run.status().halt) is not None and not provider.contact.made:
        say(
            f"{kept}: sending is halted ({halt.reason}): {halt.message}. Correct the cause, then "
            f"send it with: {again}"
        )
        return Exit.HALTED
    else:
        try:
            provider.check_key(run.id)
        except AccountHaltedError as error:
            then = "Send it with that key" if error.reason == "other_key" else "Or send it with"
            say(f"{kept}: {error}. {then}: {again}")
            return Exit.HALTED
        why = options.completed(_why_uncancelled(run.status(), unasked))
    say(f"{kept}: {why}. Send it with: {again}")
    return Exit.PARKED


def _why_uncancelled(status: RunStatus, unasked: int) -> str:
    from claude_batch.providers.status import is_undecided

    unknown = sum(each.requests for each in status.batches if is_undecided(each))
    if unknown:
        return (
            f"it is unknown whether the API accepted {count_of(unknown, 'request')}; see "
            f"`claude-batch unknown {status.run_id}`"
        )
    notes = [each.note for each in status.batches if each.note is not None]
    if notes:
        return notes[0]
    return f"the API has not accepted it for {count_of(unasked, 'batch', 'batches')}"


@click.command("resume", cls=SectionedCommand, epilog=EXIT_CODES)
@optional_run_argument
@provider_options
def resume_command(run_id: str | None, options: ProviderOptions) -> None:
    """Continue a run, or all unfinished runs; write the output.

    The output of each run is written to the file that the run was started with, else to standard
    output. If several runs have no file, messages on standard error say which lines are whose.
    """
    from claude_batch.cli import run_delivery

    require_ledger(options.location)
    with run_delivery.parkable(), open_provider(options) as provider:
        found = (
            provider.outstanding() if run_id is None else [provider.open_run(run_id).outstanding()]
        )
        if not found:
            say("there is no unfinished run")
            return
        code = Exit.OK
        for left in list(found):
            try:
                run_delivery.check_unchanged(provider, left, options.location)
            except BadOutput as error:
                if run_id is not None:
                    raise
                say(f"error: {error}")
                code = Exit.USAGE
                found.remove(left)
            else:
                if not left.finished:
                    _check_output(provider, left, options, alone=run_id is not None)
        if any(not left.finished for left in found):
            provider.resume()
        here = provider.address
        shares = [each for each in found if each.base_url == here and _is_printed(provider, each)]
        printed = run_delivery.Printed()
        for left in found:
            if not left.finished and left.base_url != here:
                say(_elsewhere_line(provider, left, options))
                code = max(code, Exit.PARKED)
                continue
            run = provider.open_run(left.id)
            is_due = partial(
                _is_due, run, left, again=run_id is not None or _is_printed(provider, left)
            )
            before = printed.lines
            try:
                ended = run_delivery.wait_and_deliver(
                    provider, run, left.output, options, is_due=is_due, printed=printed
                )
            except BadOutput as error:
                say(f"error: {error}")
                ended = Exit.USAGE
            code = max(code, ended)
            if len(shares) > 1 and printed.lines > before:
                lines = _lines_words(before + 1, printed.lines)
                say(f"{left.id}: {lines} of standard output")
            if provider.closed:  # it was parked: no other run is waited for either
                break
    raise SystemExit(code)


def _is_printed(provider: ClaudeBatchProvider, left: Outstanding) -> bool:
    """Return whether a run's output goes to standard output."""
    if left.kind != "run" or left.output is not None:
        return False
    form, folder = provider.open_run(left.id).forms()
    return form != "none" and folder is None


def _is_due(run: Run, left: Outstanding, *, again: bool) -> bool:
    """Return whether the output of a finished run is to be written.

    ``again``: also if another process has delivered it meanwhile.
    """
    return left.kind == "run" and (again or run.status().delivered is None)


def _lines_words(first: int, last: int) -> str:
    return f"line {first:,}" if first == last else f"lines {first:,} to {last:,}"


def _elsewhere_line(
    provider: ClaudeBatchProvider, left: Outstanding, options: ProviderOptions
) -> str:
    """Return the line about an unfinished run of another base URL."""
    there = _address_words(provider, left)
    go_on = options.command("resume", left.id, base_url=left.base_url)
    if provider.was_sent(left.id):
        return f"{there}. Continue with: {go_on}"
    cancel = options.command("cancel", left.id)
    return (
        f"{there}. Nothing of it was sent. If its base URL is wrong, run `{cancel}`, and repeat "
        f"the command that made it with the right one. Otherwise continue with: {go_on}"
    )


def _address_words(provider: ClaudeBatchProvider, left: Outstanding) -> str:
    """Return that a run belongs to another base URL than this command uses."""
    if provider.was_sent(left.id):
        return f"{left.id} was sent to {left.base_url}, but this command uses {provider.address}"
    return f"{left.id} is meant for {left.base_url}, but this command uses {provider.address}"


def _check_output(
    provider: ClaudeBatchProvider, left: Outstanding, options: ProviderOptions, *, alone: bool
) -> None:
    """Check a run's output before anything is sent. Raises `BadOutput` for a run that is ``alone``.

    Otherwise it is a warning, because the other runs have to go on.
    """
    from claude_batch.cli import run_delivery

    try:
        run_delivery.check_stored_output(provider.open_run(left.id), left.output, options.location)
    except BadOutput as error:
        if alone:
            raise
        say(f"warning: {left.id} goes on, but {error}")


@click.command("advance", cls=SectionedCommand, epilog=EXIT_CODES)
@provider_options
def advance_command(options: ProviderOptions) -> None:
    """Make one pass over all work that is due; for cron.

    The output of each run that is then complete is written to the file that it was started with.
    A run without an output that ends in the pass is reported in one line. If nothing is due, or
    there is no ledger yet, the command reports it and exits with 0. If a run is still in progress,
    it exits with 3, or with 4 if the run needs another key.
    """
    from claude_batch.cli import run_delivery

    if not is_there(options.location):
        say(f"there is no ledger at {without_password(options.location)} yet: nothing is due")
        return
    code = Exit.OK
    with run_delivery.parkable(), open_provider(options, drive=False) as provider:
        open_before = [left for left in provider.outstanding() if not left.finished]
        try:
            drove = provider.advance_sync()
        except KeyboardInterrupt:
            if calls := provider.live_calls:
                say(run_delivery.awaited(calls))
            raise
        except ActorConfigurationError:
            if provider.outstanding():
                raise
            say("nothing is due")  # so nothing needs a key
            return
        found = provider.outstanding()
        # A run without an output is not outstanding once it has ended.
        named = {left.id for left in found}
        found += [left for left in open_before if left.id not in named]
        is_idle = False
        if not drove:
            say("another process drives this ledger; it sends batches and collects results")
        elif not provider.contact.made and provider.contact.failures:
            say(provider.contact.last_failure)
            code = Exit.PARKED
        else:
            is_idle = True
        for left in found:
            try:
                run = provider.open_run(left.id)
                code = max(code, _report_advance(provider, run, options, drove=drove))
                is_idle = False
            except RunNotFoundError:  # another process has delivered and removed it meanwhile
                continue
        if is_idle:
            say("nothing is due")
    raise SystemExit(code)


def _report_advance(
    provider: ClaudeBatchProvider, run: Run, options: ProviderOptions, *, drove: bool
) -> Exit:
    """Print where a run stands after a pass, and write its output if it is complete.

    Raises `RunNotFoundError` if another process has removed the run.
    """
    from claude_batch.cli import run_delivery
    from claude_batch.providers.progress_reports import counts_line

    left = run.outstanding()
    if not left.finished and left.base_url != provider.address:
        if provider.is_driven(left.id):
            return Exit.OK
        say(_elsewhere_line(provider, left, options))
        return Exit.PARKED
    status = run.status()
    if status.halt is not None or status.state is RunState.HELD:
        say(f"{status.run_id}: {options.completed(status.waiting_for)}")
        return Exit.PARKED if status.halt is None else Exit.HALTED
    if (missing := provider.missing_tools(left.id)) is not None:
        say(
            f"{status.run_id}: its conversations wait for tools that this process does not have: "
            f"{missing}"
        )
        return Exit.PARKED
    if status.finished:
        code = Exit.FAILED if status.failed else Exit.OK
        nowhere = status.output is None and run.forms().results_dir is None
        if nowhere or status.delivered is not None:
            # It has ended in this pass, or just after it. Nobody reads its answers here, or another
            # process has delivered them. Its reader may have moved or changed the output since.
            say(f"{status.run_id} is finished: {counts_line(status)}")
            return code
        try:
            run_delivery.check_unchanged(provider, left, options.location)
            run_delivery.deliver(run, status.output, options)
        except BadOutput as error:
            say(f"error: {error}")
            return max(code, Exit.USAGE)
        return code
    if not drove:
        return Exit.OK
    contact = provider.contact
    if not provider.is_driven(left.id) and (contact.made or contact.refused):
        try:
            provider.check_key(left.id)
        except AccountHaltedError as error:
            say(str(error))
            return Exit.HALTED
    if contact.made:  # else the reason has been printed
        say(f"{status.run_id} is in progress: {counts_line(status)}")
    return Exit.PARKED


# Retry --------------------------------------------------------------------------------------------


@click.command("retry", cls=SectionedCommand, epilog=EXIT_CODES)
@run_argument
@click.option(
    "--only",
    multiple=True,
    metavar="expired|errored|canceled|malformed|missing|type=TYPE",
    help="Retry only requests with this outcome or type of error; repeatable, or separated by "
    "commas.",
)
@provider_options
def retry_command(run_id: str, only: tuple[str, ...], options: ProviderOptions) -> None:
    """Send the failed requests of a run again, and wait for them.

    The whole output of the run is then written again. If the output was changed since it was
    written, nothing is sent: give that file another name. Requests that succeeded are not sent
    again, and keep their place. Requests that were cancelled with their run are sent only with
    `--only canceled`. Requests without a result may have been paid for: `--only missing` first
    fetches the results again, free of charge. It sends only what is still missing, which may then
    be paid for twice.
    """
    from claude_batch.cli import run_delivery
    from claude_batch.providers.reruns import parse_only

    only = tuple(word.strip() for given in only for word in given.split(","))
    try:
        parse_only(only)
    except ActorConfigurationError as error:
        raise click.UsageError(f"--{error}") from None
    require_ledger(options.location)
    with run_delivery.parkable(), open_provider(options) as provider:
        run = provider.open_run(run_id)
        left = run.outstanding()
        run_delivery.check_stored_output(run, left.output, options.location)
        run_delivery.check_unchanged(provider, left, options.location)
        if left.base_url != provider.address:
            again = options.command("retry", left.id, base_url=left.base_url)
            there = _address_words(provider, left)
            say(f"{there}. Nothing was changed. Repeat it with: {again}")
            raise SystemExit(Exit.USAGE)
        retried = run.retry(only or None)
        for batch_id, reason in retried.refused.items():
            resubmit = options.command("unknown", left.id, "--resubmit")
            say(
                f"the results of batch {batch_id} cannot be fetched ({reason}), so its requests "
                f"are not sent again. To send them without a look at the results: {resubmit}"
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
            kinds = [word.removeprefix("type=") for word in only]
            other = " or ".join(kinds) or ("other" if retried.cancelled else "failed")
            say(f"{left.id} has no {other} request to retry; nothing was changed")
            status = run.status()
            for line in _billed_lines(status):
                say(line)
            for line in run.failures(status).advice:
                say(options.completed(line))
            if not status.finished:
                run_delivery.say_unfinished(run, status)
                say(options.how_to_go_on(left.id))
                raise SystemExit(Exit.PARKED)
            raise SystemExit(Exit.FAILED if status.failed else Exit.OK)
        if retried.queued:
            again = count_of(retried.queued, "request is", "requests are")
            say(f"{left.id}: {again} sent again")
        provider.resume()
        raise SystemExit(run_delivery.wait_and_deliver(provider, run, left.output, options))


_BILLED = {
    RequestState.REFUSED: "refused",
    RequestState.WINDOW_EXCEEDED: "cut off at the end of the model's context window",
    RequestState.STOPPED: "stopped before the end of the conversation",
}
"""States of failed requests that `retry` never sends, because their answer was billed."""


def _billed_lines(status: RunStatus) -> list[str]:
    """Return why `retry` leaves out failed requests that were answered."""
    lines = [
        f"{count_of(count, 'request was', 'requests were')} {words} and billed; only `--new` sends "
        f"{'it' if count == 1 else 'them'} again"
        for state, words in _BILLED.items()
        if (count := status.counts.get(state, 0))
    ]
    if count := status.counts.get(RequestState.MALFORMED, 0):
        lines.append(
            f"{count_of(count, 'request was', 'requests were')} answered in an undocumented format "
            f"and billed; `--only malformed` sends {'it' if count == 1 else 'them'} again"
        )
    return lines


# Unknown command ----------------------------------------------------------------------------------


@click.command("unknown", epilog=EXIT_CODES)
@optional_run_argument
@click.option(
    "--resubmit",
    is_flag=True,
    help="Send them again now. If the API accepted the first sending, they are paid for twice.",
)
@click.option(
    "--give-up",
    is_flag=True,
    help="End them without an answer. If the API accepted them, they are paid for.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reading_options("ledger")
def unknown_command(
    run_id: str | None, resubmit: bool, give_up: bool, as_json: bool, options: ProviderOptions
) -> None:
    """Show requests whose acceptance is unknown; needs no key.

    The API may or may not have accepted them: its answer was lost. The process that drives the
    ledger looks for them in the API's list of batches. They are usually
    decided within `--settling`; if another client's batch looks alike, when that batch has ended.
    To decide at once for a RUN, use --resubmit or --give-up.
    """
    from claude_batch.providers.reruns import decide_unknown, fetchable_lost, unknown_sendings
    from claude_batch.providers.status import find_run_id

    if resubmit and give_up:
        raise click.UsageError("--resubmit and --give-up exclude each other; give one of them")
    decision = "resubmit" if resubmit else "give-up" if give_up else None
    if decision is not None and run_id is None:
        raise click.UsageError(
            f"--{decision} needs a RUN, because it applies to the requests of one run"
        )
    if decision is None or as_json:
        require_stdout()
    with existing_ledger(options.location) as store:
        if run_id is not None:
            run_id = find_run_id(store, run_id)
        if decision is not None and run_id is not None:
            decided = decide_unknown(store, run_id, resubmit=resubmit)
            if decided.refusal:
                if decided.undecided:
                    end = options.command("unknown", run_id, "--give-up")
                    go_on = f"Requests with an unknown outcome end with: {end}"
                else:
                    wait = options.command("resume", run_id)
                    go_on = (
                        "Its lost requests can be sent again once its open ones have ended. Wait "
                        f"for these with: {wait}"
                    )
                say(f"{run_id} {decided.refusal}. Nothing was sent again. {go_on}")
                raise SystemExit(Exit.USAGE)
            _print_decision(run_id, decision, decided.requests, options)
            if not as_json:
                return
        found, now = unknown_sendings(store, run_id), store.now()
        fetchable = fetchable_lost(store, [each.run_id for each in found if each.lost])
    if as_json:
        print_json([sending.to_dict() for sending in found])
        return
    if not found:
        print_line("no requests are unknown")
    for sending in found:
        # A run may have two entries of lost requests: those of batches come before live calls.
        missing = fetchable.pop(sending.run_id, 0) if sending.lost else 0
        print_line(_words(sending, now, missing, options))


def _print_decision(run_id: str, decision: str, count: int, options: ProviderOptions) -> None:
    if not count:
        say(f"{run_id} has no unknown requests; nothing was changed")
    elif decision == "resubmit":
        say(
            f"{count_of(count, 'request')} of {run_id} queued again. Requests that the API had "
            "accepted are paid for twice. If no process drives the ledger, send them with: "
            f"{options.command('resume', run_id)}"
        )
    else:
        say(
            f"{count_of(count, 'request')} of {run_id} ended without an answer. Requests that the "
            "API had accepted are paid for. Send them again with: "
            f"{options.command('unknown', run_id, '--resubmit')}"
        )


def _words(sending: UnknownSending, now: float, missing: int, options: ProviderOptions) -> str:
    from claude_batch.lifecycle.reconciliation import is_doubted

    lines = [f"{sending.run_id}: {count_of(sending.requests, 'request')}"]
    if sending.since is not None:
        lines[0] += f", unknown for {roughly(max(1, now - sending.since))}"
    lines[0] += f": {sending.reason}"
    if missing:
        results = count_of(missing, "result")
        fetch = options.command("results", sending.run_id, "--refetch", "-o", "OUT")
        lines.append(f"  {results} can be fetched first, free of charge, with: {fetch}")
    if sending.lost:
        lines.append("  they ended as lost; send them again with --resubmit")
    elif not sending.settled and not is_doubted(sending.reason):
        lines.append("  the API's list of batches is watched until `settling` has passed")
    elif sending.candidates:
        lines.append("  one of these batches may be it; the results will decide:")
    for candidate in sending.candidates:
        note = f" ({candidate.note})" if candidate.note else ""
        lines.append(f"    {candidate.batch_id} {candidate.state}{note}")
    return "\n".join(lines)
