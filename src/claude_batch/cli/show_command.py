"""`claude-batch show`: one request from its prompt to its answer. Needs no key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from claude_batch.cli.completion import complete_requests, run_argument
from claude_batch.cli.existing_ledger import require_ledger
from claude_batch.cli.options import option
from claude_batch.cli.user_messages import print_json, print_line, require_stdout
from claude_batch.core.ledger_location import default_ledger
from claude_batch.core.quantities import dollars, format_time, roughly
from claude_batch.core.terminal import visible

if TYPE_CHECKING:
    from claude_batch.providers.transcript import Attempt, Part, ToolCall, Transcript

_INDENT = "  "
"""Before each line of a text, so that no text can be taken for a heading of this command."""


@click.command("show")
@run_argument
@click.argument("request_id", metavar="KEY", shell_complete=complete_requests)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: everything, as it was sent and received."
)
@option("ledger")
def show_command(run_id: str, request_id: str, as_json: bool, ledger: str | None) -> None:
    """Show a request from its prompt to its answer; needs no key.

    RUN is a run's id, or its first characters if no other run has them. KEY is the `id` of the
    request's output line.
    """
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.transcript import read_transcript

    require_stdout()
    location = default_ledger(ledger)
    require_ledger(location)
    store = Ledger(location)
    try:
        found = read_transcript(store, run_id, request_id)
    finally:
        store.close()
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
