"""`claude-batch run`, `submit` and `estimate`: the requests, their estimated cost, and the run.

`claude_batch.actor.inputs` reads INPUT. It is imported late, so that help does without it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click
import msgspec

from claude_batch.cli.cost import confirm, estimate_details, estimate_line
from claude_batch.cli.help_sections import SectionedCommand
from claude_batch.cli.options import (
    DOLLARS,
    ProviderOptions,
    add_all,
    complete_files,
    folder_option,
    format_option,
    import_provider,
    open_provider,
    option,
    output_path,
    provider_options,
    require_value,
    run_options,
    warn_of_unused_settings,
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
    ActorError,
    BadInput,
    InvalidRequestError,
    ProviderNotFoundError,
)
from claude_batch.core.quantities import count_of, dollars, write_usd
from claude_batch.core.settings import ENVIRONMENT_PREFIX
from claude_batch.core.states import RequestState

if TYPE_CHECKING:
    from rich.status import Status

    from claude_batch.actor.configuration import ActorConfiguration
    from claude_batch.actor.inputs import Inputs
    from claude_batch.actor.request import RequestLike
    from claude_batch.ledger.deliveries import Displaced
    from claude_batch.providers.batch import ClaudeBatchProvider
    from claude_batch.providers.estimation import Estimate
    from claude_batch.providers.export import Format
    from claude_batch.providers.run import Run

# ACTOR and INPUT ----------------------------------------------------------------------------------

_F = TypeVar("_F", bound=Callable[..., Any])

_INPUTS: tuple[Callable[[Any], Any], ...] = (
    click.argument("arguments", nargs=-1, required=True, metavar="[ACTOR] INPUT...",
                   shell_complete=complete_files),
    click.option("--model", callback=require_value, help="A model, instead of ACTOR."),
    click.option("--system", help="A system prompt, with --model."),
    click.option("--max-tokens", metavar="N", type=click.IntRange(min=1),
                 help="Most tokens of an answer, with --model."),
    click.option("--prompt-column", metavar="NAME",
                 help="The column of a CSV or TSV that holds the prompts (prompt)."),
    click.option("--id-column", metavar="NAME",
                 help="The column of a CSV or TSV that holds the ids of the results (id)."),
    click.option("--prompt", metavar="TEXT",
                 help="The prompt for each INPUT that is a document (PDF, image, DOCX). By "
                      "default only the actor's system prompt applies."),
    click.option("--document", "documents", multiple=True, metavar="FILE",
                 shell_complete=complete_files, callback=require_value,
                 help="A PDF, image or text to add to every request; repeatable; a pattern such "
                      "as 'a/*.pdf' too."),
    click.option("--citations", is_flag=True, help="Ask for citations of the documents."),
    click.option("--documents-root", metavar="DIR", type=click.Path(exists=True, file_okay=False),
                 envvar=f"{ENVIRONMENT_PREFIX}DOCUMENTS_ROOT", show_envvar=True,
                 help="Reject input lines that name documents outside DIR."),
    click.option("--skip-invalid", is_flag=True,
                 help="Leave out invalid requests, and report each."),
)  # fmt: skip


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments and options that name an actor and its input, as given."""

    arguments: tuple[str, ...]
    model: str | None
    system: str | None
    max_tokens: int | None
    prompt_column: str | None
    id_column: str | None
    prompt: str | None
    documents: tuple[str, ...]
    documents_root: str | None
    citations: bool
    skip_invalid: bool

    def actor_and_inputs(self) -> tuple[ActorConfiguration, Inputs]:
        """Return the actor, and the input, which is not read yet."""
        from claude_batch.actor.inputs import Inputs

        actor, given = self._actor()
        for path in given:
            _refuse_second_actor(path)
        warn_of_unused_settings(actor.batch_processing or True)
        inputs = Inputs(
            given,
            prompt_column=self.prompt_column,
            id_column=self.id_column,
            documents=self.documents,
            documents_root=self.documents_root,
            citations=self.citations,
            prompt=self.prompt,
            instructed=bool(actor.system_prompt or actor.options.get("system")),
            on_invalid=(lambda message: say(f"skipped: {message}")) if self.skip_invalid else None,
        )
        return actor, inputs

    def _actor(self) -> tuple[ActorConfiguration, tuple[str, ...]]:
        from claude_batch.actor.configuration import CLAUDE_PROVIDERS
        from claude_batch.actor.loader import ActorLoader

        if "" in self.arguments:
            is_actor = self.model is None and not self.arguments[0]
            raise click.UsageError(f"{'ACTOR' if is_actor else 'INPUT'} is empty; give a value")
        if self.model is None:
            if self.system is not None or self.max_tokens is not None:
                raise click.UsageError("--system and --max-tokens need --model, instead of ACTOR")
            if len(self.arguments) < 2:
                raise click.UsageError("give ACTOR and INPUT, or --model and INPUT")
            if (first := self.arguments[0]).lower().endswith((".jsonl", ".csv", ".tsv", ".pdf")):
                raise click.UsageError(
                    f"{first} comes first, so it is read as ACTOR, which is a YAML file. Give "
                    "ACTOR before INPUT, or --model"
                )
            actor = ActorLoader.load(first)
            actor.require_answerable()
            if actor.resolved_provider not in CLAUDE_PROVIDERS:
                raise _foreign_provider(actor)
            return actor, self.arguments[1:]
        self._refuse_actor()
        written: dict[str, Any] = {
            "name": "local/command-line", "provider": "anthropic", "model": self.model,
            "batch_processing": True,
        }  # fmt: skip
        if self.system is not None:
            written["system_prompt"] = self.system
        if self.max_tokens is not None:
            written["options"] = {"max_tokens": self.max_tokens}
        return ActorLoader.from_mapping(written), self.arguments

    def refuse(
        self, actor: ActorConfiguration, inputs: Inputs
    ) -> Callable[[InvalidRequestError], None]:
        """Return the callback for the error of each request that is refused.

        It leaves the request out, or raises `BadInput`. It raises always if the fault is the
        actor's, because every request without options of its own has that fault too.
        """

        @functools.cache
        def actor_fault() -> str | None:
            from claude_batch.actor.request import RequestEncoders

            try:
                RequestEncoders({}).of(actor).encode("A prompt")
            except InvalidRequestError as error:
                return error.reason
            return None

        def refuse(error: InvalidRequestError) -> None:
            if error.reason == actor_fault():
                named = self.arguments[0] if self.model is None else f"--model {self.model}"
                raise BadInput(f"{named}: {error.reason}")
            inputs.refuse(error, of_all=error.unpriced_model == actor.resolved_model)

        return refuse

    def _refuse_actor(self) -> None:
        """Raise `click.UsageError` if ACTOR is given besides --model.

        It would be sent, and paid for, as a prompt. A pattern such as ``'*.yaml'`` names prompts.
        """
        if _is_yaml(first := self.arguments[0]):
            raise click.UsageError(
                f"--model is given instead of ACTOR, but {first} is given too. Leave out --model "
                f"to use this actor, or leave out {first}"
            )


