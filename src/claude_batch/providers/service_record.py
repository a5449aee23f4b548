"""A record of what the batch endpoints send: names, types and formats, and no values.

`Recording` makes calls that are the same for the service and for the sandbox. `compare` then names
each field, header and status in which two records differ. A record contains no key, no id and no
text of an answer, so that it can be published.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from claude_batch.core.quantities import count_of
from claude_batch.core.terminal import visible
from claude_batch.money.prices import Prices
from claude_batch.providers.health_checks import versions
from claude_batch.wire.bounds import token_bound
from claude_batch.wire.connection import Connection, Unreachable
from claude_batch.wire.error_table import ApiFault, fault_of_response
from claude_batch.wire.inbound import Redaction, check_id, check_text, mapping_or_none

if TYPE_CHECKING:
    import httpx2

# Shapes -------------------------------------------------------------------------------------------

Shape = dict[str, list[str]]
"""Each field's path, such as ``request_counts.processing``, and the kinds of its values."""

_WORDS = frozenset(
    ("type", "role", "processing_status", "service_tier", "error_visibility", "last_line_break")
)
"""Fields whose values are a part of the format."""

_FREE = frozenset(("input",))
"""Fields whose content follows a schema of the caller."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(Z|[+-]\d\d:\d\d)")
_ID = re.compile(r"([a-z]{2,12})_(?=[A-Za-z_-]*\d)[0-9A-Za-z_-]{6,}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MODEL = re.compile(r"claude-[a-z0-9-]+?(-\d{8})?")
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[a-z0-9_./-]{1,64}")
_MOST_CHARACTERS = 300
"""Of a message or a field's path, so that a report stays readable whatever a server sends."""


def text_format(text: str) -> str:
    """Return the format of a text: a time, an id, a URL, a model's name, or plain text."""
    if found := _TIME.fullmatch(text):
        return f"time ending in {found[1]}"
    if _UUID.fullmatch(text):
        return "uuid"
    if found := _MODEL.fullmatch(text):
        return "model with a date" if found[1] else "model without a date"
    if found := _ID.fullmatch(text):
        return f"id {found[1]}_…"
    if text.startswith(("https://", "http://")):
        return "url"
    if _NUMBER.fullmatch(text):
        return "digits"
    return "text" if text else "empty text"


def masked(text: str) -> str:
    """Return a message of the API without ids."""
    return _ID.sub(r"\1_…", _UUID.sub("…", text))[:_MOST_CHARACTERS]


def shape_of(value: object) -> Shape:
    """Return the shape of decoded JSON."""
    found: dict[str, set[str]] = {}
    _look(value, "", "", found)
    return {path: sorted(kinds) for path, kinds in sorted(found.items())}


def _look(value: object, path: str, name: str, found: dict[str, set[str]]) -> None:
    kind = _kind(value, path, name)
    if path or not isinstance(value, dict):
        found.setdefault(path, set()).add(kind)
    if name in _FREE:
        return
    if isinstance(value, dict):
        for key, each in cast("dict[str, object]", value).items():
            inner = f"{path}.{key}" if path else key
            _look(each, inner[:_MOST_CHARACTERS], key, found)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            _look(each, f"{path}[]", "", found)


_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


def _kind(value: object, path: str, name: str) -> str:
    if (kind := _KINDS.get(type(value))) is not None:
        return kind
    text = str(value)
    if path.endswith("error.message"):
        return f'"{masked(text)}"'
    is_word = name in _WORDS and _WORD.fullmatch(text)
    return f'"{text}"' if is_word else text_format(text)


# Records ------------------------------------------------------------------------------------------

