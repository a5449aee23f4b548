"""Random histories of equal requests: keys of runs and calls, `reuse`, `dedupe` and orphans."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import BudgetExceededError, KeyConflictError
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger import held_requests
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.calls import CallStore
from claude_batch.lifecycle.pending_call import Call, CallOptions
from claude_batch.lifecycle.waiters import CallFuture
from claude_batch.providers.run_writer import RunWriter
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders, parse_custom_id
from histories.api import MODEL, SimulatedApi
from histories.ledger_rows import Row
from histories.orders_machine import MODES as ORDERED
from histories.orders_machine import OrdersMachine, OrdersVerdict
from histories.process import Process
from histories.verdict import Violation

__all__ = ["JoinMachine"]

MODES = ORDERED.flatmap(
    lambda mode: st.tuples(st.booleans(), st.booleans()).map(
        lambda own: (
            mode[0],
            mode[1].model_copy(
                # The verdict tells equal requests apart by custom_id, which live calls lack.
                update={"reuse": own[0], "dedupe": own[1], "mode": "batch", "fallback": "none"}
            ),
        )
    )
)
BODY = st.integers(0, 2)
ENDS = st.sampled_from([[], ["succeeded"], ["succeeded"], ["overloaded", "succeeded", "expired"]])
KEYS = st.sampled_from([None, None, "a", "b"])


class _Inputs(list[str]):
    """The prompts of a run with a key."""

    def __init__(self, bodies: Iterable[str], run_key: str) -> None:
        super().__init__(bodies)
        self.run_key = run_key

    def __eq__(self, other: object) -> bool:
        mine, theirs = self.run_key, getattr(other, "run_key", None)
        return mine == theirs and super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


class JoinVerdict(OrdersVerdict):
    """The judge of equal requests: which of them may be sent, and which calls are one request."""

    def __init__(self, api: SimulatedApi, path: Path, settings: LedgerSettings) -> None:
        super().__init__(api, path, settings)
        self._equal: dict[str, set[str]] = defaultdict(set)
        """Requests by what they ask, with those that were removed."""
        self._body: dict[str, str] = {}
        self._spared: dict[str, str] = {}
        """Requests that must never be sent, and why."""
        self.keys: dict[str, tuple[int, str]] = {}
        """The request that each key of a call names, and what it asks."""
        self.callers: dict[int, tuple[str | None, str]] = {}
        """The caller's process (None once the caller has left) and the body of each call without a
        key whose answer no caller has taken, by row number."""

    # Orders --------------------------------------------------------------------------------

    def last(self) -> int:
        """The number of the newest request."""
        [(last,)] = self.rows("SELECT coalesce(max(seq), 0) FROM requests")
        return int(last)

    def answered(self) -> set[str]:
        """What has an answer in the ledger that may be reused."""
        rows = self.rows(
            "SELECT DISTINCT p.body FROM requests r JOIN params p ON p.request_seq = r.seq "
            "JOIN runs u ON u.id = r.run_id WHERE r.state = 'succeeded' AND u.stored IS NOT NULL"
        )
        return {bytes(row["body"]).decode() for row in rows}

    def stored(self, since: int, answered: set[str], mode: BatchProcessingMode) -> list[int]:
        """Requests after this number were stored; gives theirs."""
        rows = self.rows(
            "SELECT r.seq, r.id, p.body FROM requests r JOIN params p ON p.request_seq = r.seq "
            "JOIN runs u ON u.id = r.run_id WHERE r.seq > ? AND u.stored IS NOT NULL "
            "ORDER BY r.seq",
            since,
        )
        first: set[str] = set()
        for row in rows:
            request, body = row["id"], bytes(row["body"]).decode()
            self._body[request] = body
            self._equal[body].add(request)
            if mode.reuse and body in answered:
                self._spared[request] = "it had been answered"
            elif mode.dedupe and body in first:
                self._spared[request] = "its run has an equal one"
            first.add(body)
        return [row["seq"] for row in rows]

    def orphans(self, body: str, alive: set[str]) -> list[int]:
        """The requests that an equal call must join."""
        rows = self.rows("SELECT seq FROM requests WHERE state != 'canceled' AND NOT cancelled")
        wanted = {row["seq"] for row in rows}
        return [
            seq
            for seq, (process, asked) in self.callers.items()
            if asked == body and process not in alive and seq in wanted
        ]

    def order_call(self, body: str) -> None:
        """A call is made, for which a request that has failed may be sent again."""
        for request in self._equal[body]:
            self.reopened.add(request)
            self._again.update((request, number) for number in self.sendings[request])

    def answered_of(self, process: str) -> list[int]:
        """The calls of a process that have an answer."""
        rows = self.rows("SELECT seq FROM requests WHERE finished IS NOT NULL")
        ended = {row["seq"] for row in rows}
        return [seq for seq, (of, _) in self.callers.items() if of == process and seq in ended]

    def left(self, seqs: list[int]) -> None:
        super().left(seqs)
        for seq in seqs:
            if seq in self.callers:
                self.callers[seq] = (None, self.callers[seq][1])

    # What may be sent ----------------------------------------------------------------------

    def _create(self, ids: list[str]) -> None:
        super()._create(ids)
        for identifier in ids:
            if why := self._spared.get(identifier[:32]):
                self._say(f"{identifier} was sent, although {why}")

    # What shares an answer -----------------------------------------------------------------

    def _equals(self, request: str) -> set[str]:
        return self._equal[self._body[request]] if request in self._spared else {request}

    def _truths(self, request: str) -> set[str]:
        own = super()._truths
        return {truth for each in self._equals(request) for truth in own(each)}

    def _is_blamed(self, request: str) -> bool:
        own = super()._is_blamed
        return any(own(each) for each in self._equals(request))

    def _may_be_lost(self, row: Row) -> bool:
        if row["id"] not in self._spared:
            return super()._may_be_lost(row)
        return any(
            other["state"] == "lost" and other["id"] in self._equals(row["id"])
            for other in self.rows("SELECT id, state FROM requests WHERE id != ?", row["id"])
        )

    def _check_results(self) -> None:
        super()._check_results()
        for row in self.rows(
            "SELECT s.raw, r.id FROM results s JOIN requests r ON r.seq = s.request_seq "
            "WHERE s.sending = 0"
        ):
            parts = parse_custom_id(str(json.loads(row["raw"])["custom_id"]))
            if parts is None or parts[0] not in self._equals(row["id"]) - {row["id"]}:
                self._say(f"{row['id']} has the answer of {parts}, which asks something else")


class _NamedProcess(Process):
    """A process that others can see to be dead."""

    def __init__(self, name: str, alive: set[str], *of: Any) -> None:
        super().__init__(*of)
        self.name = name
        self._alive = alive
        alive.add(name)

    def die(self) -> None:
        self._alive.discard(self.name)
        super().die()


class JoinMachine(OrdersMachine):
    """A history in which few things are asked, again and again, by several processes."""

    judge = JoinVerdict
    verdict: JoinVerdict
    process: _NamedProcess

    def __init__(self) -> None:
        super().__init__()
        self.alive: set[str] = set()
        self.begun = 0
        self.digests: dict[tuple[str, ...], str] = {}
        self._stack.enter_context(
            patch.object(Ledger, "is_alive", lambda _, process: process in self.alive)
        )

    def _open(self) -> Process:
        self.begun += 1
        name = f"process-{self.begun}"
        return _NamedProcess(name, self.alive, self.loop, self.api, self.path, self.settings)

    def _start(self) -> Process:
        process = super()._start()
        assert isinstance(process, _NamedProcess)
        self.call_store = CallStore(process.ledger, process.name, lambda *_: None)
        self.calls.clear()  # their callers were in another process
        return process

    # Runs ----------------------------------------------------------------------------------

    def ask_equal(
        self,
        bodies: list[int],
        run_key: str,
        mode: tuple[bool, BatchProcessingMode],
        outcomes: list[str],
    ) -> None:
        """A run of things that were asked before, or are asked twice in it."""
        inputs = _Inputs(map(_body, bodies), run_key)
        if (before := self._known_of(inputs)) is not None:
            self.verdict.order_failed(before)
        self._ask_anyhow(inputs, mode)
        others = {self._known_of(each) for each in self.inputs if each != inputs} - {None}
        now = self._known_of(inputs)
        if (before is not None and now != before) or now in others:
            raise Violation(f"{inputs} with the key {run_key} is {now}, and was {before}")
        self.verdict.ordered_failed()
        self._end(outcomes)

    def _end(self, outcomes: list[str]) -> None:
        """What is asked is sent, and ends so, if at all."""
        if not outcomes:
            return
        self._act(self.process.send)
        for remote in self._there("in_progress", "canceling"):
            self.api.end(remote, outcomes)
        self.go_round(61.0)

    EQUAL: ClassVar = {
        "bodies": st.lists(BODY, min_size=1, max_size=4),
        "run_key": st.sampled_from(["", "", "nightly"]),
        "mode": MODES,
        "outcomes": ENDS,
    }
    ask_equal_ones = rule(**EQUAL)(ask_equal)
    ask_equal_again = rule(**EQUAL)(ask_equal)

    def _ask_anyhow(self, inputs: Sequence[str], mode: tuple[bool, BatchProcessingMode]) -> None:
        if isinstance(inputs, _Inputs):
            by_batch = {"mode": "batch", "fallback": "none"}
            mode = (mode[0], mode[1].model_copy(update=by_batch))
        super()._ask_anyhow(inputs, mode)

    def _ask_for(self, inputs: Sequence[str], mode: BatchProcessingMode) -> None:
        since, answered = self.verdict.last(), self.verdict.answered()
        finish = RunWriter.finish

        def noted(writer: RunWriter, *of: Any, **more: Any) -> str:
            self.digests[_named(inputs)] = writer._digests[0].hexdigest()
            return finish(writer, *of, **more)

        with patch.object(RunWriter, "finish", noted):
            super()._ask_for(inputs, mode)
        self.verdict.stored(since, answered, mode)

    def _identity_of(self, inputs: Sequence[str]) -> bytes:
        return getattr(inputs, "run_key", "").encode()

    def _known_of(self, inputs: Sequence[str]) -> str | None:
        digest = self.digests.get(_named(inputs), "")
        found = self.verdict.rows(
            "SELECT id FROM runs WHERE digest = ? AND stored IS NOT NULL", digest
        )
        return found[0]["id"] if found else None

    # Calls ---------------------------------------------------------------------------------

    def call(
        self,
        body: int,
        key: str | None,
        mode: tuple[bool, BatchProcessingMode],
        outcomes: list[str],
        dies: bool,
    ) -> None:
        """A call is made, perhaps with a key, and perhaps as another process has made it."""
        verdict, asked = self.verdict, _body(body)
        unbounded = {"budget_usd": None, "actor_budget_usd": None, "deadline": None}
        settings = mode[1].model_copy(update=unbounded)
        since, answered = verdict.last(), verdict.answered()
        orphans = [] if key else verdict.orphans(asked, self.alive)
        known = verdict.keys.get(key or "")
        if known is None or known[1] == asked:
            verdict.order_call(asked)
        future, process = CallFuture(), self.process
        options = CallOptions(actor="model", mode=settings, key=key)
        encoded = EncodedRequest(asked.encode(), LaneHeaders())
        call = Call(process, encoded, options, self.clock.time(), future)
        waiting: list[int] = []

        def store() -> None:
            if settings.reuse:
                held_requests.index_answers(process.ledger)  # as a responder does
            waiting.extend(waiter.seq for _, waiter in self.call_store.store([call]).waiting)

        self._act(store)
        new = verdict.stored(since, answered, settings)
        got = [*waiting, *([] if future.seq is None else [future.seq])]
        is_alive = self.process is process
        if isinstance(future._outcome, BudgetExceededError):
            if new or orphans or known:
                raise Violation(f"a call is refused by its budget, and {new or orphans or known}")
        elif key is None:
            if orphans and new:
                raise Violation(f"requests {orphans} wait for such a call, which has made {new}")
            if orphans and is_alive and got != orphans[:1]:
                raise Violation(f"a call has joined {got}, and not the first of {orphans}")
            if not orphans and is_alive and got != new:
                raise Violation(f"a call has joined {got}, and nothing waits for it")
            for seq in new or orphans[:1]:
                verdict.callers[seq] = (process.name, asked)
            if is_alive:
                self.calls.extend(waiting)
        elif known is None:
            [seq] = new
            verdict.keys[key] = (seq, asked)
        elif new:
            raise Violation(f"the key {key} names {known}, and has made {new}")
        elif known[1] != asked and is_alive:
            outcome = future._outcome
            if got or not isinstance(outcome, KeyConflictError):
                raise Violation(f"the key {key} names {known}, and a call got {got}, {outcome}")
        elif is_alive and got != [known[0]]:
            raise Violation(f"the key {key} names {known}, and a call got {got}")
        verdict.ordered_failed()
        self._end(outcomes)
        if dies:
            self._bury()
            self.call(body, key, mode, outcomes, False)  # its caller comes back

    CALLING: ClassVar = {
        "body": BODY,
        "key": KEYS,
        "mode": MODES,
        "outcomes": ENDS,
        "dies": st.booleans(),
    }
    call_one = rule(**CALLING)(call)
    call_another = rule(**CALLING)(call)

    @precondition(lambda self: self.verdict.answered_of(self.process.name))
    @rule()
    def take_answers(self) -> None:
        """The callers of this process take the answers that are there."""
        for seq in self.verdict.answered_of(self.process.name):
            self.call_store.taken(seq)
            del self.verdict.callers[seq]
        self.call_store.note()


def _body(number: int) -> str:
    return f'{{"model":"{MODEL}","max_tokens":2,"shared":{number}}}'


def _named(inputs: Sequence[str]) -> tuple[str, ...]:
    return getattr(inputs, "run_key", ""), *inputs
