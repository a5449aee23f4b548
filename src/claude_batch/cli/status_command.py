"""`claude-batch status`, `results`, `export` and `show`: read the ledger. None needs a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from claude_batch.cli.options import (
    ProviderOptions,
    complete_files,
    complete_requests,
    existing_ledger,
    folder_option,
    format_option,
    is_there,
    open_provider,
    optional_run_argument,
    output_path,
    reading_options,
    require_ledger,
    require_value,
    run_argument,
)
from claude_batch.cli.user_messages import (
    EXIT_CODES,
    Exit,
    print_drawn,
    print_json,
    print_line,
    require_stdout,
    say,
)
from claude_batch.core.quantities import count_of, dollars, format_time, roughly
from claude_batch.core.settings import without_password
from claude_batch.core.terminal import visible

if TYPE_CHECKING:
    from claude_batch.providers.export import Format
    from claude_batch.providers.run import Run
    from claude_batch.providers.transcript import Attempt, Part, ToolCall, Transcript

# Status command -----------------------------------------------------------------------------------


@click.command("status")
@optional_run_argument
@click.option(
    "--watch",
    is_flag=True,
    help="Show every change until the run ends, or until Ctrl-C; without RUN until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reading_options("ledger")
def status_command(
    run_id: str | None, watch: bool, as_json: bool, options: ProviderOptions
) -> None:
    """Show a run, or the newest 50; needs no key.

    RUN is a run's id, or its first characters if no other run has them.
    """
    if watch and as_json:
        raise click.UsageError("--watch shows changes to people; leave out --json")
    require_stdout()
    location = options.location
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

    with closing(Ledger(location)) as store:
        reader = StatusReader(store, run_id, options.completed)
        if watch:
            watch_status(store, reader)
            return
        report = reader.read()
    if as_json:
        print_json(report.to_dict())
    else:
        print_drawn(report.draw())


_output_option: Callable[[Any], Any] = click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="A file; by default standard output.",
    shell_complete=complete_files,
    callback=output_path,
)


@click.command("results", epilog=EXIT_CODES)
@run_argument
@_output_option
@format_option
@folder_option
@click.option(
    "--refetch",
    is_flag=True,
    help="First fetch missing and lost results again, free of charge; needs the key.",
)
@reading_options("ledger", "base_url", "api_key_env")
def results_command(
    run_id: str,
    output: str | None,
    form: Format | None,
    results_dir: str | None,
    refetch: bool,
    options: ProviderOptions,
) -> None:
    """Write a run's results again; needs no key.

    If the run is not finished, the results so far are written, and the exit code is 3.
    """
    from claude_batch.cli import run_delivery
    from claude_batch.ledger.deliveries import Forms

    run_delivery.check_output(output, results_dir, form, options.location)
    require_ledger(options.location)
    with run_delivery.parkable(), open_provider(options, drive=False) as provider:
        run = provider.open_run(run_id)
        # It makes the folder, so only for a run that exists.
        run_delivery.check_folder(results_dir, output)
        if refetch:
            _refetch(run, options)
        status = run.status()
        if not status.finished:
            if any(state.is_final for state in status.counts):
                run_delivery.write_partial(run, output, form, options.location, results_dir)
            elif (named := output or results_dir) is not None:
                say(f"there is no result yet; {named} is not written")
            say(f"{run.id} is not finished: {options.completed(status.waiting_for)}")
            raise SystemExit(Exit.PARKED)
        forms = Forms(form, results_dir)
        run_delivery.deliver(run, output, options, forms, is_just_named=True)
        raise SystemExit(Exit.FAILED if status.failed else Exit.OK)


def _refetch(run: Run, options: ProviderOptions) -> None:
    fetched = run.fetch_missing()
    for batch_id, reason in fetched.refused.items():
        say(f"the results of batch {batch_id} cannot be fetched: {reason}")
    if fetched.found:
        found = count_of(fetched.found, "missing result")
        say(f"found {found} of {run.id}, at no further cost")
    if fetched.missing:
        left = count_of(fetched.missing, "result")
        again = options.command("retry", run.id, "--only missing")
        if run.status().kind == "calls":  # which `retry` refuses
            again = options.command("unknown", run.id, "--resubmit")
        say(
            f"still missing: {left} of {run.id}. To send these requests again, which may be paid "
            f"for twice: {again}"
        )
    elif not fetched.found:
        say(f"{run.id} has no missing results that could be fetched again")


# Export -------------------------------------------------------------------------------------------


@click.command("export", epilog=EXIT_CODES)
@run_argument
@_output_option
@format_option
@reading_options("ledger")
def export_command(
    run_id: str, output: str | None, form: Format | None, options: ProviderOptions
) -> None:
    """Write the results of a run so far; needs no key.

    The run may be unfinished. Unlike `results`, this does not mark the run as delivered: its own
    output is still written later.
    """
    from claude_batch.cli import run_delivery

    run_delivery.check_output(output, None, form, options.location)
    require_ledger(options.location)
    with run_delivery.parkable(), open_provider(options, drive=False) as provider:
        run = provider.open_run(run_id)
        status = run.status()
        run_delivery.write_partial(run, output, form, options.location)
        if not status.finished:
            run_delivery.say_unfinished(run, status)
            raise SystemExit(Exit.PARKED)
        raise SystemExit(Exit.FAILED if status.failed else Exit.OK)


# Show ---------------------------------------------------------------------------------------------

_INDENT = "  "
"""Before each line of a text, so that no text can be taken for a heading of this command."""


@click.command("show", context_settings={"ignore_unknown_options": True})  # an id such as -5
@run_argument
@click.argument(
    "request_id", metavar="KEY", shell_complete=complete_requests, callback=require_value
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: everything, as it was sent and received."
)
@reading_options("ledger")
def show_command(run_id: str, request_id: str, as_json: bool, options: ProviderOptions) -> None:
    """Show a request from its prompt to its answer; needs no key.

    RUN is a run's id, or its first characters if no other run has them. KEY is the `id` of the
    request's output line.
    """
    require_stdout()
    with existing_ledger(options.location) as store:
        from claude_batch.providers.transcript import read_transcript

        found = read_transcript(store, run_id, request_id)
    if as_json:
        print_json(found.to_dict())
    else:
        print_line(visible("\n".join(_lines(found))))


def _lines(found: Transcript) -> Iterator[str]:
    from claude_batch.providers.transcript import prompt_of

    prompt = prompt_of(found.params)
    yield f"{found.run_id} {_one_line(found.id)}: {found.state}"
    if found.note is not None:
        yield f"note: {_one_line(found.note)}"
    yield f"request {found.number:,} of {_one_line(found.actor)}"
    for name, value in prompt.settings.items():
        yield f"{_one_line(name)}: {_one_line(value)}"
    if prompt.tools:
        yield f"tools: {_one_line(', '.join(prompt.tools))}"
    if prompt.system:
        yield from ("", "system:", *_texts(prompt.system))
    for turn in prompt.turns:
        yield from ("", f"{_one_line(turn.role)}:", *_texts(turn.parts))
    yield from _answer_lines(found)
    if found.tool_calls:
        yield from ("", "tools that ran here:")
        yield from (f"{_INDENT}{_call_words(call)}" for call in found.tool_calls)
    if found.attempts:
        yield from ("", "attempts:")
        yield from (f"{_INDENT}{_attempt_words(attempt)}" for attempt in found.attempts)
        unpriced = any(each.cost is None and each.outcome == "succeeded" for each in found.attempts)
        yield f"cost: {dollars(found.cost)}{' plus unpriced answers' if unpriced else ''}"


def _answer_lines(found: Transcript) -> Iterator[str]:
    from claude_batch.providers.transcript import answer_of, parts_of

    answer = found.answer
    if answer is None:
        yield from ("", "no answer" if found.state.is_final else "no answer yet")
        return
    message = answer_of(answer.line)
    if message is None:
        yield from ("", f"no answer: {_failure_words(answer)}")
        return
    yield from ("", f"answer ({_one_line(message.model)}, {_one_line(str(message.stop_reason))}):")
    yield from _texts(parts_of(message.content))


def _texts(parts: Iterable[Part]) -> Iterator[str]:
    """Yield the lines of parts; a part that is not plain text has a heading."""
    for part in parts:
        if part.kind != "text":
            heading = f"{part.kind}: {part.title}" if part.title else f"{part.kind}:"
            yield f"{_INDENT}[{_one_line(heading.rstrip(':'))}]"
        text = part.text.replace("\r\n", "\n").rstrip("\n")
        if text and part.kind != "document":  # its name and size stand in the heading
            yield from (f"{_INDENT}{line}" for line in text.split("\n"))
        for cited in part.citations:
            source = ", ".join(each for each in (cited.title, cited.place) if each)
            yield f"{_INDENT}[cites {_one_line(source)}: {_one_line(cited.text)!r}]"
        yield from (f"{_INDENT}{line}" for line in _texts(part.inside))


def _attempt_words(attempt: Attempt) -> str:
    words = [f"{attempt.number}: {attempt.outcome}", attempt.batch_id or "a live call"]
    if attempt.answered is not None:
        words.append(format_time(attempt.answered))
    if attempt.output_tokens:
        tokens = f"{attempt.input_tokens:,} tokens in, {attempt.output_tokens:,} out"
        if attempt.cache_read_tokens or attempt.cache_write_tokens:
            read, written = attempt.cache_read_tokens, attempt.cache_write_tokens
            tokens += f", cache {read:,} read and {written:,} written"
        words.append(tokens)
    if attempt.cost:
        words.append(dollars(attempt.cost))
    if attempt.message or attempt.error_type:
        words.append(_failure_words(attempt))
    return ", ".join(words)


def _failure_words(attempt: Attempt) -> str:
    words = (attempt.error_type or attempt.outcome, attempt.message)
    return _one_line(": ".join(each for each in words if each))


def _call_words(call: ToolCall) -> str:
    if call.finished is None:
        ended = "not finished"
    else:
        ended = "failed" if call.is_error else "succeeded"
        ended += f" after {roughly(call.finished - call.started)}"
    return f"{_one_line(call.name)}: started {format_time(call.started)}, {ended}"


def _one_line(text: str) -> str:
    """Return a text in which nothing begins a line of its own."""
    return " ".join(text.split("\n")) if "\n" in text else text
