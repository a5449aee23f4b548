"""Transactions of conversations: requests whose answer asks for another turn.

A request that was answered with a pause, with calls of tools, or in the wrong shape is *continuing*
until its next turn is queued, or it ends. Its params then hold the whole conversation, and go out
under a sending of their own. Only runs that converse have such requests: in others every answer is
final.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import sqlite

from claude_batch.core.states import RequestState
from claude_batch.ledger.schema import (
    batch_runs,
    conversations,
    lanes,
    params,
    requests,
    results,
    runs,
    tool_calls,
)
from claude_batch.ledger.store import Record, next_stamp

__all__ = [
    "NextTurn",
    "Stop",
    "ToolResult",
    "calls_of",
    "continuing",
    "continuing_counts",
    "end",
    "finish_calls",
    "is_continuing",
    "is_usable",
    "next_turns",
    "of_this_turn",
    "start_call",
    "state_after_answer",
    "stop",
    "take_turns",
    "turn_of",
    "wants_a_turn",
]


class Stop(StrEnum):
    """Why a conversation cannot go on."""

    MAX_TURNS = "max_turns"  # the last answer that it may have asks for another turn
    TOOL_INTERRUPTED = "tool_interrupted"  # a tool may have done its work, and told nobody
    INVALID_OUTPUT = "invalid_output"  # no answer was of the shape that was asked for
    TOO_LARGE = "too_large"  # it has outgrown what a batch can carry


class NextTurn(NamedTuple):
    """What a conversation goes on with."""

    seq: int
    answered_by: int
    """The sending that it goes on from: nothing is done where it has gone on already."""
    body: bytes
    """The params of the next turn."""
    rejected: bool
    """Whether the answer was not of the shape that was asked for, and no turn of its own."""


class ToolResult(NamedTuple):
    """What came of a call."""

    seq: int
    sending: int
    tool_use_id: str
    output: bytes
    """Content of the tool's result, as JSON."""
    is_error: bool


# What an answer asks for ----------------------------------------------------------------------


def _run_of_request(*conditions: Any) -> Any:
    return exists().where(runs.c.id == requests.c.run_id, runs.c.converses, *conditions)


def wants_a_turn(answer: Any = results) -> Any:
    """Whether the joined answer of a request is not its last, as its run is made."""
    goes_on = or_(
        and_(answer.c.disposition == "paused", _run_of_request()),
        and_(answer.c.disposition == "tools", _run_of_request(runs.c.tools.is_not(None))),
        and_(answer.c.disposition == "final", _run_of_request(runs.c.validation_attempts > 1)),
    )
    return and_(answer.c.outcome == RequestState.SUCCEEDED, goes_on)


def state_after_answer(answer: Any = results) -> Any:
    """The state of a request after the joined answer."""
    return case(
        (answer.c.disposition == RequestState.MALFORMED, RequestState.MALFORMED),
        (wants_a_turn(answer), RequestState.CONTINUING),
        (
            and_(answer.c.disposition.in_(("refused", "window_exceeded")), _run_of_request()),
            answer.c.disposition,
        ),
        else_=answer.c.outcome,
    )


def is_usable(answer: Any = results) -> Any:
    """Whether the joined line is an answer that a request can end with instead of being sent."""
    return and_(answer.c.outcome == RequestState.SUCCEEDED, answer.c.disposition != "malformed")


def of_this_turn(answer: Any = results) -> Any:
    """Whether the joined answer is one that its conversation has not gone on from."""
    consumed = (
        select(conversations.c.consumed)
        .where(conversations.c.request_seq == requests.c.seq)
        .scalar_subquery()
    )
    return answer.c.sending > func.coalesce(consumed, -1)


def take_turns(
    tx: Connection,
    batch_id: int,
    joined: Any,
    dispositions: Collection[str],
    *,
    sendings: Any,
    stamp: int,
) -> int:
    """Of a batch that is being collected: the answers that are no ordinary end of a request.

    ``joined`` binds requests to their results. Returns how many became final.
    """
    found = tx.execute(
        select(
            func.count(),
            func.max(case((runs.c.tools.is_not(None), 1), else_=0)),
            func.max(runs.c.validation_attempts),
        )
        .select_from(batch_runs)
        .join(runs, runs.c.id == batch_runs.c.run_id)
        .where(batch_runs.c.batch_id == batch_id, runs.c.converses)
    ).one()
    if not found[0]:
        return 0
    taken = {
        "answered_by": results.c.sending,
        "attempts": requests.c.attempts + 1,
        "sendings": sendings,
    }
    # What no line asks for is not looked for, line by line.
    if (
        "paused" in dispositions
        or ("tools" in dispositions and found[1])
        or (found[2] > 1 and "final" in dispositions)
    ):
        tx.execute(
            update(requests)
            .where(joined, wants_a_turn())
            .values(state=RequestState.CONTINUING, **taken)
        )
    if not {"refused", "window_exceeded"}.intersection(dispositions):
        return 0
    return tx.execute(
        update(requests)
        .where(
            joined,
            results.c.disposition.in_(("refused", "window_exceeded")),
            _run_of_request(),
        )
        .values(state=results.c.disposition, finished=stamp, **taken)
    ).rowcount


