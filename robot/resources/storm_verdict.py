"""Whether a storm was weathered: nothing lost, nothing paid for twice, nobody else touched.

`verdict` judges what is left after a storm: the outputs, the sandbox's bill and log, and the rows
of the ledger. It trusts the bill; the ledger is only asked which params belong to which prompt, and
whether it has noted what the bill says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from storm_faults import PASSING
from storm_talks import ToolTrial, subject_of, turns_of

Json = dict[str, Any]

STRANGER = "stranger"
"""How the other client in the workspace calls itself, and how its requests' ids begin."""

_ACCOUNT = ("billing_error", "authentication_error")
_NOT_BEGUN = ("overloaded_error", "rate_limit_error")
"""Errors that prove of a live call that it was not processed; any other may hide that it was."""
_GAPS = ("missing_lines", "garbage_line", "cut_between_lines", "html_200")
"""Faults after which a fetch of results looks complete, and is not."""

_FETCHES = 3
"""After so many complete fetches a line that was not paid for counts as missing for good."""

_ATTEMPTS = 3
"""Outcomes after which a passing failure is final (`max_attempts`)."""


@dataclass(frozen=True)
class Processing:
    """One turn of a request of ours in one batch, as the sandbox has billed it."""

    prompt: str
    turn: int
    batch: str
    """The API's id of the batch; "" for a live call."""
    custom_id: str
    outcome: str
    error_type: str | None
    accepted_at: float
    processed_at: float

    @property
    def request(self) -> str:
        """The id that the ledger knows the request by."""
        return self.custom_id.partition("-")[0]

    @property
    def sending(self) -> int:
        """Which sending of the request it was."""
        return int(self.custom_id.rpartition("-")[2])

    @property
    def may_be_tried_again(self) -> bool:
        """Whether its outcome is one that a request may have another attempt after."""
        if self.outcome == "errored":
            if self.is_live:
                # A 403 of a live call is the account's; in a batch's line it is the request's.
                return self.error_type in (*_NOT_BEGUN, *_ACCOUNT, "permission_error")
            return self.error_type in PASSING + _ACCOUNT
        return self.outcome == "expired"

    @property
    def is_live(self) -> bool:
        """Whether it was a live call."""
        return not self.batch

    def __str__(self) -> str:
        outcome = self.outcome if self.error_type is None else f"{self.outcome}:{self.error_type}"
        return (
            f"{outcome} live" if self.is_live else f"{outcome} in {self.batch} ({self.custom_id})"
        )


def verdict(evidence: Json) -> list[str]:
    """Everything that is wrong; empty where the promise held."""
    return list(_Trial(evidence).findings())


