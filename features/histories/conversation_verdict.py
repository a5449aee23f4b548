"""What must hold of conversations: each turn follows from the one before, and is paid for once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from claude_batch.core.settings import LedgerSettings
from claude_batch.lifecycle.tool_runner import ToolOutput
from claude_batch.wire.conversation import ToolUse
from claude_batch.wire.encoding import parse_custom_id
from histories.api import COST, Remote, SimulatedApi
from histories.ledger_rows import Row
from histories.live_api import LIVE_COST, LivePlan
from histories.live_machine import LiveVerdict

if TYPE_CHECKING:
    from histories.conversation_machine import ConversationProcess

__all__ = ["KINDS", "TOOLS", "ConversationVerdict", "ToolRun"]

KINDS = [
    "final", "invalid", "doubted", "pause", "look", "write", "both", "gone", "theirs", "refused"
]  # fmt: skip
"""What an answer may be: its end, of the wrong form, of a form that only the caller's own function
rejects, a pause, or calls of tools."""
PATIENCE = 60.0
"""Seconds for which a driver waits at least for a process that has such a function."""
_CALLED = {
    "look": ["look"],
    "write": ["write"],
    "both": ["look", "write"],
    "gone": ["gone"],
    "theirs": ["look", "theirs"],
}
_STOPS = {"pause": "pause_turn", "refused": "refusal", **dict.fromkeys(_CALLED, "tool_use")}


@dataclass(frozen=True, slots=True)
class SimulatedTool:
    """A function of the user. The machine runs it."""

    name: str
    repeatable: bool
    timeout: float = 60.0
    is_async: bool = False

    def run(self, arguments: bytes) -> ToolOutput:
        raise AssertionError("the machine runs tools")

    def failed(self, words: str) -> ToolOutput:
        return json.dumps(words).encode(), True


TOOLS = {"look": SimulatedTool("look", True), "write": SimulatedTool("write", False)}


@dataclass(eq=False, slots=True)
class ToolRun:
    """A function that runs, or has run."""

    process: ConversationProcess
    use: ToolUse
    done: Callable[[ToolOutput], None]
    ended: bool = False


class Sent(NamedTuple):
    """A turn as it was sent, and what it is answered if it is processed."""

    params: dict[str, Any]
    kind: str
    message: dict[str, Any]
    cost: int
    at: float
    """When it was sent."""


class ConversationVerdict(LiveVerdict):
    """The judge of conversations."""

    def __init__(self, api: SimulatedApi, path: Path, settings: LedgerSettings) -> None:
        super().__init__(api, path, settings)
        self.spoken = ["look", "invalid", "pause", "write", "final"]
        """What the next answers are, again and again."""
        self._said = 0
        self._turn: dict[str, dict[str, Any]] = {}
        """By request id: the params of its present turn."""
        self._sent: defaultdict[str, dict[int, Sent]] = defaultdict(dict)
        """By request id: the sendings of its present turn."""
        self._chain: defaultdict[str, list[Sent]] = defaultdict(list)
        """By request id: the answers that its conversation has continued from."""
        self._live_answers: dict[tuple[str, int], Sent] = {}
        self.tool_runs: defaultdict[str, list[ToolRun]] = defaultdict(list)
        """By the API's id of a call: the runs of its function."""
        self.outputs: defaultdict[str, list[ToolOutput]] = defaultdict(list)
        self.retried: set[str] = set()
        """Requests that were asked again after a failure, on order."""
        self._ever_cancelled: set[str] = set()
        self.judges: dict[str, ConversationProcess] = {}
        """The process that has the caller's own function for a run, dead or alive."""
        self._judging: set[str] = set()
        self._judged: set[str] = set()
        """Texts that a process which does not drive has judged, so that the verdict is stored."""

    # Turns ---------------------------------------------------------------------------------

    def _speak(self, params: dict[str, Any], cost: int) -> Sent:
        """Decide what a turn is answered."""
        kind = self.spoken[self._said % len(self.spoken)]
        self._said += 1
        words = f"{kind} answer {self._said}"
        is_json = kind in ("final", "doubted")
        text = {"type": "text", "text": json.dumps(words) if is_json else words}
        calls = [
            {"type": "tool_use", "id": f"toolu_{self._said}_{name}", "name": name, "input": {}}
            for name in _CALLED.get(kind, ())
        ]
        message = {"content": [text, *calls], "stop_reason": _STOPS.get(kind, "end_turn")}
        return Sent(params, kind, message, cost, self._api.clock.server)

    def _follow(self, request: str, params: dict[str, Any]) -> None:
        """These params of a request are, or are about to be, sent."""
        before = self._turn.get(request)
        if before == params:
            return
        self._turn[request] = params
        if before is None:
            if len(params["messages"]) != 1:
                self._say(f"{request} begins with {params}")
            return
        problems = {self._problem(request, sent, params): sent for sent in self._asked(request)}
        if None in problems:
            self._chain[request].append(problems[None])
            self._sent[request] = {}
            self.calls.pop(request, None)
        else:
            self._say(f"{request} does not continue its conversation: {list(problems)}, {params}")

    def _asked(self, request: str) -> list[Sent]:
        """Return what was sent of the present turn."""
        return list(self._sent[request].values())

    def _problem(self, request: str, sent: Sent, params: dict[str, Any]) -> str | None:
        """Return why params do not continue from an answer to a turn."""
        length = len(sent.params["messages"])
        others = {**params, "messages": params["messages"][:length]}
        if others != sent.params:
            return "it does not begin with the turn before"
        if sent.kind in ("final", "theirs", "refused"):
            return f"the answer to it was {sent.kind}"
        told = {"role": "assistant", "content": sent.message["content"]}
        first, *rest = params["messages"][length:] or [None]
        if first != told:
            return f"it does not have the answer {told}"
        if sent.kind == "pause":
            return f"a pause is answered with {rest}" if rest else None
        [reply] = rest
        if sent.kind == "doubted" and self._judge_of(request) is None:
            return "no function rejects the answer to it"
        if sent.kind in ("invalid", "doubted"):
            return (
                None if "cannot be used" in str(reply["content"]) else f"{reply} is no correction"
            )
        uses = [block for block in told["content"] if block["type"] == "tool_use"]
        given = [(each["tool_use_id"], each["content"]) for each in reply["content"]]
        wanted = [(use["id"], self._output(use)) for use in uses]
        return None if given == wanted else f"its tools gave {wanted}, and it has {given}"

    def _output(self, use: dict[str, Any]) -> object:
        """Return what a call has come to, as the ledger has it and the function has returned it."""
        rows = self.rows("SELECT output FROM tool_calls WHERE tool_use_id = ?", use["id"])
        stored = [bytes(row["output"]) for row in rows if row["output"] is not None]
        if len(stored) != 1:
            return f"{len(stored)} stored results"
        if use["name"] in TOOLS and stored[0] not in [out for out, _ in self.outputs[use["id"]]]:
            return f"{stored[0]}, which its function has not returned"
        return json.loads(stored[0])

    def _create(self, ids: list[str]) -> None:
        super()._create(ids)
        for identifier in ids:
            if parts := parse_custom_id(identifier):
                self._follow(parts[0], self._api.params[identifier])

    def _accept(self, remote: Remote) -> None:
        super()._accept(remote)
        for identifier in remote.ids:
            if not (parts := parse_custom_id(identifier)):
                continue
            request, _, sending = parts
            for earlier in self.calls[request]:
                if earlier.is_billed or earlier.may_hide:
                    self._say(f"{identifier} was accepted after a live call: {earlier}")
            sent = self._speak(self._api.params[identifier], COST)
            remote.messages[identifier] = sent.message
            self._sent[request][sending] = sent

    def _is_accounted(self, request: str, sending: int, remote: Remote) -> bool:
        if sending not in self._sent[request]:
            return True  # of a turn before this one, which was accounted for then
        if super()._is_accounted(request, sending, remote):
            return True
        [identifier] = [i for i in remote.ids if i.startswith(request)]
        outcome = remote.outcomes.get(identifier)
        return request in self.retried and outcome not in (None, "succeeded")

    def _live(self, params: bytes, plan: LivePlan) -> None:
        asked = json.loads(params)
        [row] = self.rows(
            "SELECT r.id, r.sendings FROM requests r JOIN params p ON p.request_seq = r.seq "
            "WHERE p.body = ?",
            params,
        )
        request, sending = row["id"], row["sendings"]
        self._follow(request, asked)
        for number, remote in self.sendings[request].items():
            if not self._is_accounted(request, number, remote):
                self._say(f"{request} was asked live while {remote.id} had {number} of it")
        super()._live(params, plan)
        if plan.kind == "answer":
            sent = self._speak(asked, LIVE_COST)
            plan.answer = sent.message
            self._sent[request][sending] = self._live_answers[request, sending] = sent

    def between_turns(self) -> list[str]:
        """The runs of which an answer asks for more."""
        rows = self.rows(
            "SELECT id FROM runs WHERE kind = 'run' AND id IN "
            "(SELECT run_id FROM requests WHERE state = 'continuing') ORDER BY rowid"
        )
        return [row["id"] for row in rows]

    def failed(self, run_id: str) -> dict[str, int]:
        """The requests of a run that have failed, and were not billed: id, stamp."""
        rows = self.rows(
            "SELECT id, finished FROM requests WHERE run_id = ? AND state IN "
            "('errored', 'expired', 'canceled')",
            run_id,
        )
        return {row["id"]: row["finished"] for row in rows}

    def retry(self, run_id: str, failed: dict[str, int]) -> None:
        """Some of these requests were asked again, on order."""
        asked = failed.items() - self.failed(run_id).items()
        for request, _ in asked:
            self.retried.add(request)
            self._seen.pop(request, None)

    def leave(self, seqs: list[int]) -> None:
        super().leave(seqs)
        # A conversation that has had a turn was paid for, and goes on.
        talked = self.rows(
            "SELECT r.id FROM requests r JOIN conversations c ON c.request_seq = r.seq"
        )
        self.withdrawn.difference_update(row["id"] for row in talked)

    # Tools ---------------------------------------------------------------------------------

    def begin_tool(self, run: ToolRun) -> None:
        """A function is about to run."""
        rows = self.rows(
            "SELECT t.process, t.finished, r.state FROM tool_calls t JOIN requests r ON r.seq = "
            "t.request_seq AND r.answered_by = t.sending WHERE t.tool_use_id = ?",
            run.use.id,
        )
        found = [(row["process"], row["finished"], row["state"]) for row in rows]
        if found != [(run.process.name, None, "continuing")]:
            self._say(f"{run.use.id} runs in {run.process.name}, and is stored as {found}")
        earlier = self.tool_runs[run.use.id]
        if any(not each.ended and each.process.is_alive for each in earlier):
            self._say(f"{run.use.id} runs twice at once")
        if earlier and not TOOLS[run.use.name].repeatable:
            self._say(f"{run.use.id} runs again, and may not")
        earlier.append(run)

    # The caller's own function -------------------------------------------------------------

    def _judge_of(self, request: str) -> ConversationProcess | None:
        [row] = self.rows("SELECT run_id FROM requests WHERE id = ?", request)
        return self.judges.get(row["run_id"])

    def judge(self, message: bytes) -> str | None:
        """Return what the caller's own function says of an answer."""
        text = _text(json.loads(message))
        if text in self._judged:
            self._say(f"{text} is judged again, although a verdict is stored")
        self._judging.add(text)
        return None if text.startswith('"final') else f"{text} will not do"

    def begin_judging(self) -> None:
        self._judging.clear()

    def end_judging(self) -> None:
        """A process that does not drive has stored its verdicts since `begin_judging`."""
        self._judged |= self._judging

    def _check_judged(self) -> None:
        """Check that no doubted answer is taken while its judge has had no time."""
        for row in self.rows(
            "SELECT r.id, r.run_id, r.answered_by FROM requests r JOIN runs u ON u.id = r.run_id "
            "WHERE r.state = 'succeeded' AND u.converses AND u.validation_attempts > 1"
        ):
            sent = self._sent[row["id"]].get(row["answered_by"])
            judge = self.judges.get(row["run_id"])
            if sent is None or sent.kind != "doubted" or judge is None or not judge.is_alive:
                continue
            remote = self.sendings[row["id"]].get(row["answered_by"])
            since = sent.at if remote is None or remote.ended is None else remote.ended
            soon = self._api.clock.server - since < PATIENCE
            if soon and row["id"] not in self._ever_cancelled:
                self._say(f"{row['id']} is taken, although {judge.name} may judge it yet")

    # In the end ----------------------------------------------------------------------------

    def note_cancelled(self) -> None:
        cancelled = self.rows(
            "SELECT r.id FROM requests r JOIN runs u ON u.id = r.run_id "
            "WHERE r.cancelled OR u.cancelled IS NOT NULL"
        )
        self._ever_cancelled.update(row["id"] for row in cancelled)

    def _may_waste(self, request: str, state: str) -> bool:
        # Its run was cancelled between two turns, and goes on since with others of its requests.
        return state == "canceled" and request in self._ever_cancelled

    def check(self) -> None:
        self.note_cancelled()
        self._check_judged()
        super().check()

    def is_quiet(self) -> bool:
        return super().is_quiet() and not self.rows(
            "SELECT 1 FROM requests r JOIN runs u ON u.id = r.run_id "
            "WHERE u.stored IS NOT NULL AND r.state = 'continuing'"
        )

    def conclude(self) -> None:
        for row in self.rows(
            "SELECT r.id, r.state, r.answered_by, r.seq, p.body, u.converses, u.tools, "
            "u.max_turns, u.validation_attempts, c.turns, c.rejected, c.cost, c.stopped, s.raw "
            "FROM requests r JOIN runs u ON u.id = r.run_id "
            "JOIN params p ON p.request_seq = r.seq "
            "LEFT JOIN conversations c ON c.request_seq = r.seq LEFT JOIN results s "
            "ON s.request_seq = r.seq AND s.sending = r.answered_by WHERE u.stored IS NOT NULL"
        ):
            self._conclude_one(row)
        stored = {
            (row["id"], row["sending"])
            for row in self.rows(
                "SELECT r.id, s.sending FROM results s JOIN requests r ON r.seq = s.request_seq "
                "WHERE s.outcome = 'succeeded'"
            )
        }
        for request, sending in self._live_answers.keys() - stored:
            if request not in self.removed and request not in self.interrupted:
                self._say(f"the live answer {sending} to {request} is not stored")
        super().conclude()

    def _conclude_one(self, row: Row) -> None:
        request = row["id"]
        if request in self._turn:
            self._follow(request, json.loads(bytes(row["body"])))
        chain = self._chain[request]
        rejected = sum(sent.kind in ("invalid", "doubted") for sent in chain)
        found = (row["turns"] or 0, row["rejected"] or 0, row["cost"] or 0)
        wanted = (len(chain) - rejected, rejected, sum(sent.cost for sent in chain))
        if found not in self._counted(request, row["answered_by"], wanted):
            self._say(f"{request} has turns, rejected answers and cost {found}, not {wanted}")
        if row["answered_by"] is None or row["state"] not in ("succeeded", "stopped", "refused"):
            return
        last = self._sent[request].get(row["answered_by"])
        content = json.loads(bytes(row["raw"]))["result"].get("message", {}).get("content")
        if last is None or content != last.message["content"]:
            self._say(f"{request} is answered {content} by {row['answered_by']}, {last}")
        elif (row["state"], row["stopped"]) not in (ends := self._ends(row, last, wanted)):
            self._say(f"{request} ended {row['state']}, {row['stopped']}, not {ends}: {last}")

    def _counted(
        self, request: str, sending: int | None, wanted: tuple[int, int, int]
    ) -> set[tuple[int, int, int]]:
        """Return what a conversation may have counted before the answer that it stands at."""
        return {wanted}

    def _ends(
        self, row: Row, last: Sent, counts: tuple[int, int, int]
    ) -> list[tuple[str, str | None]]:
        """Return how a conversation may end with an answer."""
        turns, rejected, _ = counts
        succeeded: list[tuple[str, str | None]] = [("succeeded", None)]
        if not row["converses"] or last.kind in ("final", "theirs"):
            return succeeded
        if last.kind == "refused":
            return [("refused", None)]
        if last.kind in ("invalid", "doubted"):
            if row["validation_attempts"] == 1:
                return succeeded
            is_doubted = last.kind == "doubted"
            may_stop = not is_doubted or self._judge_of(row["id"]) is not None
            is_last = may_stop and rejected + 1 == row["validation_attempts"]
            stopped = [("stopped", "invalid_output")] if is_last else []
            # It may have ended before its run was cancelled.
            may_succeed = row["id"] in self._ever_cancelled or (
                is_doubted and _text(last.message) not in self._judged
            )
            return [*succeeded, *stopped] if may_succeed else stopped
        if last.kind != "pause" and row["tools"] is None:
            return succeeded
        if turns + 1 == row["max_turns"]:
            return [("stopped", "max_turns")]
        calls = self.rows(
            "SELECT 1 FROM tool_calls WHERE request_seq = ? AND sending = ? AND name = 'write' "
            "AND finished IS NULL",
            row["seq"],
            row["answered_by"],
        )
        return [("stopped", "tool_interrupted")] if calls else []


def _text(message: dict[str, Any]) -> str:
    return str(message["content"][0]["text"])
