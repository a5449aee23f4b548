"""Transactions of conversations: requests whose answer asks for another turn.

A request becomes *continuing* if its answer is a pause, calls tools, or has the wrong format. It
stays so until its next turn is queued, or it ends. Its params then hold the whole conversation and
are sent under a new sending number. Only runs that converse have such requests; in other runs every
answer is final.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)

from claude_batch.core.outcome import Disposition
from claude_batch.core.states import FAILED, RequestState, Stop
from claude_batch.ledger import transitions
from claude_batch.ledger.portable_sql import count_if, count_rows, upsert
from claude_batch.ledger.schema import (
    OF_ANSWER,
    conversations,
    judges,
    lanes,
    params,
    requests,
    results,
    runs,
    tool_calls,
    verdicts,
)
from claude_batch.ledger.store import Record
from claude_batch.ledger.transitions import stands_at

_OF_VERDICT = and_(
    verdicts.c.request_seq == requests.c.seq, verdicts.c.sending == requests.c.answered_by
)


class NextTurn(NamedTuple):
    """The next turn of a conversation."""

    seq: int
    answered_by: int
    """The sending that it continues. Nothing is done if the conversation has already continued."""
    body: bytes
    """The params of the next turn."""
    rejected: bool
    """Whether the answer did not match the response format, and so is not a turn."""


class Verdict(NamedTuple):
    """The verdict of the caller's own function on an answer."""

    seq: int
    sending: int
    run_id: str
    problem: str | None
    """The problem of the answer; None if it is accepted."""


class ToolResult(NamedTuple):
    """The result of a tool call."""

    seq: int
    sending: int
    tool_use_id: str
    output: bytes
    """Content of the tool's result, as JSON."""
    is_error: bool


# Conversations between two turns ------------------------------------------------------------------


_CONTINUING = (
    select(requests.c.seq)
    .join(lanes, lanes.c.id == requests.c.lane_id)
    .where(
        requests.c.state == RequestState.CONTINUING,
        lanes.c.workspace_id == bindparam("workspace"),
    )
    .limit(1)
)


def is_continuing(tx: Connection, workspace_id: int) -> bool:
    """Return whether any request of a workspace is between two turns."""
    return bool(tx.scalar(_CONTINUING, {"workspace": workspace_id}))


def continuing(tx: Connection, workspace_id: int, *, after: int, limit: int) -> list[Record]:
    """Return the requests of a workspace that are between two turns, in order, without texts.

    Columns of the request: ``seq``, ``run_id``, ``position``, ``answered_by``, ``disposition``,
    ``turns``, ``rejected``, ``stopped`` (why no turn can follow), ``goes_live`` (its next turn is a
    live call) and ``cancelled``. Columns of its run: ``tools``, ``max_turns``, ``turn_linger``,
    ``linger`` and ``validation_attempts``. Columns of the answer's verdict, if there is one:
    ``judged`` and ``problem``.
    """
    return list(
        tx.execute(
            select(
                requests.c.seq,
                requests.c.run_id,
                requests.c.position,
                requests.c.answered_by,
                results.c.disposition,
                func.coalesce(conversations.c.turns, 0).label("turns"),
                func.coalesce(conversations.c.rejected, 0).label("rejected"),
                conversations.c.stopped,
                or_(requests.c.live.is_not(None), runs.c.live.is_not(None)).label("goes_live"),
                or_(requests.c.cancelled, runs.c.cancelled.is_not(None)).label("cancelled"),
                verdicts.c.request_seq.is_not(None).label("judged"),
                verdicts.c.problem,
                runs.c.tools,
                runs.c.max_turns,
                runs.c.turn_linger,
                runs.c.linger,
                runs.c.validation_attempts,
            )
            .join(runs, runs.c.id == requests.c.run_id)
            .join(lanes, lanes.c.id == requests.c.lane_id)
            .join(results, OF_ANSWER)
            .outerjoin(conversations, conversations.c.request_seq == requests.c.seq)
            .outerjoin(verdicts, _OF_VERDICT)
            .where(
                requests.c.state == RequestState.CONTINUING,
                lanes.c.workspace_id == workspace_id,
                requests.c.seq > after,
            )
            .order_by(requests.c.seq)
            .limit(limit)
        )
    )


def turn_of(tx: Connection, seq: int, sending: int) -> tuple[bytes, bytes] | None:
    """Return a request's present params, and the result line that answered it; None if gone."""
    row = tx.execute(
        select(params.c.body, results.c.raw)
        .join(results, results.c.request_seq == params.c.request_seq)
        .where(params.c.request_seq == seq, results.c.sending == sending)
    ).first()
    return None if row is None else (row.body, row.raw)


