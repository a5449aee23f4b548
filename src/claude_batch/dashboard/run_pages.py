"""The pages of a run and of one request.

A run's page has its progress, batches, outcomes, failures, distributions and requests. A request's
page has its prompt, each attempt and turn, and the answer with its citations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from markupsafe import Markup

from claude_batch.core.answer_parts import Citation
from claude_batch.core.errors import InvalidRequestError, RunNotFoundError
from claude_batch.core.quantities import roughly
from claude_batch.core.states import RequestState
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.dashboard.overview_pages import Span, attention_of, bar_of
from claude_batch.dashboard.page_renderer import LONGEST, render_markdown
from claude_batch.ledger import page_queries, queries
from claude_batch.ledger.live_calls import groups_live_calls
from claude_batch.ledger.page_queries import TIME_STEPS, TOKEN_STEPS, FailedRequest
from claude_batch.ledger.store import Record
from claude_batch.providers.failure_report import message_of_line
from claude_batch.providers.progress import run_end
from claude_batch.providers.status import RunStatus, require_run
from claude_batch.providers.transcript import (
    Attempt,
    Part,
    Transcript,
    answer_of,
    parts_of,
    prompt_of,
    transcript_of,
)

# Run ----------------------------------------------------------------------------------------------

ROWS: Final = 50
"""Requests on a page."""

_BATCHES: Final = 20
"""Batches of the timeline: the newest."""

_LAST_POSITION: Final = 10**9
"""A position that no run reaches. With what a search adds to it, a database still takes it."""

_SAMPLE: Final = 1000
"""Failures that are read to group them by the API's words."""


def run_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of a run. Raises `RunNotFoundError`."""
    snapshot = reader.snapshot
    status = reader.status(values["run_id"])
    total = snapshot.costs.total(status.run_id)
    tokens, seconds = snapshot.costs.distributions(status.run_id)
    with reader.ledger.read() as tx:
        row = queries.run_row(tx, status.run_id)
        batches = queries.batches_of_run(tx, status.run_id, newest=_BATCHES)
        batches_in_all = page_queries.batch_count(tx, status.run_id)
        failed: list[FailedRequest] = []
        if status.failed:
            failed = page_queries.failed_requests(tx, status.run_id, _SAMPLE, failed=status.failed)
        now = reader.ledger.now()
        end = run_end(tx, status, now=now)
    bar = bar_of(status.counts, status.total)
    return {
        "snapshot": snapshot,
        "status": status,
        "run": row,
        "bar": bar,
        "total": total,
        "expected_cost": _expected_cost(status, total.cost, total.results - total.failed),
        "ends_in": None if end is None else end - now,
        "attention": [
            each for each in attention_of(snapshot, reader.ledger) if each.run_id == status.run_id
        ],
        "unknown": any(each.run_id == status.run_id for each in snapshot.unknown),
        "budget": snapshot.budget("run", status.run_id),
        "outcomes": [(s, status.counts[s]) for s in RequestState if status.counts.get(s)],
        "timeline": timeline_of(batches, now),
        "batches_in_all": batches_in_all,
        "failures": failures_of(failed),
        "failures_sampled": len(failed) == _SAMPLE,
        "tokens": _plot(tokens, [f"{step:,}" for step in TOKEN_STEPS]),
        "seconds": _plot(seconds, [roughly(step) for step in TIME_STEPS]),
        "requests": requests_of(reader, status, values),
    }


def _expected_cost(status: RunStatus, cost: int, answered: int) -> int | None:
    """Return what the run will have cost if its other answers cost as much as those so far."""
    if status.finished or not answered:
        return None
    open_requests = sum(n for state, n in status.counts.items() if not state.is_final)
    return cost + cost * open_requests // answered


# Timeline -----------------------------------------------------------------------------------------


class Timeline(NamedTuple):
    """The newest batches of a run, oldest first. Times are seconds since the epoch."""

    begin: float
    end: float
    lines: tuple[tuple[Record, list[Span]], ...]
    """Rows of batches, and what is drawn for each."""


def timeline_of(batches: list[Record], now: float) -> Timeline | None:
    """Return the timeline of batches, which come newest first; None without any."""
    rows = [row for row in reversed(batches) if not groups_live_calls(row.state)]
    if not rows:
        return None
    begin = min(row.created for row in rows)
    # A batch may be newer than ``now``, because a process can know the server's time inexactly.
    ends = [
        row.collected
        if row.collected is not None
        else max(now, row.created, row.submitted or 0.0, row.ended or 0.0)
        for row in rows
    ]
    end = max(*ends, begin + 1.0)
    whole = end - begin

    def span(tone: str, start: float | None, stop: float | None) -> list[Span]:
        if start is None or stop is None or stop < start:
            return []
        left = 100 * (start - begin) / whole
        # A moment is drawn too, so that no batch is invisible.
        return [Span(tone, round(left, 2), round(max(100 * (stop - start) / whole, 0.4), 2))]

    def spans(row: Record, last: float) -> list[Span]:
        sent = row.submitted if row.submitted is not None else last
        return [
            *span("rest", row.created, sent),
            *span("busy", row.submitted, row.ended if row.ended is not None else last),
            *span("good", row.ended, last),
        ]

    lines = tuple((row, spans(row, last)) for row, last in zip(rows, ends, strict=True))
    return Timeline(begin, end, lines)


# Failures -----------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """Failures with the same words."""

    kind: str
    words: str
    number: int
    examples: tuple[FailedRequest, ...]


def failures_of(failed: list[FailedRequest]) -> list[Failure]:
    """Group failed requests by the API's words, the most frequent first."""
    alike: defaultdict[tuple[str, str], list[FailedRequest]] = defaultdict(list)
    for each in failed:
        alike[each.error_type or each.state.value, message_of_line(each.raw)].append(each)
    largest = sorted(alike.items(), key=lambda group: -len(group[1]))[:20]
    return [Failure(kind, words, len(group), tuple(group[:3])) for (kind, words), group in largest]


