"""Broken rules: each is a driver that breaks a promise, which random histories must find out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from sqlalchemy import Connection, and_, delete, select, update

from claude_batch.core.states import FAILED, OPEN_AT_API, BatchState, RequestState
from claude_batch.ledger import (
    batch_contents,
    budgets,
    charges,
    conversations,
    enqueue,
    held_requests,
    high_water,
    live_calls,
    recovered_batches,
    retries,
    run_deadlines,
    single_calls,
    submissions,
    transitions,
    unknown_batches,
)
from claude_batch.ledger.high_water import Mark, count_post
from claude_batch.ledger.retries import ON_ORDER
from claude_batch.ledger.schema import batches, calls, lanes, requests, workspaces
from claude_batch.ledger.store import Ledger, next_stamp
from claude_batch.lifecycle import (
    collection,
    conversation_driver,
    driver,
    live_driver,
    packer,
    polling,
    reconciliation,
    recovery,
    submission,
)
from claude_batch.lifecycle.answer_judges import AnswerJudges
from claude_batch.lifecycle.tool_runner import Tools, Workbench
from claude_batch.wire.batches_client import RemoteBatch, Unreachable
from claude_batch.wire.encoding import LaneHeaders
from histories.api import SimulatedClient

__all__ = ["MUTANTS"]

LIVE, RESTORED, TALKS = "live calls", "restored copies", "conversations"
AGAIN, EQUAL = "runs that are asked again", "equal requests"
TALKS_RESTORED = "conversations in restored copies"
AGAIN_RESTORED = "runs that are asked again in restored copies"


def _hasty() -> AbstractContextManager[object]:
    return patch.object(reconciliation, "decide", lambda *_, **__: "not_accepted")


def _unarmed() -> AbstractContextManager[object]:
    return patch.object(submissions, "mark_armed", lambda *_: None)


def _spendthrift() -> AbstractContextManager[object]:
    return patch.object(collection, "missing_may_be_billed", lambda *_: False)


def _impatient() -> AbstractContextManager[object]:
    return patch.object(polling, "gap_since", lambda *_, now, after, **__: now - after)


def _unrivalled() -> AbstractContextManager[object]:
    return patch.object(unknown_batches, "rivals", lambda *_: 0)


def _deaf() -> AbstractContextManager[object]:
    write = Ledger.write
    return patch.object(Ledger, "write", lambda ledger, leader=None: write(ledger))


def _generous() -> AbstractContextManager[object]:
    return patch.object(packer.Fitting, "all_fit", True)


def _deaf_to_budgets() -> AbstractContextManager[object]:
    return patch.object(submission, "withdraw_over_budget", lambda *_: True)


@contextmanager
def _stubborn() -> Generator[None]:
    create = SimulatedClient.create

    async def again(chunks: list[bytes]) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def twice(
        client: SimulatedClient, body: AsyncIterator[bytes], length: int, headers: LaneHeaders
    ) -> RemoteBatch:
        chunks: list[bytes] = []

        async def noted() -> AsyncIterator[bytes]:
            async for chunk in body:
                chunks.append(chunk)
                yield chunk

        try:
            return await create(client, noted(), length, headers)
        except Unreachable:
            if len(b"".join(chunks)) < length:
                raise
            return await create(client, again(chunks), length, headers)

    with patch.object(SimulatedClient, "create", twice):
        yield


def _crowding() -> AbstractContextManager[object]:
    packed = (
        select(batches.c.id)
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(batches.c.state == BatchState.PACKED, batches.c.refusal.is_(None))
        .order_by(batches.c.id)
    )

    def next_packed(tx: Connection, workspace_id: int) -> int | None:
        return tx.scalar(packed.where(lanes.c.workspace_id == workspace_id))

    return patch.object(batch_contents, "next_packed", next_packed)


def _careless() -> AbstractContextManager[object]:
    real = live_driver.outcome_of
    return patch.object(live_driver, "outcome_of", lambda answer, *_: real(answer, "always"))


def _forgetful() -> AbstractContextManager[object]:
    # As if the state of a batch said nothing of whether it was sent.
    return patch.object(single_calls, "withdraw", _withdraw_everything)


def _withdraw_everything(tx: Connection, seqs: Collection[int], own: str) -> int:
    for seq in seqs:
        tx.execute(
            update(requests)
            .where(requests.c.seq == seq, requests.c.state.in_(("queued", "packed")))
            .values(state="canceled", cancelled=True, batch_id=None, finished=next_stamp(tx))
        )
        tx.execute(delete(calls).where(calls.c.request_seq == seq))
    return len(seqs)


@contextmanager
def _unmarked() -> Generator[None]:
    with (
        patch.object(driver, "is_known", lambda *_: True),
        patch.object(high_water, "is_known", lambda *_: True),
    ):
        yield


def _single_minded() -> AbstractContextManager[object]:
    return patch.object(recovered_batches, "end", _end_everywhere)


def _end_everywhere(tx: Connection, _: int, mark: Mark | None) -> int:
    tx.execute(update(workspaces).values(behind=None))
    return count_post(tx, at_least=0 if mark is None else mark.posts + 1)


def _forceful() -> AbstractContextManager[object]:
    run = recovery._Recovery.run
    return patch.object(recovery._Recovery, "run", lambda self, _: run(self, True))


def _nameless() -> AbstractContextManager[object]:
    return patch.object(Ledger, "add_incarnation", lambda *_: None)


def _unmindful() -> AbstractContextManager[object]:
    real = recovered_batches._sorted_out

    def without_others(*of: Any) -> Any:
        return real(*of)._replace(others={})

    return patch.object(recovered_batches, "_sorted_out", without_others)


def _xenophobic() -> AbstractContextManager[object]:
    real = recovered_batches.adopt_forgotten

    def ours_alone(tx: Connection, workspace_id: int, remote_id: str, *of: Any, **more: Any) -> Any:
        if any(recovered_batches.has_request(tx, request) for request in of[0]):
            return real(tx, workspace_id, remote_id, *of, **more)
        return None

    return patch.object(recovered_batches, "adopt_forgotten", ours_alone)


def _dauntless() -> AbstractContextManager[object]:
    return patch.object(live_calls, "forgotten", lambda *_: 0)


@contextmanager
def _repetitive() -> Generator[None]:
    tools_of = Workbench.tools_of

    def all_repeatable(workbench: Workbench, run_id: str, remembered: str) -> Tools | None:
        tools: Any = tools_of(workbench, run_id, remembered)
        return tools and {name: replace(tool, repeatable=True) for name, tool in tools.items()}

    with patch.object(Workbench, "tools_of", all_repeatable):
        yield


def _unnoted() -> AbstractContextManager[object]:
    return patch.object(conversations, "start_call", lambda *_, **__: True)


def _presumptuous() -> AbstractContextManager[object]:
    return patch.object(AnswerJudges, "are_elsewhere", lambda *_: False)


def _unconvinced() -> AbstractContextManager[object]:
    return patch.object(conversations, "add_verdicts", lambda *_, **__: None)


def _ungrateful() -> AbstractContextManager[object]:
    return patch.object(retries, "give_known_answers", lambda *_: 0)


# Conversations, and runs that are asked again, in restored copies -----------------------------


@contextmanager
def _confused() -> Generator[None]:
    with (
        patch.object(conversations, "note_forgotten_turn", lambda *_: None),
        patch.object(conversations, "note_doubtful_turn", lambda *_: None),
    ):
        yield


def _uncounting() -> AbstractContextManager[object]:
    return patch.object(conversation_driver, "count_post", lambda _: 0)


def _ambiguous() -> AbstractContextManager[object]:
    return patch.object(transitions, "pass_over", lambda *_: None)


# Deadlines, budgets and runs that are asked again ---------------------------------------------


@contextmanager
def _timeless() -> Generator[None]:
    with (
        patch.object(run_deadlines, "open_deadlines", lambda *_: []),
        patch.object(run_deadlines, "is_over", lambda *_: False),
    ):
        yield


def _hurried() -> AbstractContextManager[object]:
    real = run_deadlines.withdraw

    def withdraw_all(tx: Connection, run_id: str, now: float) -> None:
        # As if what a batch holds that is to be cancelled were not paid for.
        sent = select(batches.c.id).where(batches.c.state.in_(OPEN_AT_API))
        mine = and_(requests.c.run_id == run_id, requests.c.batch_id.in_(sent))
        transitions.unpack(tx, mine, sendings=requests.c.sendings + 1)
        real(tx, run_id, now)

    return patch.object(run_deadlines, "withdraw", withdraw_all)


def _short_sighted() -> AbstractContextManager[object]:
    real = budgets.budgets_of
    return patch.object(
        budgets, "budgets_of", lambda *of: [each for each in real(*of) if each.scope == "actor"]
    )


def _of_yesterday() -> AbstractContextManager[object]:
    return patch.object(charges, "move_to_day", lambda *_: None)


def _uncounted() -> AbstractContextManager[object]:
    return patch.object(budgets, "uncounted", lambda *_: [])


def _forgetting_runs() -> AbstractContextManager[object]:
    return patch.object(enqueue, "run_by_digest", lambda *_: None)


@contextmanager
def _obliging() -> Generator[None]:
    with (
        patch.object(retries, "FAILED", (*FAILED, RequestState.LOST)),
        patch.object(retries, "ON_ORDER", (*ON_ORDER, RequestState.LOST)),
    ):
        yield


def _premature() -> AbstractContextManager[object]:
    return patch.object(retries, "unfinished", lambda *_: 0)


# Equal requests -------------------------------------------------------------------------------


def _wasteful() -> AbstractContextManager[object]:
    return patch.object(held_requests, "take_answers", lambda *_: None)


def _repeating() -> AbstractContextManager[object]:
    return patch.object(held_requests, "doubled", lambda *_: ())


def _keyless() -> AbstractContextManager[object]:
    return patch.object(single_calls, "remember_call", lambda *_: None)


def _heartless() -> AbstractContextManager[object]:
    return patch.object(single_calls, "orphans", lambda *_, **__: [])


class Mutant(NamedTuple):
    """A driver that breaks a promise."""

    breaking: Callable[[], AbstractContextManager[Any]]
    seed: int = 1
    """Tried first, because the fourth or fifth history from it breaks a promise, or the tenth.

    A change of the histories or of Hypothesis may end that; the next seeds are then tried.
    """
    family: str = ""
    """The histories in which it shows: one of `histories.play.FAMILIES`."""


MUTANTS: Mapping[str, Mutant] = {
    "takes an unknown sending for not accepted at once": Mutant(_hasty, 2),
    "sends a create again that got no answer": Mutant(_stubborn, 2),
    "does not note that the tail may have left": Mutant(_unarmed),
    "sends a request again whose line is missing": Mutant(_spendthrift, 2),
    "gives up results that three fetches lacked": Mutant(_impatient, 8),
    "adopts a batch that may be another sending": Mutant(_unrivalled, 6),
    "writes although it was deposed": Mutant(_deaf, 14),
    "packs what no budget has room for": Mutant(_generous, 10),
    "sends what a lowered budget has no room for": Mutant(_deaf_to_budgets, 3),
    "sends more batches of a run at once than it may": Mutant(_crowding, 10),
    "asks live again after an error that may hide an answer": Mutant(_careless, family=LIVE),
    "withdraws what was sent": Mutant(_forgetful, 4),
    "runs any interrupted tool again": Mutant(_repetitive, 5, family=TALKS),
    "does not note that a tool starts": Mutant(_unnoted, family=TALKS),
    "asks a turn again whose answer met a cancellation": Mutant(_ungrateful, 10, family=TALKS),
    "judges answers for a process that lives": Mutant(_presumptuous, 3, family=TALKS),
    "forgets how another process judged": Mutant(_unconvinced, family=TALKS),
    "sends before it is recovered": Mutant(_unmarked, family=RESTORED),
    "lets all keys send when the workspace of one is recovered": Mutant(
        _single_minded, 10, family=RESTORED
    ),
    "is recovered before all that it forgot is known": Mutant(_forceful, family=RESTORED),
    "forgets that a recovery had renewed it": Mutant(_nameless, 10, family=RESTORED),
    "forgets the answers to what is answered already": Mutant(_unmindful, 2, family=RESTORED),
    "leaves the answers to what it does not know": Mutant(_xenophobic, 10, family=RESTORED),
    "asks live again what it may have forgotten": Mutant(_dauntless, 2, family=RESTORED),
    "takes a forgotten turn for the first one": Mutant(_confused, 3, family=TALKS_RESTORED),
    "does not count the tools that it starts": Mutant(_uncounting, 4, family=TALKS_RESTORED),
    "gives the number of a forgotten sending again": Mutant(_ambiguous, 8, family=AGAIN_RESTORED),
    "sends a batch after its deadline": Mutant(_timeless, 7, family=AGAIN),
    "sends live what a batch may have answered": Mutant(_hurried, 4, family=AGAIN),
    "sees no budget but that of the actor": Mutant(_short_sighted, 3, family=AGAIN),
    "counts a batch on the day on which it was packed": Mutant(_of_yesterday, family=AGAIN),
    "counts nothing that was sent before a budget": Mutant(_uncounted, family=AGAIN),
    "makes a new run of what is asked again": Mutant(_forgetting_runs, family=AGAIN),
    "retries what is lost with what has failed": Mutant(_obliging, 2, family=AGAIN),
    "takes a run up that is being cancelled": Mutant(_premature, family=AGAIN),
    "sends what an equal request has the answer to": Mutant(_wasteful, 5, family=EQUAL),
    "sends what its run has twice": Mutant(_repeating, 2, family=EQUAL),
    "forgets the keys of calls": Mutant(_keyless, 8, family=EQUAL),
    "makes a call again whose process has died": Mutant(_heartless, family=EQUAL),
}