class Continuing(NamedTuple):
    """How many requests of a run are between two turns."""

    all: int
    tools: int
    """Those whose tools have to run."""
    answers: int
    """Those whose answer has no verdict yet."""


def tool_callers(tx: Connection) -> int:
    """Return how many conversations wait for the results of tools, in all runs."""
    return count_rows(
        tx,
        requests.join(results, OF_ANSWER),
        requests.c.state == RequestState.CONTINUING,
        results.c.disposition == Disposition.TOOLS,
    )


def continuing_counts(tx: Connection, run_id: str) -> Continuing:
    """Return how many of a run's requests are between two turns."""
    asks = results.c.disposition
    counts = tx.execute(
        select(
            func.count(),
            count_if(asks == Disposition.TOOLS),
            count_if(and_(asks == Disposition.FINAL, verdicts.c.request_seq.is_(None))),
        )
        .select_from(requests)
        .join(results, OF_ANSWER)
        .outerjoin(verdicts, _OF_VERDICT)
        .where(requests.c.state == RequestState.CONTINUING, requests.c.run_id == run_id)
    ).one()
    return Continuing(*counts)


def running_calls(tx: Connection, run_id: str) -> list[Record]:
    """Return the tool calls of a run that have no result yet: request, and process that began it.

    The process may have died meanwhile.
    """
    return list(
        tx.execute(
            select(tool_calls.c.request_seq, tool_calls.c.process)
            .join(requests, requests.c.seq == tool_calls.c.request_seq)
            .where(
                requests.c.run_id == run_id,
                requests.c.state == RequestState.CONTINUING,
                requests.c.answered_by == tool_calls.c.sending,
                tool_calls.c.finished.is_(None),
            )
        )
    )


def next_turns(tx: Connection, turns: Sequence[NextTurn], *, due: float) -> int:
    """Queue the next turn of conversations; return how many were still to be queued.

    A conversation that was cancelled meanwhile stays where it stands. Nothing would send its turn,
    and the next look at it ends it.
    """
    queued = 0
    for turn in turns:
        at = _where_it_stands(tx, turn.seq)
        if at is None or at.answered_by != turn.answered_by or at.cancelled:
            continue
        _count_turn(tx, at, rejected=turn.rejected)
        tx.execute(update(params).where(params.c.request_seq == turn.seq).values(body=turn.body))
        transitions.queue_turn(tx, turn.seq, size=len(turn.body), due=due)
        queued += 1
    return queued


def note_forgotten_turn(tx: Connection, seq: int) -> None:
    """Note that the next turn of a conversation was sent, although the ledger does not have it.

    The params of that turn are lost, so an answer to it can end the conversation, but no further
    turn can follow.
    """
    at = _where_it_stands(tx, seq)
    if at is None:
        return
    _count_turn(tx, at, rejected=at.disposition == Disposition.FINAL)
    note_doubtful_turn(tx, seq)


def note_doubtful_turn(tx: Connection, seq: int) -> None:
    """Note that an answer may be to a later turn of a conversation than the ledger has.

    It can end the conversation, but no further turn can follow from it.
    """
    _note_stop(tx, seq, {"stopped": Stop.TURNS_FORGOTTEN})


def forget_doubts(tx: Connection, workspace_id: int) -> None:
    """Let conversations be continued that wait, or have failed: their next turn is known.

    A recovery notes a doubt where a later turn may have failed, and ends with this.
    """
    waiting = select(requests.c.seq).where(
        requests.c.lane_id.in_(select(lanes.c.id).where(lanes.c.workspace_id == workspace_id)),
        requests.c.state.in_((RequestState.QUEUED, *FAILED)),
    )
    doubtful = and_(
        conversations.c.stopped == Stop.TURNS_FORGOTTEN, conversations.c.request_seq.in_(waiting)
    )
    # A row says that there were turns, so one with nothing else than the doubt goes.
    columns = ("turns", "rejected", "consumed", "cost")
    is_empty = and_(*(conversations.c[name] == 0 for name in columns))
    tx.execute(delete(conversations).where(doubtful, is_empty))
    tx.execute(update(conversations).where(doubtful).values(stopped=None))


def begin_anew(tx: Connection, which: Any) -> None:
    """Let conversations begin again with their first turn, if the ledger lacks the last ones.

    ``which`` selects requests that are about to be sent again on the user's order.
    """
    forgotten = and_(
        which,
        conversations.c.request_seq == requests.c.seq,
        conversations.c.stopped == Stop.TURNS_FORGOTTEN,
    )
    query = select(requests.c.seq, requests.c.sendings, conversations.c.first_params)
    for row in tx.execute(query.where(forgotten)).all():
        mine = conversations.c.request_seq == row.seq
        none = {"turns": 0, "rejected": 0, "stopped": None, "consumed": row.sendings}
        tx.execute(update(conversations).where(mine).values(**none))
        if row.first_params is not None:
            first = update(params).where(params.c.request_seq == row.seq)
            tx.execute(first.values(body=row.first_params))
            transitions.resize(tx, row.seq, len(row.first_params))