# Distributions ------------------------------------------------------------------------------------


def _plot(counts: list[int], names: list[str]) -> list[tuple[str, tuple[int]]]:
    """Return the counted groups with their names, without empty ones at both ends."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return []
    named = [
        f"from {name}" if place == len(names) - 1 else f"{name} – {names[place + 1]}"
        for place, name in enumerate(names)
    ]
    rows = [(name, (count,)) for name, count in zip(named, counts, strict=True)]
    return rows[filled[0] : filled[-1] + 1]


# Requests -----------------------------------------------------------------------------------------


class RequestList(NamedTuple):
    """A page of a run's requests."""

    rows: tuple[page_queries.RequestRow, ...]
    state: str
    key: str
    after: int
    following: int | None
    """The position after which the next page begins; None at the end."""
    searched_to: int | None
    """The last position that was looked at, if the search stopped before the end."""


def requests_of(reader: LedgerReader, status: RunStatus, values: Mapping[str, str]) -> RequestList:
    """Read a page of a run's requests, as the query asks."""
    try:
        after = int(values.get("after", "-1"))
        if not -1 <= after <= _LAST_POSITION:
            raise ValueError
        state = RequestState(values["state"]) if values.get("state") else None
    except ValueError:
        raise InvalidRequestError("the address names no state or no position") from None
    key = values.get("key", "").strip()
    with reader.ledger.read() as tx:
        found = page_queries.requests_after(
            tx, status.run_id, after, ROWS + 1, state=state, key=key
        )
    rows = tuple(found[:ROWS])
    following = rows[-1].position if len(found) > ROWS else None
    searched_to = None
    last = after + page_queries.SEARCHED
    if following is None and (state is not None or key) and last < status.total - 1:
        following = searched_to = last
    return RequestList(rows, state or "", key, after, following, searched_to)


# One request --------------------------------------------------------------------------------------

_MESSAGES: Final = 60
"""Messages of a conversation that are shown: the newest."""

_BLOCKS: Final = 100
"""Blocks of one message that are shown."""


class Block(NamedTuple):
    """A part of a prompt or of an answer, as far as it is shown."""

    kind: str
    title: str
    text: str
    """The beginning of it, if it is long."""
    left_out: int
    """Number of characters that are not shown."""
    rendered: Markup | None = None
    """The text of an answer as HTML."""
    citations: tuple[tuple[int, Citation], ...] = ()
    """Numbered passages of documents that it cites."""