class _Trial:
    def __init__(self, evidence: Json) -> None:
        self.evidence = evidence
        self.deleted = set(evidence["deleted"])
        self.foreign = set(evidence["foreign"])
        self.seen = {row["remote_id"] for row in evidence["batches"]} | set(evidence["looked_for"])
        self.bill = [
            record
            for record in evidence["billing"]
            if not str(record["custom_id"]).startswith(STRANGER)
        ]
        places = {
            digest: (row["prompt"], turn)
            for row in evidence["requests"]
            for turn, digest in enumerate(row["turns"], 1)
        }
        self.turns: Counter[str] = Counter()
        for prompt, turn in places.values():
            self.turns[prompt] = max(self.turns[prompt], turn)
        self.tools = ToolTrial(evidence)
        self.processings: dict[str, list[Processing]] = defaultdict(list)
        self.unknown_params: list[Json] = []
        for record in sorted(self.bill, key=lambda record: record["accepted_at"]):
            place = places.get(record["params_sha256"])
            if place is None:
                self.unknown_params.append(record)
                continue
            self.processings[place[0]].append(
                Processing(
                    *place,
                    record["batch_id"] or "",
                    record["custom_id"] or "",
                    record["outcome"],
                    record["error_type"],
                    record["accepted_at"],
                    record["processed_at"],
                )
            )
        self.gaps: defaultdict[str, list[float]] = defaultdict(list)
        self.contradicted: set[str] = set()
        self.refused = 0
        self.broken = 0
        self.troubled = any(each["killed"] for each in evidence["processes"])
        """Whether a live call may have lost its answer, or a request its live attempts."""
        for call in evidence["log"]:
            self._note_fault(call)

    def _note_fault(self, call: Json) -> None:
        fault = call["fault"]
        if call["route"] == "results" and call["status"] == 200:
            batch = call["path"].split("/")[-2]
            if fault in _GAPS:
                self.gaps[batch].append(call["at"])
            if fault == "contradicting_lines":
                self.contradicted.add(batch)
        if call["route"] == "create":
            self.refused += call["status"] in (400, 413)
            self.broken += fault in ("drop_before", "early_413")
        if call["route"] == "messages":
            # A call that ended without a response has no status.
            status = call["status"] or 0
            self.troubled |= fault is not None or not 200 <= status < 400

    def _gapped(self, batch: str) -> bool:
        """Whether lines of this batch that were not paid for may have stayed missing for good."""
        return len(self.gaps[batch]) >= _FETCHES or batch in self.deleted

    def _given_up(self, batch: str) -> bool:
        """Whether a paid line of this batch may be lost: it was missing for long enough, too."""
        if batch in self.deleted:
            return True
        seen = self.gaps[batch]
        return len(seen) >= _FETCHES and seen[-1] - seen[0] >= self.evidence["missing_after"] - 0.5

    def findings(self) -> Iterator[str]:
        """Everything that is wrong."""
        yield from self._bill_findings()
        yield from self._budget_findings()
        yield from self._stranger_findings()
        yield from self._ledger_findings()
        yield from self.tools.findings()
        for role, asked in self.evidence["asked"].items():
            yield from self._output_findings(role, asked, self.evidence["outputs"].get(role))

    # Nothing is paid for twice

    def _bill_findings(self) -> Iterator[str]:
        for record in self.unknown_params:
            yield f"the bill has params that no request of the ledger has: {record['custom_id']}"
        for custom_id, count in Counter(record["custom_id"] for record in self.bill).items():
            if count > 1 and custom_id is not None:
                yield f"{custom_id} was processed {count} times"
        for prompt in self.turns:
            turns = [self._turn(prompt, turn) for turn in range(1, self.turns[prompt] + 1)]
            for history in turns:
                for before, after in pairwise(history):
                    yield from self._second_processing(prompt, before, after)
            for turn, (earlier, later) in enumerate(pairwise(turns), 2):
                yield from self._next_turn(f"turn {turn} of {prompt!r}", earlier, later)

    def _turn(self, prompt: str, turn: int = 0) -> list[Processing]:
        """What became of a turn of a conversation; without a number of the last that it has."""
        wanted = turn or self.turns[prompt]
        return [each for each in self.processings[prompt] if each.turn == wanted]

    def _is_whole(self, prompt: str) -> bool:
        """Whether a conversation has come to its last turn."""
        return self.turns[prompt] == turns_of(prompt)

    def _next_turn(
        self, told: str, earlier: list[Processing], later: list[Processing]
    ) -> Iterator[str]:
        answered = [each for each in earlier if each.outcome == "succeeded"]
        if not answered:
            if not any(each.batch in self.contradicted for each in earlier):
                yield f"{told} follows from no answer: {_list(earlier)}"
        elif later and later[0].accepted_at < answered[0].processed_at:
            yield f"{told} was sent before the one before it was answered: {later[0]}"

    def _second_processing(
        self, prompt: str, before: Processing, after: Processing
    ) -> Iterator[str]:
        told = f"{prompt!r}: first {before}, then {after}"
        if before.batch in self.deleted - self.seen:
            # It was gone before its own sender looked: that cannot be told from never made.
            return
        if before.outcome == "succeeded":
            yield f"processed again after a success: {told}"
            return
        if after.accepted_at < before.processed_at:
            yield f"sent again while the first was not accounted for: {told}"
        if before.is_live:
            if not before.may_be_tried_again:
                yield f"asked again after a final outcome: {told}"
            return
        if self._gapped(before.batch):
            return  # that no line told what failed it is no fault of ours
        # A deadline cancels a batch, and what did not run in it is asked live.
        # A run that is asked for again asks again what was canceled.
        called_off = before.outcome == "canceled" and (
            after.is_live or self.evidence["asked_again"]
        )
        spoiled = before.batch in self.contradicted
        if not (before.may_be_tried_again or called_off or spoiled):
            yield f"processed again after a final outcome: {told}"
        noted = {(row["request"], row["sending"]) for row in self.evidence["results"]}
        if (before.request, before.sending) not in noted:
            yield f"sent again without a recorded outcome of the first: {told}"

    # No budget is passed

    def _budget_findings(self) -> Iterator[str]:
        if not self.evidence["budgets"]:
            return
        visible = [
            record
            for record in self.bill
            if record["outcome"] == "succeeded"
            and record["batch_id"] not in self.deleted - self.seen
        ]
        for until, amount in self.evidence["budgets"]:
            cost = sum(_cost(each) for each in visible if each["accepted_at"] <= until)
            if cost > amount:
                yield f"the API billed {cost} nano-dollars under a budget of {amount}"
        total = sum(map(_cost, visible))
        if total > self.evidence["accounted"]:
            yield f"the API billed {total}, and {self.evidence['accounted']} are accounted for"

    # Nobody else is touched

    def _stranger_findings(self) -> Iterator[str]:
        for call in self.evidence["log"]:
            ours = call["headers"].get("user-agent") != STRANGER
            if ours and call["route"] == "delete":
                yield f"a batch was deleted: {call['path']}"
            if ours and call["route"] == "cancel" and call["path"].split("/")[-2] in self.foreign:
                yield f"a foreign batch was cancelled: {call['path']}"
        if self.evidence["foreign_lines"]:
            yield f"{self.evidence['foreign_lines']} foreign lines are in the ledger"

    # What is at the API is known

    def _ledger_findings(self) -> Iterator[str]:
        known = {row["remote_id"] for row in self.evidence["batches"]} | {None}
        # Results that lack every line of ours prove nothing: it is known as what may have been it.
        known |= {batch for batch in self.evidence["candidates"] if self._gapped(batch)}
        for batch in sorted({record["batch_id"] for record in self.bill} - known - self.deleted):
            yield f"batch {batch} was taken by the API, and no batch of the ledger knows of it"
        for row in self.evidence["requests"]:
            if row["stored"] and row["state"] in ("queued", "packed", "held", "continuing"):
                yield f"{row['prompt']!r} is {row['state']}, though all has ended"
        runs = self.evidence["runs"]
        if len(runs) != self.evidence["runs_expected"]:
            yield f"the same commands made {len(runs)} runs: {', '.join(sorted(runs))}"

    # Nothing is lost

    def _output_findings(
        self, role: str, asked: list[Json], lines: list[Json] | None
    ) -> Iterator[str]:
        if lines is None:
            yield f"{role}: there is no output"
            return
        wanted = [each["id"] for each in asked]
        found = [line["id"] for line in lines]
        for identifier, count in Counter(found).items():
            if count > 1:
                yield f"{role}: {identifier} has {count} lines in the output"
        for identifier in wanted:
            if identifier not in found:
                yield f"{role}: {identifier} has no line in the output"
        if sorted(found) == sorted(wanted) and found != wanted:
            yield f"{role}: the output is not in the order of the input"
        prompts = {each["id"]: each["prompt"] for each in asked}
        for line in lines:
            prompt = prompts.get(line["id"])
            if prompt is None:
                yield f"{role}: a line for {line['id']}, which nobody asked"
            elif line["ok"]:
                yield from self._answer_findings(prompt, line)
            else:
                yield from self._failure_findings(prompt, line)

    def _answer_findings(self, prompt: str, line: Json) -> Iterator[str]:
        batch = line["batch_id"] or ""
        processed = [each for each in self._turn(prompt) if each.batch == batch]
        if not processed:
            yield f"{prompt!r} is answered from {batch or 'a live call'}, which never processed it"
        elif all(each.outcome != "succeeded" for each in processed):
            if batch not in self.contradicted:
                yield f"{prompt!r} is answered, but it ended otherwise: {processed[0]}"
        elif not self._is_whole(prompt):
            yield f"{prompt!r} is answered by turn {processed[0].turn} of {turns_of(prompt)}"
        elif subject_of(prompt) not in line["text"]:
            yield f"{prompt!r} has another prompt's answer: {line['text']!r}"
        else:
            yield from self.tools.answer_findings(prompt, line["text"])

    def _failure_findings(self, prompt: str, line: Json) -> Iterator[str]:
        history = self._turn(prompt)
        kind = line["error"]["type"]
        told = f"{prompt!r} ended with {kind} ({line['error']['message']})"
        if kind == "refusal":
            yield from self._refusal_findings(told, line, history)
            return
        if kind == "tool_interrupted":
            # The answer that calls the tool was paid for, and is all that there will be.
            if not any(each.batch == (line["batch_id"] or "") for each in history):
                yield f"no model has called a tool: {told}; {_list(history)}"
            yield from self.tools.interruption_findings(told, prompt)
            return
        if kind == "canceled" and self.evidence["cancelled"] and not self._is_whole(prompt):
            return  # what was paid for was no last answer
        paid = [each for each in history if each.outcome == "succeeded"]
        for each in paid:
            # The answer to a live call goes with the process, or the connection, that waits for it.
            unheard = each.is_live and kind == "submission_unknown" and self.troubled
            if not self._given_up(each.batch) and not unheard:
                yield f"a paid answer is lost: {told}, but {each}"
        if paid:
            return
        if kind in ("missing_result", "submission_unknown"):
            gapped = any(self._gapped(each.batch) for each in history) or self.deleted
            if not gapped and not (self._is_haste and self.troubled):
                yield f"given up without need: {told}; {_list(history)}"
            return
        if kind == "expired" and self.evidence["fallback"] == "none":
            return  # it did not run before its run's deadline
        if self._is_haste and self.troubled and kind not in ("expired", "canceled"):
            return  # a live call that was refused leaves nothing on the bill
        last = history[-1] if history else None
        if last is not None and kind in (last.error_type, last.outcome):
            tried = sum(each.may_be_tried_again for each in history)
            passing = kind in PASSING or kind == "expired"
            if passing and tried < _ATTEMPTS and not self._excused(history):
                yield f"given up too early: {told}, after {_list(history)}"
            return
        if kind == "canceled" and self.evidence["cancelled"]:
            return
        if kind in ("invalid_request_error", "request_too_large"):
            if not self.refused and self.broken < _FETCHES:
                yield f"nobody refused it: {told}; {_list(history)}"
            return
        if not self._excused(history):
            yield f"nothing explains it: {told}; {_list(history)}"

    def _refusal_findings(self, told: str, line: Json, history: list[Processing]) -> Iterator[str]:
        """A refusal is a success at the API, which was paid for, and a failure in the output."""
        paid = [each for each in history if each.outcome == "succeeded"]
        if not any(each.batch == (line["batch_id"] or "") for each in paid):
            yield f"no model has refused it: {told}; {_list(history)}"
        if line.get("text") != "" or line.get("stop_reason") != "refusal":
            yield f"a refusal with an answer: {told}, {line}"

    @property
    def _is_haste(self) -> bool:
        return self.evidence["family"] == "haste"

    def _excused(self, history: list[Processing]) -> bool:
        """Whether a line may have told something else than the bill, or the user stopped it."""
        spoiled = any(self._gapped(each.batch) or each.batch in self.contradicted
                      for each in history)  # fmt: skip
        return spoiled or self.evidence["cancelled"]


def _cost(record: Json) -> int:
    """Nano-dollars at the prices of claude-haiku-4-5."""
    usage, times = record["usage"], 2 if record["route"] == "live" else 1
    return times * (usage["input_tokens"] * 500 + usage["output_tokens"] * 2500)


def _list(history: list[Processing]) -> str:
    return "; ".join(map(str, history)) or "never processed"