def _where_it_stands(tx: Connection, seq: int) -> Record | None:
    """Return what is known of a conversation between two turns; None if it is not between two."""
    return tx.execute(
        select(
            requests.c.seq,
            requests.c.answered_by,
            requests.c.sendings,
            results.c.disposition,
            results.c.cost,
            params.c.body,
            or_(requests.c.cancelled, runs.c.cancelled.is_not(None)).label("cancelled"),
        )
        .select_from(requests)
        .join(runs, runs.c.id == requests.c.run_id)
        .join(results, OF_ANSWER)
        .join(params, params.c.request_seq == requests.c.seq)
        .where(requests.c.seq == seq, transitions.has_state(RequestState.CONTINUING))
    ).first()


def _count_turn(tx: Connection, at: Record, *, rejected: bool) -> None:
    """Count the answer that a conversation stands at, because another turn follows it."""
    step, fault = (0, 1) if rejected else (1, 0)
    # All that was sent until now was this turn, also what is answered later.
    consumed = max(at.answered_by, at.sendings)
    first = upsert(conversations).values(
        request_seq=at.seq,
        turns=step,
        rejected=fault,
        consumed=consumed,
        cost=at.cost,
        first_params=at.body,
    )
    now, new = conversations.c, first.excluded
    added = {
        "turns": now.turns + new.turns,
        "rejected": now.rejected + new.rejected,
        "consumed": new.consumed,
        "cost": now.cost + new.cost,
        "first_params": func.coalesce(now.first_params, new.first_params),
    }
    tx.execute(first.on_conflict_do_update(index_elements=["request_seq"], set_=added))


def stop(tx: Connection, seq: int, sending: int, why: Stop, note: str) -> None:
    """End a conversation that cannot continue; its last answer is kept."""
    if transitions.stop_conversation(tx, seq, sending):
        _note_stop(tx, seq, {"stopped": why, "note": note})


def _note_stop(tx: Connection, seq: int, values: Mapping[str, str]) -> None:
    new = upsert(conversations).values(
        request_seq=seq, turns=0, rejected=0, consumed=0, cost=0, **values
    )
    tx.execute(new.on_conflict_do_update(index_elements=["request_seq"], set_=values))


def judges_of(tx: Connection, run_ids: Collection[str]) -> list[Record]:
    """Return the processes that judge answers of these runs, and when each was last seen to."""
    return list(tx.execute(select(judges).where(judges.c.run_id.in_(run_ids))))


def add_verdicts(tx: Connection, found: Sequence[Verdict], *, process: str, now: float) -> None:
    """Record how answers were judged; the first verdict of each counts.

    Nothing is recorded for an answer that its conversation does not wait for any more. The process
    is seen to judge its runs.
    """
    for each in found:
        # Row numbers are reused, so a request may be another one meanwhile.
        waits = (stands_at(each.seq, each.sending), requests.c.run_id == each.run_id)
        if tx.execute(select(requests.c.seq).where(*waits)).first() is not None:
            new = upsert(verdicts).values(
                request_seq=each.seq, sending=each.sending, problem=each.problem
            )
            tx.execute(new.on_conflict_do_nothing())
    tx.execute(
        update(judges)
        .where(judges.c.process == process, judges.c.run_id.in_({each.run_id for each in found}))
        .values(seen=now)
    )


# Calls of tools -----------------------------------------------------------------------------------


def calls_of(tx: Connection, seq: int, sending: int) -> dict[str, Record]:
    """Return the started tool calls of an answer, by their ids."""
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
    """Record that a tool call starts here; return False if it must not start.

    ``instead_of``: the ended process that had started it.
    """
    if tx.execute(select(requests.c.seq).where(stands_at(seq, sending))).first() is None:
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
    return _add_call(tx, (seq, sending, tool_use_id, name, process, now))


def _add_call(tx: Connection, call: tuple[int, int, str, str, str, float]) -> bool:
    """Record a tool call, the first columns of its row; return False if it is recorded already."""
    new = upsert(tool_calls).values(call).on_conflict_do_nothing()
    return bool(tx.execute(new).rowcount)


FORGOTTEN = "forgotten"
"""The process of tool calls that a restored ledger may have forgotten. No process has this name."""


def note_forgotten_call(
    tx: Connection, seq: int, sending: int, tool_use_id: str, *, name: str, now: float
) -> None:
    """Note that a tool call without a record may have run after the restored copy was made."""
    _add_call(tx, (seq, sending, tool_use_id, name, FORGOTTEN, now))


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
    """Record the results of at least one tool call that this process has started."""
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
