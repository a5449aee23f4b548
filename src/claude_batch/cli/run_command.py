"""`claude-batch run` and `submit`: from INPUT to a stored run, and for `run` to OUT."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import click

from claude_batch.cli.completion import complete_files
from claude_batch.cli.exits import EXIT_CODES, Exit
from claude_batch.cli.input_options import Asked, input_options
from claude_batch.cli.options import (
    DOLLARS,
    ProviderOptions,
    folder_option,
    format_option,
    open_provider,
    option,
    provider_options,
    require_value,
    run_options,
)
from claude_batch.cli.user_messages import BadInput, BadOutput, print_line, say
from claude_batch.core.errors import (
    AccountHaltedError,
    InvalidRequestError,
    PreflightError,
)
from claude_batch.core.quantities import count_of
from claude_batch.core.states import RequestState

if TYPE_CHECKING:
    from claude_batch.actor.configuration import ActorConfiguration
    from claude_batch.cli.inputs import Inputs
    from claude_batch.money import Estimate
    from claude_batch.providers.batch import ClaudeBatchProvider
    from claude_batch.providers.export import Format
    from claude_batch.providers.run import Run

_F = TypeVar("_F", bound=Callable[..., Any])


_OTHERS: tuple[Callable[[Any], Any], ...] = (
    click.option("-o", "--output", metavar="OUT", shell_complete=complete_files,
                 callback=require_value,
                 help="The file for the results. By default standard output."),
    format_option,
    folder_option,
    option("budget_usd"),
    click.option("--confirm-above", type=DOLLARS, metavar="USD",
                 help="Ask for confirmation if the run can cost more. Without a terminal, refuse "
                      "the run."),
    click.option("--label", help="A name for the run, shown by `status`."),
    click.option("--new", is_flag=True, help="Make a new run, although the same one exists."),
)  # fmt: skip


def _asking(command: _F) -> _F:
    """Add the arguments and options that `run` and `submit` share."""
    decorated: Any = run_options(provider_options(command))
    for add in reversed(_OTHERS):
        decorated = add(decorated)
    return input_options(decorated)


@click.command("run", epilog=EXIT_CODES)
@_asking
@click.option(
    "--sandbox", is_flag=True, help="Try the run in a temporary sandbox: nothing is sent or billed."
)
def run_command(**given: Any) -> None:
    """Send every prompt of INPUT, wait, and write the answers in input order.

    ACTOR is a YAML file. --model replaces it.

    \b
    INPUT is one or more of these; documents cannot be mixed with prompts:
      JSON lines            one request a line: a string, or an object with one of
                            prompt, messages and params; optional: id, documents
      -                     JSON lines from standard input
      CSV                   one request a row, with a column of prompts
      text files            one request a file, whose text is the prompt
      PDF, image, DOCX      one request a file; --prompt is the question
    A quoted pattern such as 'a/*.pdf' stands for several files.

    The same command continues an unfinished run. If the run has finished, it writes the answers
    again at no cost, and sends only the requests again that failed for a temporary reason.
    """
    raise SystemExit(_ask(**given, wait=True))


@click.command("submit", epilog=EXIT_CODES)
@_asking
def submit_command(**given: Any) -> None:
    """Like run, but exit as soon as the API has accepted the batches; prints the run's id.

    Use `resume` later to wait for the run and to write OUT.
    """
    raise SystemExit(_ask(**given, wait=False))


def _ask(
    *,
    asked: Asked,
    output: str | None,
    form: Format | None,
    results_dir: str | None,
    options: ProviderOptions,
    budget_usd: Decimal | None,
    confirm_above: Decimal | None,
    label: str | None,
    new: bool,
    wait: bool,
) -> Exit:
    from claude_batch.cli.run_delivery import (
        check_folder,
        check_writable,
        parkable,
        wait_and_deliver,
    )
    from claude_batch.ledger.deliveries import Forms

    actor, inputs = asked.actor_and_inputs()
    output = None if output == "-" else output
    if output is not None or (wait and results_dir is None):
        check_writable(output, options.location, [*asked.arguments, *inputs.files])
    check_folder(results_dir)
    forms = Forms(form, None if results_dir is None else os.path.abspath(results_dir))
    with parkable(), open_provider(options) as provider:
        from claude_batch.cli.estimate import confirm, estimate_line
        from claude_batch.providers.estimation import STORED_SAMPLE

        def look(found: Estimate) -> None:
            is_sampled = confirm_above is None and found.requests > STORED_SAMPLE
            say(estimate_line(found, is_sampled=is_sampled))
            if confirm_above is not None:
                confirm(found, confirm_above)

        run = _store(
            provider,
            actor,
            inputs,
            output,
            label=label,
            new=new,
            budget_usd=budget_usd,
            look=look,
            # A question about a sample would not be asked if the dear requests are not in it.
            estimate_all=confirm_above is not None,
        )
        run.set_forms(forms)
        if wait:
            return wait_and_deliver(provider, run, output, options)
        return _submit(provider, run, options)


def _store(
    provider: ClaudeBatchProvider,
    actor: ActorConfiguration,
    inputs: Inputs,
    output: str | None,
    *,
    label: str | None,
    new: bool,
    budget_usd: Decimal | None,
    look: Callable[[Estimate], None],
    estimate_all: bool,
) -> Run:
    from claude_batch.cli.display import storing

    try:
        with storing() as on_stored:
            run = provider.store(
                actor,
                inputs,
                label=label,
                new=new,
                budget_usd=budget_usd,
                on_estimate=look,
                estimate_all=estimate_all,
                # `resume` may be typed in another directory.
                output=None if output is None else os.path.abspath(output),
                on_invalid=inputs.refuse,
                on_stored=on_stored,
                spare_single=inputs.skips,
                send_meanwhile=False,
            )
    except PreflightError as error:
        raise BadInput(str(error)) from None
    except InvalidRequestError:
        # Each request's own error went to `refuse`; what remains is that there was no request.
        raise BadInput(inputs.nothing()) from None
    except KeyboardInterrupt:
        say("interrupted while the input was read; nothing was stored or sent")
        raise SystemExit(Exit.PARKED) from None
    if inputs.skipped:
        say(f"skipped {inputs.skipped:,} of {inputs.count:,} items")
    status = run.status()
    # For a run that was submitted before, the provider has reported what it holds and retries.
    if status.created >= inputs.begun:
        if status.finished:
            say(f"{run.id} is finished: every request was answered before")
        else:
            say(f"{run.id} is stored: {count_of(status.total, 'request')}")
    return run


def _submit(provider: ClaudeBatchProvider, run: Run, options: ProviderOptions) -> Exit:
    with suppress(BadOutput):  # it is also printed on standard error
        print_line(run.id)
    try:
        run.wait_until_sent_sync()
    except KeyboardInterrupt:
        say(f"parked; {options.how_to_go_on(run.id)}")
        return Exit.PARKED
    except AccountHaltedError as error:
        say(f"halted: {error}")
        return Exit.HALTED
    status = run.status()
    if status.held is not None:
        say(f"not everything was sent: {status.waiting_for}; {options.how_to_go_on(run.id)}")
        return Exit.PARKED
    unsent = not status.batches or any(batch.batch_id is None for batch in status.batches)
    if unsent and not status.finished:
        why = provider.contact.last_failure or status.waiting_for
        say(f"not everything was sent: {why}; {options.how_to_go_on(run.id)}")
        return Exit.PARKED
    if held := status.counts.get(RequestState.HELD):
        words = count_of(held, "request is", "requests are")
        say(f"{words} held until other requests of the run have ended")
    say(f"sent. Wait for the answers with: {options.command('resume', run.id)}")
    return Exit.OK