_COMPARED = frozenset(
    ("content-disposition", "content-type", "request-id", "retry-after", "x-should-retry")
)
"""Headers that are compared, besides those that begin with ``anthropic-``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The shape of one response, or of one line of results."""

    status: int | None = None
    """The HTTP status; None for a line."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """The format of each header that belongs to the API."""
    other_headers: list[str] = field(default_factory=list[str])
    """Names of headers of the transport, which are not compared."""
    body: Shape = field(default_factory=Shape)


def observe(status: int, headers: Mapping[str, str], body: object) -> Observed:
    """Return the shape of a response with a decoded body."""
    compared: dict[str, str] = {}
    others: list[str] = []
    for name, value in sorted((name.lower(), value) for name, value in headers.items()):
        word = value.partition(";")[0].strip().lower()
        if name in ("content-type", "x-should-retry") and _WORD.fullmatch(word):
            compared[name] = word
        elif name in _COMPARED or name.startswith("anthropic-"):
            compared[name] = text_format(value)
        else:
            others.append(name)
    return Observed(status=status, headers=compared, other_headers=others, body=shape_of(body))


def whole_results(content: bytes) -> dict[str, str]:
    """Return what is observed of results as a whole; the lines are observed one by one."""
    return {"last_line_break": "present" if content.endswith(b"\n") else "absent"}


def observe_line(line: object) -> Observed:
    """Return the shape of a decoded line of results."""
    return Observed(body=shape_of(line))


Record = dict[str, Observed]
"""The observations of each step, in the order of the calls."""


def record_dict(record: Record) -> dict[str, Any]:
    """Return plain values for JSON."""
    return {step: asdict(observed) for step, observed in record.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place in which a service answers differently from what was expected."""

    step: str
    what: str
    """``status``, ``header NAME`` or ``field PATH``."""
    service: str
    """The forms that the service sends; empty if it sends nothing there."""
    expected: str

    def __str__(self) -> str:
        """Return one line for people."""
        sends = f"sends {self.service}" if self.service else "does not send it"
        wanted = f"sends {self.expected}" if self.expected else "does not send it"
        return f"{self.step}: {self.what}: the service {sends}, the sandbox {wanted}"


def compare(service: Record, expected: Record) -> list[Difference]:
    """Return the differences in the steps that both records have."""
    found: list[Difference] = []
    for step, theirs in service.items():
        if (ours := expected.get(step)) is None:
            continue
        left, right = _facts(theirs), _facts(ours)
        found += [
            Difference(
                step=step, what=what, service=left.get(what, ""), expected=right.get(what, "")
            )
            for what in sorted(left.keys() | right.keys())
            if left.get(what) != right.get(what)
        ]
    return found


def unseen(service: Record, expected: Record) -> list[str]:
    """Return the steps that only one of two records has."""
    return [step for step in {**expected, **service} if (step in service) != (step in expected)]


def _facts(observed: Observed) -> dict[str, str]:
    facts = {f"header {name}": value for name, value in observed.headers.items()}
    for path, kinds in observed.body.items():
        facts[f"field {path}" if path else "body"] = " or ".join(kinds)
    if observed.status is not None:
        facts["status"] = str(observed.status)
    return facts


# Calls --------------------------------------------------------------------------------------------

_BATCHES = "/v1/messages/batches"
_ABSENT = "msgbatch_01AAAAAAAAAAAAAAAAAAAAAA"
_BAD_KEY = "sk-ant-invalid-key-of-claude-batch-doctor"
_UNKNOWN_MODEL = "claude-doctor-unknown"
_LISTED = 20
_CALL_SECONDS = 60.0

Pause = Callable[[], Awaitable[None]]
"""Waits until it is time to look at the batches again."""


class CallFailed(Exception):
    """A call on which all others depend was refused, or its answer could not be read."""

    def __init__(self, message: str, fault: ApiFault | None = None) -> None:
        super().__init__(message)
        self.fault = fault


class _Answer(msgspec.Struct, frozen=True):
    """A response whose body was read, without credentials."""

    status: int
    headers: Mapping[str, str]
    value: object
    """The decoded body, or None if it is no JSON."""
    content: bytes

    def text(self, name: str) -> str | None:
        """Return a text field of the body."""
        return _text_of(self.value, name)


def requests_for(model: str) -> list[dict[str, Any]]:
    """Return the three requests of the batch that is awaited: one text, one tool call, one error.

    An unknown model makes an errored line, which is not billed.
    """
    tool = {
        "name": "note",
        "description": "Note a word.",
        "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}},
    }
    called = {"tools": [tool], "tool_choice": {"type": "tool", "name": "note"}}
    return [
        _request("doctor-text", model, "Say: ok"),
        _request("doctor-tool", model, "Note the word: ok", **called),
        _request("doctor-error", _UNKNOWN_MODEL, "Say: ok"),
    ]


