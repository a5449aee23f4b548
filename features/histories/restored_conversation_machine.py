"""Random histories of conversations in a ledger that is restored from earlier copies."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import rule

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.settings import LedgerSettings
from claude_batch.wire.encoding import parse_custom_id
from histories.api import Remote, SimulatedApi
from histories.conversation_machine import PLANS, ConversationMachine, ConversationProcess
from histories.conversation_verdict import ConversationVerdict, Sent
from histories.ledger_rows import Row
from histories.machine import PICK
from histories.process import Process
from histories.restore_machine import RestoreMachine, RestoreVerdict
from histories.verdict import Verdict

__all__ = ["RestoredConversationMachine"]


class _Turn(NamedTuple):
    """A turn that the API accepted, and the answers that its conversation had continued from."""

    sent: Sent
    chain: list[Sent]


class RestoredConversationVerdict(RestoreVerdict, ConversationVerdict):
    """The judge of conversations in a ledger that forgets: what was said stays so."""

    _FORGOTTEN: ClassVar = (
        *RestoreVerdict._FORGOTTEN, "_turn", "_sent", "_chain", "_found", "_live_answers", "_judged"
    )  # fmt: skip

    def __init__(self, api: SimulatedApi, path: Path, settings: LedgerSettings) -> None:
        super().__init__(api, path, settings)
        self._turns: defaultdict[str, dict[int, _Turn]] = defaultdict(dict)
        """By request id: all that was ever sent in batches."""
        self._later: dict[str, dict[int, _Turn]] = {}
        """Those of them that are of turns which the ledger has forgotten."""
        self._found: defaultdict[str, set[int]] = defaultdict(set)
        """Those of the turn that the ledger has, of which it had forgotten that they were sent."""

        self._failed_before: dict[str, int] = {}
        """The conversations that had failed before a recovery, and that the API has answered."""
        self._twins: dict[tuple[str, int], Sent] = {}
        """What was sent under the number of one that the ledger has, from another restored copy."""

    def restore(self, known: dict[str, Any]) -> None:
        super().restore(known)
        self._later = {}
        self._twins = {}
        for row in self.rows(
            "SELECT r.id, p.body FROM requests r JOIN params p ON p.request_seq = r.seq "
            "JOIN runs u ON u.id = r.run_id WHERE u.stored IS NOT NULL"
        ):
            request = row["id"]
            if request in self._turn or request in self._turns:
                self._follow(request, _json(row["body"]))
                self._sort_out(request)

    def recovering(self) -> None:
        super().recovering()
        self._failed_before = self._failed_and_answered()

    def has_recovered(self) -> None:
        super().has_recovered()
        # What was sent since the copy takes its answers, because turns may follow from them.
        for request, _ in self._failed_before.items() - self._failed_and_answered().items():
            self._seen.pop(request, None)
        self._failed_before = {}

    def _failed_and_answered(self) -> dict[str, int]:
        runs = [row["id"] for row in self.rows("SELECT id FROM runs WHERE converses")]
        failed = {request: at for run_id in runs for request, at in self.failed(run_id).items()}
        return {r: at for r, at in failed.items() if "succeeded" in self._truths(r)}

    def _asked(self, request: str) -> list[Sent]:
        twins = [sent for (twin, _), sent in self._twins.items() if twin == request]
        return [*super()._asked(request), *twins]

    def _follow(self, request: str, params: dict[str, Any]) -> None:
        before = self._turn.get(request)
        super()._follow(request, params)
        if before != params:
            self._twins = {of: sent for of, sent in self._twins.items() if of[0] != request}

    def _sort_out(self, request: str) -> None:
        present = self._turn[request]
        length = len(present["messages"])
        for sending, turn in self._turns[request].items():
            if turn.sent.params == present:
                # A copy of before another restored one may have another answer of this number.
                if sending in self._sent[request]:
                    self._twins[request, sending] = turn.sent
                else:
                    self._found[request].add(sending)
                    self._sent[request][sending] = turn.sent
            elif len(turn.sent.params["messages"]) >= length:
                self._later.setdefault(request, {})[sending] = turn

    def _accept(self, remote: Remote) -> None:
        super()._accept(remote)
        for identifier in remote.ids:
            if parts := parse_custom_id(identifier):
                request, _, sending = parts
                sent = self._sent[request][sending]
                self._turns[request][sending] = _Turn(sent, list(self._chain[request]))
                # A forgotten sending may have had this number, in another incarnation.
                self._later.get(request, {}).pop(sending, None)

    def _is_accounted(self, request: str, sending: int, remote: Remote) -> bool:
        if sending not in self._later.get(request, {}):
            return super()._is_accounted(request, sending, remote)
        if Verdict._is_accounted(self, request, sending, remote):
            return True
        [identifier] = [i for i in remote.ids if i.startswith(request)]
        # Nothing was paid for it, so the conversation goes on from the turn that the ledger has.
        return remote.outcomes.get(identifier) not in (None, "succeeded")

    def _conclude_one(self, row: Row) -> None:
        request, sending = row["id"], row["answered_by"]
        twin = self._twins.get((request, sending))
        if twin is not None and row["raw"] and _content(row) == twin.message["content"]:
            self._sent[request][sending] = twin
        turn = self._later.get(request, {}).get(sending)
        if turn is None:
            super()._conclude_one(row)
        else:
            self._conclude_forgotten(row, turn)

    def _conclude_forgotten(self, row: Row, turn: _Turn) -> None:
        """Check a conversation that stands at the answer to a turn that the ledger never had."""
        request, sending = row["id"], row["answered_by"]
        rejected = sum(sent.kind in ("invalid", "doubted") for sent in turn.chain)
        wanted = (len(turn.chain) - rejected, rejected, sum(sent.cost for sent in turn.chain))
        found = (row["turns"] or 0, row["rejected"] or 0, row["cost"] or 0)
        is_gone = any(each.deleted or each.archived for each in self.sendings[request].values())
        if found not in self._counted(request, sending, wanted) and not is_gone:
            self._say(f"{request} has turns, rejected answers and cost {found}, not {wanted}")
        if row["state"] not in ("succeeded", "stopped", "refused"):
            return
        content = _content(row)
        if content != turn.sent.message["content"]:
            self._say(f"{request} is answered {content} by {row['answered_by']}, {turn.sent}")
            return
        ends = self._ends(row, turn.sent, found)
        if turn.sent.kind not in ("final", "theirs", "refused"):
            # The turns before it cannot be sent again.
            limits = [("stopped", "max_turns"), ("stopped", "tool_interrupted")]
            ends = [each for each in ends if each not in limits]
            ends.append(("stopped", "turns_forgotten"))
        stopped = row["stopped"] if row["state"] == "stopped" else None
        if (row["state"], stopped) not in ends:
            self._say(f"{request} ended {row['state']}, {stopped}, not {ends}: {turn.sent}")

    def _counted(
        self, request: str, sending: int | None, wanted: tuple[int, int, int]
    ) -> set[tuple[int, int, int]]:
        """Return what a conversation may have counted before the answer that it stands at.

        A turn that was lost, and sent again, may have its answer by now. The copy cannot see that
        the later sending was not another turn.
        """
        counted = {wanted}
        for earlier in self._answers_before(request, sending):
            is_rejected = earlier.kind in ("invalid", "doubted")
            more = (not is_rejected, is_rejected, earlier.cost)
            counted |= {(a + more[0], b + more[1], c + more[2]) for a, b, c in counted}
        return counted

    def _answers_before(self, request: str, sending: int | None) -> list[Sent]:
        """Return the answers to earlier sendings of the same turn, if the ledger forgot this one.

        An order, or a sending that stayed unknown, has led to this one.
        """
        turn = self._turns[request].get(sending or 0)
        is_later = sending in self._later.get(request, {})
        if turn is None or not (is_later or sending in self._found[request]):
            return []
        earlier = [
            (number, each.sent)
            for number, each in self._turns[request].items()
            if number < (sending or 0) and each.sent.params == turn.sent.params
        ]
        return [sent for number, sent in earlier if self._has_succeeded(request, number)]

    def _has_succeeded(self, request: str, sending: int) -> bool:
        remote = self.sendings[request][sending]
        [identifier] = [i for i in remote.ids if i.startswith(request)]
        return remote.outcomes.get(identifier) == "succeeded"

    def _ends(
        self, row: Row, last: Sent, counts: tuple[int, int, int]
    ) -> list[tuple[str, str | None]]:
        ends = super()._ends(row, last, counts)
        if row["stopped"] != "turns_forgotten" or not self._is_doubtful(row):
            return ends
        if row["state"] == "stopped":
            return [*ends, ("stopped", "turns_forgotten")]
        # It is kept with an answer that ends the conversation, and then means nothing.
        return [(state, why if state == "stopped" else "turns_forgotten") for state, why in ends]

    def _is_doubtful(self, row: Row) -> bool:
        """Return whether a forgotten sending may have been of a later turn."""
        request, sending = row["id"], row["answered_by"]
        if sending not in self._found[request]:
            return False
        if self._answers_before(request, sending):
            return True
        found = self.sendings[request][sending]
        for number in range(sending - 1, 0, -1):
            before = self.sendings[request].get(number)
            if before is None or before.deleted or before.archived:
                return True
            if before.created > found.created:
                return True  # so it was found after it
            [identifier] = [i for i in before.ids if i.startswith(request)]
            if before.outcomes.get(identifier) == "succeeded":
                return False
            # A failed sending does not show which turn it was.
        return False

    def _may_waste(self, request: str, state: str) -> bool:
        # A conversation between two live turns: the next one may have been asked.
        unsure = state == "lost" and request in self.interrupted
        return unsure or super()._may_waste(request, state)


class RestoredConversationMachine(RestoreMachine, ConversationMachine):
    """A history of conversations whose ledger is copied, restored and recovered."""

    judge = RestoredConversationVerdict

    # Of a run that sends batches alone, no copy could know that it was asked live.
    go_live = None  # type: ignore[assignment]

    def _open(self) -> Process:
        self.begun += 1
        of = (self.loop, self.api, self.path, self.settings, self.here)
        return ConversationProcess(self.begun, self.alive, self.has_tools, *of)

    def forget_turns(
        self,
        pick: int,
        copies: bool,
        mark: str,
        destroy: str | None,
        recovering: dict[str, Any],
        data: st.DataObject,
    ) -> None:
        """Turns are sent after a copy was made, and forgotten; a batch of them may be gone."""
        self.talk(data)
        if copies:
            self.verdict.check()  # else the copy's judge would not know what has just ended
            self.back_up()
        self.talk(data)
        if destroy is not None:
            self.disturb(destroy, pick)
        self._restore(-1 if copies else pick, mark)
        self.recover(**recovering)

    FORGETTING: ClassVar = {
        "pick": PICK,
        "copies": st.booleans(),
        "mark": RestoreMachine.MARKS,
        "destroy": st.sampled_from([None, None, "hide", "delete", "archive"]),
        "recovering": st.fixed_dictionaries(RestoreMachine.RECOVERING),
        "data": st.data(),
    }
    forget_turns_once = rule(**FORGETTING)(forget_turns)
    forget_turns_again = rule(**FORGETTING)(forget_turns)
    forget_more_turns = rule(**FORGETTING)(forget_turns)

    @rule(kind=st.sampled_from(["look", "write", "both"]), plans=PLANS, mark=RestoreMachine.MARKS)
    def forget_tools(self, kind: str, plans: list[str], mark: str) -> None:
        """Tools start after a copy was made, in a process that dies then."""
        self.verdict.spoken = [kind, "final"]
        self._store_run(2, BatchProcessingMode(linger=0.0))
        self.api.plans.clear()
        self._act(self.process.send)
        for remote in self._there("in_progress", "canceling"):
            self.api.end(remote, ["succeeded"])
        self.clock.advance(61.0)
        self._act(self.process.poll)
        self.verdict.check()
        self.back_up()
        self.tool_plans.clear()
        self.tool_plans.extend(plans)
        self._converse()
        self._restore(-1, mark)
        self._converse()

    def _finish(self) -> None:
        if self.parked is not None:
            parked = self.parked[0]
            assert isinstance(parked, ConversationProcess)
            parked.finder.offer()
        super()._finish()


def _content(row: Row) -> object:
    return _json(row["raw"])["result"].get("message", {}).get("content")


def _json(body: bytes) -> dict[str, Any]:
    return json.loads(bytes(body))