def _foreign_provider(actor: ActorConfiguration) -> ActorError:
    """Return the error of an actor that another provider than Claude's answers."""
    from claude_batch.actor.configuration import CLAUDE_PROVIDERS
    from claude_batch.providers.registry import default_registry

    name = actor.resolved_provider
    if name not in default_registry.names():
        return ProviderNotFoundError(name, CLAUDE_PROVIDERS)
    return ActorConfigurationError(
        f"actor {actor.name} is answered by the provider {name!r}. Commands answer actors of "
        "`provider: anthropic` alone; use this one from Python, with cb.load_actor"
    )


def _is_yaml(path: str) -> bool:
    return path.lower().endswith((".yaml", ".yml")) and os.path.isfile(path)


def _refuse_second_actor(path: str) -> None:
    """Raise `click.UsageError` if an INPUT is an actor, which would be sent, and paid for, as text.

    A pattern such as ``'*.yaml'`` names prompts.
    """
    from claude_batch.actor.loader import ActorLoader

    if _is_yaml(path) and ActorLoader.is_actor(path):
        raise click.UsageError(
            f"one command has one actor, and {path} is an actor too. Leave it out, or run a "
            "command for each. To send its text as a prompt, give the file another suffix, such "
            "as .txt"
        )


def _input_options(command: _F) -> _F:
    """Add these arguments and options to a command, which receives them as one `Asked`."""

    @functools.wraps(command)  # which copies the options that it has already
    def wrapped(*args: Any, **given: Any) -> Any:
        asked = Asked(
            **{field.name: given.pop(field.name) for field in msgspec.structs.fields(Asked)}
        )
        return command(*args, asked=asked, **given)

    return add_all(wrapped, _INPUTS)


# Estimate -----------------------------------------------------------------------------------------