def _request(custom_id: str, model: str, prompt: str, **extra: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    params = {"model": model, "max_tokens": 64, "messages": messages, **extra}
    return {"custom_id": custom_id, "params": params}


def _withdrawn(model: str) -> list[dict[str, Any]]:
    """Return the request of the batch that is cancelled."""
    return [_request("doctor-cancel", model, "Say: ok")]


def _doubled(model: str) -> list[dict[str, Any]]:
    """Return requests that the API refuses, because their ids are equal."""
    return [_request("doctor-twice", model, "Say: ok")] * 2


def most_cost(model: str, prices: Prices, *, at: float) -> int | None:
    """Return an upper bound of what a recording costs, in nano-dollars; None without a price.

    It includes the requests that the API should refuse or cancel.
    """
    tariff = prices.tariff(model, at=at)
    if tariff is None:
        return None
    total = 0
    for request in (*requests_for(model), *_withdrawn(model), *_doubled(model)):
        bound = token_bound(msgspec.json.encode(request["params"]))
        total += tariff.ceiling(
            input=bound.input, output=bound.output, us_only=bound.us_only, batch=True
        )
    return total


class Recording:
    """The calls to one service, in a fixed order. Belongs to one event loop.

    All attributes are valid at any moment, also if `make` is cancelled.
    """

    def __init__(
        self, connection: Connection, model: str, pause: Pause, *, seconds: float = 3600.0
    ) -> None:
        """Set up the calls. ``seconds`` bounds the wait for the batches to end."""
        self._connection = connection
        self._model = model
        self._pause = pause
        self._seconds = seconds
        self.record: Record = {}
        self.batches: dict[str, str] = {}
        """The batches that it created and that are still at the API, with their last status."""
        self.notes: list[str] = []
        """The steps that could not be observed, each with the reason."""
        self.uncertain: bool = False
        """Whether a POST had no readable answer, so that it may have created a batch."""

    async def make(self) -> None:
        """Make all calls. Raises `CallFailed`, `Unreachable`, `TimeoutError`.

        Batches that have not ended in time, or could not be deleted, stay in ``batches``.
        """
        awaited = await self._create("create", requests_for(self._model))
        if awaited is None:
            raise CallFailed("the answer to the first batch has no id")
        early = await self._send("GET", f"{_BATCHES}/{awaited}/results")
        self._see_unless(early.status == 200, "early results", early)
        answer = await self._get(awaited)
        is_over = answer.text("processing_status") == "ended"
        self._see_unless(is_over, "batch in progress", answer)
        await self._list(awaited)
        withdrawn = await self._create("", _withdrawn(self._model))
        canceled = False
        if withdrawn is not None and not await self._delete("early delete", withdrawn):
            canceled = await self._cancel(withdrawn)
        await self._refusals()
        end = time.monotonic() + self._seconds
        while (left := self._unfinished()) and time.monotonic() < end:
            await self._pause()
            for batch_id in left:
                await self._get(batch_id)
        await self._ended("", awaited)
        if withdrawn is not None and canceled:
            await self._ended(" of a canceled batch", withdrawn)
        for batch_id in self.batches.keys() - self._unfinished():
            await self._delete("delete", batch_id)

    def reason(self, error: Exception) -> str:
        """Return why a call had no answer, without credentials."""
        if isinstance(error, TimeoutError):
            return f"no complete answer within {_CALL_SECONDS:g} s"
        if isinstance(error, Unreachable):
            return error.reason
        return self._connection.redaction.reason(error)

    def _unfinished(self) -> list[str]:
        return [each for each, status in self.batches.items() if status != "ended"]

    async def _create(self, step: str, requests: Sequence[Mapping[str, Any]]) -> str | None:
        """POST a batch; return its id, or None if it was refused."""
        body = msgspec.json.encode({"requests": requests})
        before = self.uncertain
        try:
            # From here to the answer it is unknown whether there is a batch.
            self.uncertain = True
            answer = await self._send("POST", _BATCHES, content=body)
        except Unreachable as error:
            self.uncertain = before or not error.never_connected
            raise
        batch_id = _id_of(answer)
        if 200 <= answer.status < 300:
            self._see(step, answer)
            self.uncertain = before or batch_id is None
            if batch_id is not None:
                self.batches[batch_id] = answer.text("processing_status") or ""
            return batch_id
        fault = fault_of_response(
            answer.status, answer.headers, answer.content, self._connection.redaction
        )
        self.uncertain = before or not fault.is_not_billed
        if fault.account_reason is None:  # an account error proves nothing about a batch
            self._see(step, answer)
        if step == "create":
            raise CallFailed(f"the first batch was refused: {fault.describe()}", fault)
        return None

    async def _list(self, batch_id: str) -> None:
        """Record a page of the list, without the workspace's other batches."""
        answer = await self._send("GET", _BATCHES, params={"limit": _LISTED})
        page = mapping_or_none(answer.value) or {}
        data: object = page.get("data")
        if not isinstance(data, list):
            self._see("list", answer)
            return
        own = [each for each in cast("list[Any]", data) if _text_of(each, "id") == batch_id]
        if not own:
            self.notes.append("list: the new batch is not among the newest")
        elif _text_of(own[0], "processing_status") == "ended":
            self.notes.append("list: the batch had ended already")
        else:
            self._see("list", answer, {**page, "data": own})

    async def _refusals(self) -> None:
        """Record calls that the API refuses."""
        await self._create("duplicate ids", _doubled(self._model))
        await self._create("no requests", [])
        self._see("unknown batch", await self._get(_ABSENT))
        answer = await self._send("GET", f"{_BATCHES}/{_ABSENT}/results")
        self._see("results of an unknown batch", answer)
        # In the header of a key, and without the good credential.
        nobody = Connection(base_url=self._connection.base_url, api_key="")
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                response = await nobody.send("GET", _BATCHES, headers={"x-api-key": _BAD_KEY})
        finally:
            await nobody.aclose()
        self._see("bad key", _answer_of(response, nobody.redaction))

    async def _ended(self, suffix: str, batch_id: str) -> None:
        """Record an ended batch and its results."""
        if self.batches.get(batch_id) != "ended":
            self.notes.append(f"batch ended{suffix}: it has not ended in time")
            return
        self._see(f"batch ended{suffix}", await self._get(batch_id))
        answer = await self._send("GET", f"{_BATCHES}/{batch_id}/results")
        if answer.status != 200:
            self._see(f"results{suffix}", answer)
            return
        self._see(f"results{suffix}", answer, whole_results(answer.content))
        for step, line in self._lines(answer.content):
            self.record[step] = observe_line(line)

    def _lines(self, content: bytes) -> Iterator[tuple[str, object]]:
        """Yield the lines of results with the name of their step."""
        for raw in content.splitlines():
            line = _decoded(raw)
            name = _text_of(line, "custom_id") or ""
            kind = _text_of((mapping_or_none(line) or {}).get("result"), "type")
            if name == "doctor-cancel" and kind != "canceled":
                self.notes.append(f"line doctor-cancel: it was {kind} before the cancellation")
            elif name in ("doctor-text", "doctor-tool", "doctor-error", "doctor-cancel"):
                yield f"line {name}", line
            else:
                yield "line of another request", line

    async def _get(self, batch_id: str) -> _Answer:
        """GET a batch, and note its status."""
        answer = await self._send("GET", f"{_BATCHES}/{batch_id}")
        self._note_status(answer)
        return answer

    async def _cancel(self, batch_id: str) -> bool:
        """Cancel a batch; return whether it had not ended before."""
        answer = await self._send("POST", f"{_BATCHES}/{batch_id}/cancel")
        self._note_status(answer)
        found = answer if answer.status == 200 else await self._get(batch_id)
        is_over = found.text("processing_status") == "ended"
        self._see_unless(is_over, "batch canceling", answer)
        return not is_over

    async def _delete(self, step: str, batch_id: str) -> bool:
        """DELETE a batch; return whether it is gone."""
        answer = await self._send("DELETE", f"{_BATCHES}/{batch_id}")
        is_gone = answer.status == 200
        if is_gone:
            del self.batches[batch_id]
        self._see_unless(is_gone and step != "delete", step, answer)
        return is_gone

    def _note_status(self, answer: _Answer) -> None:
        batch_id, status = answer.text("id"), answer.text("processing_status")
        if batch_id in self.batches and status is not None:
            self.batches[batch_id] = status

    async def _send(self, method: str, path: str, **sent: Any) -> _Answer:
        async with asyncio.timeout(_CALL_SECONDS):
            response = await self._connection.send(method, path, **sent)
        return _answer_of(response, self._connection.redaction)

    def _see_unless(self, is_over: bool, step: str, answer: _Answer) -> None:
        """Record a response, unless the batch ended before the call."""
        if is_over:
            self.notes.append(f"{step}: the batch had ended already")
        else:
            self._see(step, answer)

    def _see(self, step: str, answer: _Answer, body: object = None) -> None:
        """Record the first response of a step; "" records nothing."""
        if step and step not in self.record:
            shown = answer.value if body is None else body
            self.record[step] = observe(answer.status, answer.headers, shown)


def _answer_of(response: httpx2.Response, redaction: Redaction) -> _Answer:
    content = redaction.text(response.content.decode("utf-8", "replace")).encode()
    return _Answer(response.status_code, response.headers, _decoded(content), content)


def _decoded(content: bytes) -> object:
    try:
        check_text(content)
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _text_of(value: object, name: str) -> str | None:
    found = (mapping_or_none(value) or {}).get(name)
    return found if isinstance(found, str) else None


def _id_of(answer: _Answer) -> str | None:
    try:
        return check_id(answer.text("id") or "")
    except ValueError:
        return None


# Report -------------------------------------------------------------------------------------------


class Report:
    """A record of the service beside that of the sandbox, safe to publish."""

    def __init__(
        self, model: str, expected: Record, recording: Recording, failure: str = ""
    ) -> None:
        """Compare a recording, which may have ended early because of ``failure``."""
        self._model = model
        self._expected = expected
        self._record, self._notes = recording.record, recording.notes
        self._failure = masked(failure)
        self._when = time.strftime("%Y-%m-%d", time.gmtime())
        self.differences: list[Difference] = compare(recording.record, expected)
        self._unseen = unseen(recording.record, expected)

    def summary(self) -> list[str]:
        """Return lines for people: each difference, and what could not be compared."""
        compared = len(self._record.keys() & self._expected.keys())
        lines = [f"differs  {each}" for each in self.differences]
        if not self._failure:
            lines += [f"unseen   {step}" for step in self._unseen]
        lines += [f"note     {note}" for note in self._notes]
        if self._failure:
            lines.append(f"ended    {self._failure}")
        count = count_of(len(self.differences), "difference")
        lines.append(f"{count} from the sandbox in {compared} responses and lines")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "date": self._when,
            "versions": versions(),
            "model": self._model,
            "failure": self._failure,
            "differences": [asdict(each) for each in self.differences],
            "unseen": self._unseen,
            "notes": self._notes,
            "service": record_dict(self._record),
            "sandbox": record_dict(self._expected),
        }

    def markdown(self) -> str:
        """Return the report as Markdown, for an issue."""
        used = ", ".join(f"{name} {version}" for name, version in versions().items())
        lines = [
            "# What the Message Batches API sends",
            "",
            f"{self._when}, {used}, model {self._model}",
            "",
            *(f"- {_escaped(line)}" for line in self.summary()),
        ]
        for step, observed in self._record.items():
            lines += ["", f"## {step}", ""]
            lines += ["| what | kind |", "|---|---|"]
            lines += [
                f"| {_escaped(what)} | {_escaped(kind)} |"
                for what, kind in _facts(observed).items()
            ]
            if observed.other_headers:
                lines += ["", f"Other headers: {_escaped(', '.join(observed.other_headers))}"]
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", visible(text).replace("\n", " "))