# What is between two turns --------------------------------------------------------------------


def is_continuing(tx: Connection, workspace_id: int) -> bool:
    """Whether any request of a workspace is between two turns."""
    return bool(
        tx.scalar(
            select(requests.c.seq)
            .join(lanes, lanes.c.id == requests.c.lane_id)
            .where(
                requests.c.state == RequestState.CONTINUING, lanes.c.workspace_id == workspace_id
            )
            .limit(1)
        )
    )


def continuing(
    tx: Connection, workspace_id: int, *, after: int = 0, limit: int = 1000
) -> list[Record]:
    """Requests of a workspace that are between two turns, in order, without their texts.

    Its ``seq``, ``run_id``, ``answered_by``, ``disposition``, ``turns``, ``rejected``,
    ``goes_live`` (its next turn is asked live) and ``cancelled``; its run's ``tools``,
    ``max_turns``, ``turn_linger``, ``linger`` and ``validation_attempts``.
    """
    return list(
        tx.execute(
            select(
                requests.c.seq,
                requests.c.run_id,
                requests.c.answered_by,
                results.c.disposition,
                func.coalesce(conversations.c.turns, 0).label("turns"),
                func.coalesce(conversations.c.rejected, 0).label("rejected"),
                or_(requests.c.live.is_not(None), runs.c.live.is_not(None)).label("goes_live"),
                or_(requests.c.cancelled, runs.c.cancelled.is_not(None)).label("cancelled"),
                runs.c.tools,
                runs.c.max_turns,
                runs.c.turn_linger,
                runs.c.linger,
                runs.c.validation_attempts,
            )
            .join(runs, runs.c.id == requests.c.run_id)
            .join(lanes, lanes.c.id == requests.c.lane_id)
            .join(
                results,
                and_(
                    results.c.request_seq == requests.c.seq,
                    results.c.sending == requests.c.answered_by,
                ),
            )
            .outerjoin(conversations, conversations.c.request_seq == requests.c.seq)
            .where(
                requests.c.state == RequestState.CONTINUING,
                lanes.c.workspace_id == workspace_id,
                requests.c.seq > after,
            )
            .order_by(requests.c.seq)
            .limit(limit)
        )
    )


def turn_of(tx: Connection, seq: int, sending: int) -> tuple[bytes, bytes]:
    """A request's params as they are now, and the result line that it was answered with."""
    row = tx.execute(
        select(params.c.body, results.c.raw)
        .join(results, results.c.request_seq == params.c.request_seq)
        .where(params.c.request_seq == seq, results.c.sending == sending)
    ).one()
    return row.body, row.raw


def continuing_counts(tx: Connection, run_id: str) -> tuple[int, int]:
    """Of a run's requests between two turns: how many, and how many of them wait for tools."""
    count, tools = tx.execute(
        select(
            func.count(),
            func.coalesce(func.sum(case((results.c.disposition == "tools", 1), else_=0)), 0),
        )
        .select_from(requests)
        .join(
            results,
            and_(
                results.c.request_seq == requests.c.seq,
                results.c.sending == requests.c.answered_by,
            ),
        )
        .where(requests.c.state == RequestState.CONTINUING, requests.c.run_id == run_id)
    ).one()
    return count, tools


def _stands_at(seq: int, sending: int) -> Any:
    return and_(
        requests.c.seq == seq,
        requests.c.state == RequestState.CONTINUING,
        requests.c.answered_by == sending,
    )