@click.command("estimate", cls=SectionedCommand, epilog=EXIT_CODES)
@_input_options
@click.option(
    "--offline", is_flag=True, help="Do not ask the API to count the tokens of a few requests."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@run_options
@provider_options
def estimate_command(asked: Asked, offline: bool, as_json: bool, options: ProviderOptions) -> None:
    """Estimate what a run would cost; nothing is stored or sent.

    ACTOR and INPUT are those of `run`.

    The API counts the input tokens of a few requests, free of charge. Without a key, or with
    --offline, they are estimated from earlier answers of the model, else from their size. Output
    tokens are always estimated. Savings by --reuse and --dedupe are not included.
    """
    require_stdout()
    actor, inputs = asked.actor_and_inputs()
    refuse = asked.refuse(actor, inputs)
    with import_provider()(drive=False, **options.settings) as provider:
        estimation = provider.estimation(actor)
        for request in inputs:
            try:
                estimation.add(request)
            except InvalidRequestError as error:
                refuse(error)
        if estimation.is_empty:
            raise BadInput(inputs.nothing())
        found = estimation.result(offline=offline)
    if as_json:
        print_json(found.to_dict())
        return
    for line in estimate_details(found):
        print_line(line)


# Run and submit -----------------------------------------------------------------------------------

_OTHERS: tuple[Callable[[Any], Any], ...] = (
    click.option("-o", "--output", metavar="OUT", shell_complete=complete_files,
                 callback=output_path,
                 help="The file for the results. By default standard output."),
    format_option,
    folder_option,
    option("budget_usd"),
    click.option("--confirm-above", type=DOLLARS, metavar="USD",
                 help="Ask for confirmation if the run can cost more. Without a terminal, refuse "
                      "the run."),
    click.option("--label", callback=require_value, help="A name for the run, shown by `status`."),
    click.option("--new", is_flag=True,
                 help="Make another run, although the same one exists; leave it out to continue."),
)  # fmt: skip


def _asking(command: _F) -> _F:
    """Add the arguments and options that `run` and `submit` share."""
    return add_all(command, [_input_options, *_OTHERS, run_options, provider_options])


@click.command("run", cls=SectionedCommand, epilog=EXIT_CODES)
@_asking
@click.option(
    "--sandbox", is_flag=True, help="Try the run in a temporary sandbox: nothing is sent or billed."
)
def run_command(**given: Any) -> None:
    """Send every prompt of INPUT, wait, and write the answers.

    The answers are in input order. ACTOR is a YAML file; --model replaces it.

    \b
    INPUT is one or more of these; documents cannot be mixed with prompts:
      JSON lines            one request a line: a string, or an object with one of
                            prompt, messages and params; optional: id, documents
      -                     JSON lines from standard input
      CSV, TSV              one request a row, with a column of prompts
      text files            one request a file, whose text is the prompt
      PDF, image, DOCX      one request a file; --prompt is the question
    A quoted pattern such as 'a/*.pdf' stands for several files.

    The same command continues an unfinished run. If the run has finished, it writes the answers
    again at no cost, and sends only those requests again that failed for a temporary reason.
    """
    raise SystemExit(_ask(**given, wait=True))


@click.command("submit", cls=SectionedCommand, epilog=EXIT_CODES)
@_asking
def submit_command(**given: Any) -> None:
    """Like run, but exit as soon as the batches are accepted.

    Prints the run's id. Use `resume` later to wait for the run and to write OUT. Live calls (--mode
    live) are answered only while their process waits, so this command ends when they are answered.
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
    from claude_batch.cli import run_delivery
    from claude_batch.ledger.deliveries import Forms
    from claude_batch.providers.export import descriptor_of
    from claude_batch.providers.run_writer import EmptyRunError

    actor, inputs = asked.actor_and_inputs()
    prices = options.settings["prices"]
    common = [str(each.source) for each in actor.common_documents if each.is_path]
    read = [*asked.arguments, *inputs.files, *common, *([prices] if prices else [])]
    run_delivery.check_sources(output, results_dir, read)
    run_delivery.check_output(output, results_dir, form, options.location, prints=wait)
    run_delivery.check_folder(results_dir, output)
    # `resume` may be typed in another directory, and has other descriptors.
    place = None if output is None or descriptor_of(output) is not None else os.path.abspath(output)
    forms = Forms(form, None if results_dir is None else os.path.abspath(results_dir))
    with run_delivery.parkable(), open_provider(options) as provider:
        holding = nullcontext() if confirm_above is None else _unsent_if_refused(provider)
        with holding, _parking(options) as kept, StoredCount() as stored:
            displaced: list[Displaced] = []
            look = _look_of(provider, actor, inputs, options, budget_usd, confirm_above, stored)
            checked = _without_output(inputs, output, results_dir)
            try:
                run = provider.store(
                    actor,
                    inputs if output is None and results_dir is None else checked,
                    label=label,
                    new=new,
                    budget_usd=budget_usd,
                    output=place,
                    forms=forms,
                    on_invalid=asked.refuse(actor, inputs),
                    on_stored=stored.show,
                    on_estimate=look,
                    # A question about a sample would not be asked if it lacks the dear requests.
                    estimate_all=confirm_above is not None,
                    on_kept=kept.append,
                    on_displaced=displaced.append,
                    spare_single=inputs.skips,
                    send_meanwhile=False,
                )
            except EmptyRunError:
                raise BadInput(inputs.nothing()) from None
            except InvalidRequestError as error:
                # Each request's own error went to `on_invalid`; this one is the run's, such as its
                # label's.
                raise BadInput(str(error)) from None
            kept.append(run.id)
            stored.end()
            _say_stored(run, inputs)
            named = {os.path.abspath(place): place for place in (output, results_dir) if place}
            for each in displaced:
                say(_displaced_line(each, named[each.place], options))
        if wait:
            return run_delivery.wait_and_deliver(provider, run, output, options, forms=forms)
        return _submit(provider, run, options)


def _look_of(
    provider: ClaudeBatchProvider,
    actor: ActorConfiguration,
    inputs: Inputs,
    options: ProviderOptions,
    budget_usd: Decimal | None,
    confirm_above: Decimal | None,
    stored: StoredCount,
) -> Callable[[Estimate], None]:
    """Return the callback for the estimate of a run; it may ask whether to send it."""
    from claude_batch.core.batch_processing import resolve_mode
    from claude_batch.lifecycle.budget_room import whose
    from claude_batch.providers.cost_report import tightest_budget
    from claude_batch.providers.estimation import STORED_SAMPLE

    given = {**options.settings, "budget_usd": budget_usd}
    mode = resolve_mode(actor.batch_processing or True, given)

    def look(found: Estimate) -> None:
        stored.end()
        is_sampled = confirm_above is None and found.requests > STORED_SAMPLE
        count = inputs.count - inputs.skipped
        say(estimate_line(found, count, is_sampled=is_sampled))
        budget = tightest_budget(provider.engine().ledger, actor.name, mode)
        if budget is not None and budget.left < found.cost_most:
            say(
                f"{whose(budget.scope, budget.name)} can reserve at most "
                f"{write_usd(max(0, budget.left))} now, not {dollars(found.cost_most)}, so not all "
                "requests are sent together. A lower `max_tokens` reserves less"
            )
        if confirm_above is not None:
            confirm(found, confirm_above)

    return look


def _say_stored(run: Run, inputs: Inputs) -> None:
    if inputs.skipped:
        say(f"skipped {inputs.skipped:,} of {count_of(inputs.count, 'item')}")
    status = run.status()
    # For a run that was submitted before, the provider has reported what it holds and retries.
    if not run.is_continued:
        if status.finished:
            say(f"{run.id} is finished: every request was answered before")
        else:
            say(f"{run.id} is stored: {count_of(status.total, 'request')}")


@contextmanager
def _parking(options: ProviderOptions) -> Generator[list[str]]:
    """Exit if the block is interrupted, and report whether the run is stored.

    The block adds the id of the run to the list.
    """
    stored: list[str] = []
    try:
        yield stored
    except KeyboardInterrupt:
        if stored:
            say(f"{options.ended}; {options.how_to_go_on(stored[0])}")
        else:
            say("interrupted while the input was read; nothing was stored or sent")
        raise SystemExit(Exit.PARKED) from None


@contextmanager
def _unsent_if_refused(provider: ClaudeBatchProvider) -> Generator[None]:
    """Send nothing inside the block, and nothing at all if it raises an exception.

    The input may be that of an earlier run, whose unsent requests are waiting in the ledger.
    """
    with provider.sending_held():
        try:
            yield
        except BaseException:
            provider.close()
            raise


def _displaced_line(run: Displaced, place: str, options: ProviderOptions) -> str:
    """Return the line about an earlier run that would have replaced this run's output."""
    line = f"{run.run_id} was to write to {place} too; only this run writes to it now"
    if run.unfinished:
        have = count_of(run.unfinished, "request has", "requests have")
        line += (
            f". {have} no result yet, and may still be sent and paid for, unless you run: "
            f"{options.command('cancel', run.run_id)}"
        )
    return f"{line}. Its answers: {options.command('results', run.run_id)} -o OUT"


LINES_APART = 1.0
"""Minimum seconds between two plain lines."""


class StoredCount:
    """Shows the number of stored requests on standard error, until the end of a block."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._live = contextlib.ExitStack()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def show(self, count: int) -> None:
        """Show the number, at most once a second."""
        now = time.monotonic()
        if now - self._shown < LINES_APART:
            return
        self._shown = now
        words = f"{count_of(count, 'request is', 'requests are')} stored so far"
        if sys.stderr is None or not sys.stderr.isatty():
            say(words)
        elif self._status is not None:
            self._status.update(words)
        else:
            from rich.console import Console

            self._status = self._live.enter_context(Console(stderr=True).status(words))

    def end(self) -> None:
        """Remove the line from a terminal; a question below it would lose its ``[y/N]``."""
        self._status = None
        self._live.close()


def _without_output(
    requests: Iterable[RequestLike], output: str | None, folder: str | None
) -> Iterator[RequestLike]:
    """Yield requests; raise `UnusableOutput` if a document one of them names would be replaced."""
    from claude_batch.actor.documents import documents_of
    from claude_batch.actor.request import ActorRequest
    from claude_batch.cli import run_delivery

    for request in requests:
        # Most have none, and each look at the disk takes time.
        if isinstance(request, ActorRequest) and request.documents:
            documents = documents_of(request.documents)
            run_delivery.check_sources(
                output, folder, (str(each.source) for each in documents if each.is_path)
            )
        yield request


_CLAIMED = 5.0
"""Seconds within which a call that the ledger has is made; after them, another process makes it."""


def _wait_for_live_calls(provider: ClaudeBatchProvider, run: Run) -> None:
    """Wait until no live call of the run is under way, because it is answered only here."""
    seen = time.monotonic()
    while True:
        begun = time.monotonic()
        if not provider.packed_requests(run.id).live:
            return
        looked = time.monotonic() - begun
        if provider.live_calls:
            seen = begun
        elif begun - seen > _CLAIMED:
            return
        time.sleep(min(5.0, max(0.1, 100 * looked)))  # counting a large run is expensive


def _submit(provider: ClaudeBatchProvider, run: Run, options: ProviderOptions) -> Exit:
    from claude_batch.cli import run_delivery
    from claude_batch.ledger.live_calls import groups_live_calls

    with suppress(BadOutput):  # it is also printed on standard error
        print_line(run.id)
    before = run.status()
    if before.mode == "live" and not before.finished:
        say("live calls are answered only while their process waits: waiting for the answers")
    try:
        run.wait_until_sent_sync()
        _wait_for_live_calls(provider, run)
    except KeyboardInterrupt:
        return run_delivery.park(provider, run, options)
    except AccountHaltedError as error:
        say(f"halted: {options.completed(str(error))}")
        return Exit.HALTED
    status = run.status()
    waits = options.completed(status.waiting_for)
    if status.held is not None:
        say(f"not everything was sent: {waits}; {options.how_to_go_on(run.id)}")
        return Exit.PARKED
    batches = [batch for batch in status.batches if not groups_live_calls(batch.state)]
    unsent = any(batch.batch_id is None for batch in batches) or (
        not batches and RequestState.QUEUED in status.counts
    )
    if unsent and not status.finished:
        why = provider.contact.last_failure or waits
        go_on = run_delivery.how_to_reach(provider, run.id, options)
        say(f"not everything was sent: {why}; {go_on}")
        return Exit.PARKED
    if held := status.counts.get(RequestState.HELD):
        words = count_of(held, "request is", "requests are")
        say(f"{words} held until other requests of the run have ended")
    wait = options.command("resume", run.id)
    if not status.finished:
        say(f"sent. Wait for the answers with: {wait}")
        return Exit.OK
    place = status.output or run.forms().results_dir
    if place is not None and status.delivered is None:
        say(f"every request has ended. The next `advance` will write {place}. Write it now: {wait}")
    else:
        say(f"every request has ended. Write the answers with: {wait}")
    return Exit.OK
