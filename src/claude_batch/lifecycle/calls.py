"""Single calls: stored in groups, joined by their keys, kept as runs of their process.

All calls of one actor, mode and workspace that a process makes are one run of kind ``calls``, so
that they are counted, shown and timed out by the same rules as a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import KeyConflictError
from claude_batch.core.ids import new_request_id
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.ledger import enqueue, reading
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.reading import Answer
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.lifecycle.waiting import Waiter, settle
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders

__all__ = ["Call", "CallStore"]


class _Workspace(Protocol):
    @property
    def workspace_id(self) -> int: ...


@dataclass(slots=True, eq=False)
class Call:
    """One call, not stored yet."""

    workspace: _Workspace
    encoded: EncodedRequest
    actor: str
    key: str | None
    mode: BatchProcessingMode
    begun: float
    """When it was made, as seconds since the epoch: its linger and its patience count from here."""
    future: Future[Answer]


@dataclass(slots=True)
class _CallsRun:
    run_id: str
    next_position: int = 0


_Group = tuple[int, str, BatchProcessingMode]
"""Workspace, actor and mode: what the calls of one run share."""


class CallStore:
    """Writes calls to a ledger. Belongs to the engine's loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs: dict[_Group, _CallsRun] = {}

    def store(self, calls: Sequence[Call]) -> list[tuple[Call, Waiter]]:
        """Store calls; gives those that must wait, and settles the others at once.

        Raises `LedgerError`.
        """
        added: list[tuple[Call, Waiter]] = []
        fresh: dict[_Group, list[Call]] = {}
        positions: dict[str, int] = {}
        runs: dict[_Group, str] = {}
        done: list[tuple[Call, Answer | KeyConflictError]] = []
        with self._ledger.write() as tx:
            for call in calls:
                if call.key is not None:
                    # Keys are looked up one by one, so that two calls of one flush can share one.
                    self._store_keyed(tx, call, runs, positions, added, done)
                    continue
                group = (call.workspace.workspace_id, call.actor, call.mode)
                fresh.setdefault(group, []).append(call)
            for group, members in fresh.items():
                added += self._store_group(tx, group, members, runs, positions)
        reach(CrashPoint.AFTER_CALLS_STORED)
        for group, run_id in runs.items():
            known = self._runs.setdefault(group, _CallsRun(run_id))
            known.next_position = max(known.next_position, positions[run_id])
        for call, outcome in done:
            settle(call.future, outcome)
        return added

    def _store_keyed(
        self,
        tx: Transaction,
        call: Call,
        runs: dict[_Group, str],
        positions: dict[str, int],
        added: list[tuple[Call, Waiter]],
        done: list[tuple[Call, Answer | KeyConflictError]],
    ) -> None:
        assert call.key is not None
        known = enqueue.find_call(tx, call.actor, call.key)
        if known is None:
            group = (call.workspace.workspace_id, call.actor, call.mode)
            [(_, waiter)] = pair = self._store_group(tx, group, [call], runs, positions)
            enqueue.remember_call(tx, call.actor, call.key, waiter.seq)
            added += pair
            return
        if known.body != call.encoded.params:
            conflict = KeyConflictError(
                f"the actor {call.actor} was asked something else under this key before; "
                "choose another key",
                key=call.key,
            )
            done.append((call, conflict))
            return
        answer = reading.answer_of(tx, known.seq)
        if answer.state.is_final:
            done.append((call, answer))
        else:
            added.append((call, Waiter(call.future, known.seq, known.run_id, call.workspace)))

    def _store_group(
        self,
        tx: Transaction,
        group: _Group,
        calls: list[Call],
        runs: dict[_Group, str],
        positions: dict[str, int],
    ) -> list[tuple[Call, Waiter]]:
        workspace_id, actor, mode = group
        run_id = runs.get(group)
        if run_id is None:
            known = self._runs.get(group)
            if known is not None:
                run_id, position = known.run_id, known.next_position
            else:
                run = NewRun(
                    kind="calls",
                    actor=actor,
                    workspace_id=workspace_id,
                    mode=mode,
                    created=calls[0].begun,
                )
                run_id, position = enqueue.begin_run(tx, run), 0
            runs[group] = run_id
            positions[run_id] = position
        lanes: dict[LaneHeaders, int] = {}
        new: list[NewRequest] = []
        for call in calls:
            headers = call.encoded.headers
            lane_id = lanes.get(headers)
            if lane_id is None:
                lane_id = lanes[headers] = enqueue.ensure_lane(
                    tx,
                    workspace_id,
                    headers.api_version,
                    ",".join(headers.betas),
                    headers.user_profile or "",
                )
            position = positions[run_id]
            positions[run_id] = position + 1
            new.append(
                NewRequest(new_request_id(), position, call.key, lane_id, call.encoded.params)
            )
        begun = min(call.begun for call in calls)
        first = enqueue.add_requests(tx, run_id, new, created=begun, due=begun + mode.linger)
        return [
            (call, Waiter(call.future, first + index, run_id, call.workspace))
            for index, call in enumerate(calls)
        ]