def request_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of a request. Raises `RunNotFoundError`."""
    status = reader.status(values["run_id"])
    request, found = _read(reader, status.run_id, values["number"])
    prompt = prompt_of(found.params)
    answer, reason, model = _answer(found.answer)
    return {
        "snapshot": reader.snapshot,
        "status": status,
        "request": request,
        "found": found,
        "turns": [(turn.role, _blocks(turn.parts)) for turn in prompt.turns[-_MESSAGES:]],
        "turns_left_out": max(0, len(prompt.turns) - _MESSAGES),
        "system": _blocks(prompt.system),
        "settings": [(name, value[:500]) for name, value in prompt.settings.items()],
        "tools": prompt.tools,
        "answer": answer,
        "citations": [each for block in answer for each in block.citations],
        "stop_reason": reason,
        "model": model or prompt.settings.get("model", ""),
        "calls": [(call, *_cut(_output_text(call.output))) for call in found.tool_calls],
        "raw": "" if found.answer is None else _pretty(found.answer.line),
        "raw_params": _pretty(found.params),
        "before": found.number - 1,
        "following": found.number + 1 if found.number < status.total else None,
    }


def _read(reader: LedgerReader, run_id: str, number: str) -> tuple[Record, Transcript]:
    with reader.ledger.read() as tx:
        run = require_run(reader.ledger, tx, run_id)
        request = None
        if number.isdecimal() and len(number) < 10:
            request = page_queries.request_at(tx, run.id, int(number) - 1)
        if request is None:
            raise RunNotFoundError(f"{run.id} has no request {number[:30]!r}")
        return request, transcript_of(tx, run, request)


def raw_of(reader: LedgerReader, values: Mapping[str, str]) -> tuple[str, bytes]:
    """Return a name for a file, and a request's params or one of its result lines, as stored.

    Raises `RunNotFoundError`.
    """
    _, found = _read(reader, values["run_id"], values["number"])
    name = f"{found.run_id}-{found.number}"
    if values["what"] == "params":
        return f"{name}-params.json", found.params
    for attempt in found.attempts:
        if values["what"] == f"result-{attempt.number}":
            return f"{name}-result-{attempt.number}.json", attempt.line
    raise RunNotFoundError(f"request {found.number} of {found.run_id} has no such part")


# Prompts and answers ------------------------------------------------------------------------------


def _blocks(parts: Iterable[Part]) -> list[Block]:
    return [_block(part) for part in tuple(parts)[:_BLOCKS]]


def _block(part: Part, longest: int = LONGEST) -> Block:
    return Block(part.kind, part.title[:300], *_cut(part.text or _text_of(part.inside), longest))


def _text_of(parts: Iterable[Part]) -> str:
    return "\n".join(part.text or part.title for part in parts)


def _cut(text: str, longest: int = LONGEST) -> tuple[str, int]:
    return text[:longest], max(0, len(text) - longest)


def _answer(attempt: Attempt | None) -> tuple[list[Block], str, str]:
    """Return the blocks of an answer, why it stopped, and the model."""
    message = None if attempt is None else answer_of(attempt.line)
    if message is None:
        return [], "", ""
    blocks: list[Block] = []
    number, left = 0, LONGEST
    for part in parts_of(message.content)[:_BLOCKS]:
        # Together: a second of CPU may go into rendering so much Markdown.
        block = _block(part, left)
        left -= len(block.text)
        if part.kind == "text":
            numbered = tuple(enumerate(part.citations, number + 1))
            number += len(part.citations)
            block = block._replace(rendered=render_markdown(block.text), citations=numbered)
        blocks.append(block)
    return blocks, message.stop_reason or "", message.model


def _output_text(output: bytes | None) -> str:
    if output is None:
        return ""
    try:
        return _text_of(parts_of(msgspec.json.decode(output)))
    except (msgspec.DecodeError, RecursionError):
        return output.decode("utf-8", "replace")


def _pretty(raw: bytes) -> str:
    """Return JSON for people; the beginning of what is long."""
    if len(raw) > LONGEST:
        return raw[:LONGEST].decode("utf-8", "replace") + " …"
    try:
        return msgspec.json.format(raw).decode("utf-8", "replace")
    except (msgspec.DecodeError, RecursionError):
        return raw.decode("utf-8", "replace")