def next_turns(tx: Connection, turns: Sequence[NextTurn], *, due: float) -> int:
    """Queue the next turn of conversations; returns how many there still were to be queued."""
    queued = 0
    for turn in turns:
        row = tx.execute(
            select(results.c.cost, params.c.body, conversations.c.request_seq)
            .select_from(requests)
            .join(
                results,
                and_(
                    results.c.request_seq == requests.c.seq,
                    results.c.sending == requests.c.answered_by,
                ),
            )
            .join(params, params.c.request_seq == requests.c.seq)
            .outerjoin(conversations, conversations.c.request_seq == requests.c.seq)
            .where(_stands_at(turn.seq, turn.answered_by))
        ).first()
        if row is None:
            continue
        step, fault = (0, 1) if turn.rejected else (1, 0)
        if row.request_seq is None:
            tx.execute(
                insert(conversations).values(
                    request_seq=turn.seq,
                    turns=step,
                    rejected=fault,
                    consumed=turn.answered_by,
                    cost=row.cost,
                    first_params=row.body,
                )
            )
        else:
            tx.execute(
                update(conversations)
                .where(conversations.c.request_seq == turn.seq)
                .values(
                    turns=conversations.c.turns + step,
                    rejected=conversations.c.rejected + fault,
                    consumed=turn.answered_by,
                    cost=conversations.c.cost + row.cost if row.cost is not None else None,
                    first_params=func.coalesce(conversations.c.first_params, row.body),
                )
            )
        tx.execute(update(params).where(params.c.request_seq == turn.seq).values(body=turn.body))
        # Each turn has all its attempts, and reserves of a budget what it can cost itself.
        tx.execute(
            update(requests)
            .where(requests.c.seq == turn.seq)
            .values(
                state=RequestState.QUEUED,
                batch_id=None,
                answered_by=None,
                size=len(turn.body),
                due=due,
                attempts=0,
                forgiven=0,
                reserve=None,
            )
        )
        queued += 1
    return queued


_END = (
    update(requests)
    .where(
        requests.c.seq == bindparam("of_seq"),
        requests.c.answered_by == bindparam("of_sending"),
        requests.c.state == RequestState.CONTINUING,
    )
    .values(state=bindparam("to"), finished=bindparam("at"))
)


def end(tx: Connection, ends: Sequence[tuple[int, int, RequestState]]) -> None:
    """Let answers that conversations stand at be their last: request, sending, final state."""
    if ends:
        stamp = next_stamp(tx)
        tx.execute(
            _END,
            [
                {"of_seq": seq, "of_sending": sending, "to": state, "at": stamp}
                for seq, sending, state in ends
            ],
        )


def stop(tx: Connection, seq: int, sending: int, why: Stop, note: str) -> None:
    """End a conversation that cannot go on; its last answer is kept."""
    if not tx.execute(
        update(requests)
        .where(_stands_at(seq, sending))
        .values(state=RequestState.STOPPED, finished=next_stamp(tx))
    ).rowcount:
        return
    values: dict[str, Any] = {"stopped": why, "note": note}
    known = tx.execute(
        update(conversations).where(conversations.c.request_seq == seq).values(**values)
    )
    if not known.rowcount:
        tx.execute(
            insert(conversations).values(
                request_seq=seq, turns=0, rejected=0, consumed=0, cost=0, **values
            )
        )


# Calls of tools -------------------------------------------------------------------------------


def calls_of(tx: Connection, seq: int, sending: int) -> dict[str, Record]:
    """The calls of an answer that have started, by their ids."""
    rows = tx.execute(
        select(tool_calls).where(tool_calls.c.request_seq == seq, tool_calls.c.sending == sending)
    )
    return {row.tool_use_id: row for row in rows}


def start_call(
    tx: Connection,
    seq: int,
    sending: int,
    tool_use_id: str,
    *,
    name: str,
    process: str,
    now: float,
    instead_of: str | None = None,
) -> bool:
    """Note that a call starts here; False where it must not.

    ``instead_of``: the process that had started it, and has gone.
    """
    if tx.execute(select(requests.c.seq).where(_stands_at(seq, sending))).first() is None:
        return False
    if instead_of is not None:
        again = (
            update(tool_calls)
            .where(
                tool_calls.c.request_seq == seq,
                tool_calls.c.sending == sending,
                tool_calls.c.tool_use_id == tool_use_id,
                tool_calls.c.process == instead_of,
                tool_calls.c.finished.is_(None),
            )
            .values(process=process, started=now)
        )
        return bool(tx.execute(again).rowcount)
    new = (
        sqlite.insert(tool_calls)
        .values(
            request_seq=seq,
            sending=sending,
            tool_use_id=tool_use_id,
            name=name,
            process=process,
            started=now,
        )
        .on_conflict_do_nothing()
    )
    return bool(tx.execute(new).rowcount)


_FINISH = (
    update(tool_calls)
    .where(
        tool_calls.c.request_seq == bindparam("of_seq"),
        tool_calls.c.sending == bindparam("of_sending"),
        tool_calls.c.tool_use_id == bindparam("of_id"),
        tool_calls.c.process == bindparam("of_process"),
        tool_calls.c.finished.is_(None),
    )
    .values(finished=bindparam("at"), output=bindparam("what"), is_error=bindparam("whether_error"))
)


def finish_calls(tx: Connection, done: Sequence[ToolResult], *, process: str, now: float) -> None:
    """Note what came of calls, one at least, that this process has started."""
    tx.execute(
        _FINISH,
        [
            {
                "of_seq": each.seq,
                "of_sending": each.sending,
                "of_id": each.tool_use_id,
                "of_process": process,
                "at": now,
                "what": each.output,
                "whether_error": each.is_error,
            }
            for each in done
        ],
    )
