"""Transactions of recovery: batches at the API that a restored ledger has forgotten."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    and_,
    case,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from claude_batch.core.outcome import Disposition
from claude_batch.core.states import AT_API, FAILED, BatchState, RequestState
from claude_batch.ledger import charges, conversations, transitions
from claude_batch.ledger.batch_contents import note_runs, recount
from claude_batch.ledger.high_water import Mark, count_post, set_behind
from claude_batch.ledger.live_calls import may_take_turns
from claude_batch.ledger.portable_sql import among, in_chunks, insert_one, of_workspace, update_row
from claude_batch.ledger.retries import ON_ORDER
from claude_batch.ledger.schema import (
    OF_ANSWER,
    batches,
    former_members,
    lanes,
    requests,
    results,
    runs,
    workspaces,
)
from claude_batch.ledger.store import Record
from claude_batch.ledger.unknown_batches import remember_former, snapshot_of


class Line(NamedTuple):
    """What the result line of one request in a forgotten batch shows."""

    sending: int
    """Number of the sending that it belongs to."""
    outcome: str
    cost: int | None
    """Nano-dollars; None for an unknown price."""
    asks: bool | None
    """Whether the answer asks for another turn, or may; None if the request failed."""

    @property
    def succeeded(self) -> bool:
        """Whether the request was answered."""
        return self.asks is not None


class Claim(NamedTuple):
    """The part of an adopted batch that is the ledger's own."""

    batch_id: int
    known: int
    """Number of requests that are in the ledger."""


def begin(tx: Connection, workspace_id: int, at: float) -> float:
    """Block sending for a workspace until recovery has ended; return when the block began.

    Both are the API's times.
    """
    set_behind(tx, at, workspaces.c.id == workspace_id, workspaces.c.behind.is_(None))
    return float(
        tx.execute(select(workspaces.c.behind).where(workspaces.c.id == workspace_id)).scalar_one()
    )


def begin_again(tx: Connection, at: float) -> None:
    """Let the recovery of all workspaces that are not recovered yet begin at this time.

    The others were recovered before, and stay so.
    """
    set_behind(tx, at, workspaces.c.behind.is_not(None))


def end(tx: Connection, workspace_id: int, mark: Mark | None) -> int:
    """End the recovery of a workspace; return the new value for the high-water mark."""
    update_row(tx, workspaces, workspace_id, behind=None)
    return count_post(tx, at_least=0 if mark is None else mark.posts + 1)


class LastSending(NamedTuple):
    """The last POST of a workspace that the ledger records."""

    server_time: float
    listed: frozenset[str] | None
    """Ids of the batches that were in the API's list then, or of the batch that it made; None if
    they are not stored any more."""


def last_sending(tx: Connection, workspace_id: int) -> LastSending | None:
    """Return the last POST that the ledger records; None if there is none."""
    row = tx.execute(
        select(batches)
        .where(of_workspace(batches.c.lane_id, workspace_id), batches.c.server_time.is_not(None))
        .order_by(batches.c.server_time.desc(), batches.c.id.desc())
        .limit(1)
    ).one_or_none()
    if row is None:
        return None
    if row.remote_id is not None:
        return LastSending(row.server_time, frozenset([row.remote_id]))
    return LastSending(row.server_time, None if row.snapshot is None else snapshot_of(row))


def unknown_owner(tx: Connection, lines: Mapping[str, Line]) -> int | None:
    """Return the unknown batch whose POST carried all of these requests under these numbers.

    ``lines`` are by request id, here as below. None if there is none: since the restored state,
    some of them were sent again, perhaps together with others.
    """
    owner: dict[tuple[str, int], int] = {}
    unknown = batches.c.state == BatchState.UNKNOWN
    members = (
        select(requests.c.id, requests.c.sendings, batches.c.posts, batches.c.id.label("batch"))
        .join(batches, batches.c.id == requests.c.batch_id)
        .where(requests.c.state == RequestState.PACKED, unknown)
    )
    for row in among(tx, members, requests.c.id, lines):
        owner |= {(row.id, row.sendings + post): row.batch for post in range(1, row.posts + 1)}
    left = (
        select(requests.c.id, former_members.c.sending, former_members.c.batch_id)
        .join(former_members, former_members.c.request_seq == requests.c.seq)
        .join(batches, batches.c.id == former_members.c.batch_id)
        .where(unknown)
    )
    for row in among(tx, left, requests.c.id, lines):
        owner[row.id, row.sending] = row.batch_id
    owners = {owner.get((request_id, line.sending)) for request_id, line in lines.items()}
    return owners.pop() if len(owners) == 1 else None


def has_request(tx: Connection, request_id: str) -> bool:
    """Return whether the ledger has a request."""
    return tx.scalar(select(requests.c.seq).where(requests.c.id == request_id)) is not None


def adopt_forgotten(
    tx: Connection,
    workspace_id: int,
    remote_id: str,
    lines: Mapping[str, Line],
    *,
    counts: Mapping[str, int],
    created: float,
    ended: float,
) -> Claim | None:
    """Adopt a forgotten batch at the API; its results are then collected as usual.

    Requests that wait to be sent move into the batch, and so do those of an unknown batch that were
    sent again, and conversations between two turns of which it answers a later turn. Requests that
    have an answer, or are in another batch, stay, and their lines are kept. A conversation whose
    answer may be to a later turn than the ledger has does not go on from it. What requests that are
    not in the ledger have cost is charged to the day of the batch. ``counts`` are the API's, by
    outcome; those of requests that are not in the ledger are not stored.
    Returns None if the workspace has no lane, and so no request.
    """
    lane_id = tx.scalar(
        select(lanes.c.id).where(lanes.c.workspace_id == workspace_id).order_by(lanes.c.id).limit(1)
    )
    if lane_id is None:
        return None
    _reopen_failed(tx, lines)
    members = _sorted_out(tx, lines, created)
    waiting, others = members.waiting, members.others
    _leave_unknown(tx, waiting.values())
    for seq in members.conversing:
        conversations.note_forgotten_turn(tx, seq)
    for seq in members.doubtful:
        conversations.note_doubtful_turn(tx, seq)
    strange = lines.keys() - waiting.keys() - others.keys()
    # Otherwise their successes would be missing, and any failure could be one of them.
    own = Counter(counts)
    own.subtract(lines[identifier].outcome for identifier in strange)
    # Nor are requests whose lines the API does not send known to be in the batch.
    own["succeeded"] -= max(0, sum(counts.values()) - len(lines))
    known = len(waiting) + len(others)
    batch_id = insert_one(
        tx,
        batches,
        lane_id=lane_id,
        state=BatchState.ENDED,
        remote_id=remote_id,
        adopted="proved",
        posts=1,
        request_count=known,
        params_bytes=0,
        counts=json.dumps({outcome: max(0, count) for outcome, count in own.items()}),
        poll_interval=30.0,
        max_poll_interval=300.0,
        created=created,
        day=int(created // charges.DAY),
        submitted=created,
        ended=ended,
        note="found at the API by `claude-batch ledger recover`",
    )
    for identifier, seq in waiting.items():
        # The sending number is this value plus the batch's own POST.
        transitions.adopt(tx, seq, batch_id, sendings=lines[identifier].sending - 1)
    for identifier, seq in others.items():
        tx.execute(
            insert(former_members).values(
                batch_id=batch_id, request_seq=seq, sending=lines[identifier].sending
            )
        )
        transitions.pass_over(tx, seq, lines[identifier].sending)
    for source in members.sources:
        recount(tx, source)
    note_runs(tx, batch_id)
    costs = [lines[identifier].cost for identifier in strange]
    charges.keep_strange(tx, batch_id, [cost for cost in costs if cost != 0])
    return Claim(batch_id, known)


def _reopen_failed(tx: Connection, lines: Mapping[str, Line]) -> None:
    """Let failed conversations wait again that were sent since the restored state, and answered.

    They then take the answers to all their turns in order, as other conversations do. Otherwise a
    later retry would go on from the first answer, and pay for the turns after it again. A failed
    request without turns can still take its only answer then. A cancellation or a deadline holds
    as before.
    """
    answered = {identifier: line.sending for identifier, line in lines.items() if line.succeeded}
    failed = [
        (row.seq, row.run_id)
        for row in _standings(tx, answered)
        if row.converses and row.state in ON_ORDER and answered[row.id] > row.last
    ]
    for some in in_chunks([seq for seq, _ in failed]):
        transitions.ask_again(tx, requests.c.seq.in_(some), due=0.0, forgive=False)
    # Its output lacks the answers.
    for some in in_chunks({run_id for _, run_id in failed}):
        tx.execute(update(runs).where(runs.c.id.in_(some)).values(delivered=None))


class _Members(NamedTuple):
    """The ledger's requests in a forgotten batch: row numbers by id."""

    waiting: dict[str, int]
    """Those that take their answers from it."""
    conversing: list[int]
    """Those of them whose answer is to a later turn than the ledger has."""
    doubtful: list[int]
    """Conversations whose answer may be to a later turn than the ledger has; or one that is found
    later, because what has failed here may have been of a later turn too."""
    others: dict[str, int]
    sources: set[int]
    """Batches that lose some of their requests to it."""


def _sorted_out(tx: Connection, lines: Mapping[str, Line], created: float) -> _Members:
    found = _Members({}, [], [], {}, set())
    for row in _standings(tx, lines):
        line = lines[row.id]
        sending = line.sending
        # The ledger has the conversation between two turns, but a later turn was already sent.
        # If that has failed, nothing was paid for, and the conversation goes on from here. A batch
        # that was created before the answer came is another sending of the same turn.
        conversing = (
            row.state == RequestState.CONTINUING
            and sending > row.answered_by
            and line.succeeded
            and created >= (row.answer_ended or 0.0)
        )
        again = row.is_unknown and sending > row.last
        # An earlier sending may be found after a later one. To move into it would give its
        # number to the next sending.
        waits = row.waits and sending > row.sendings
        mine = found.waiting if waits or conversing or again else found.others
        mine[row.id] = row.seq
        if conversing:
            found.conversing.append(row.seq)
        # After a failure, a conversation between two turns goes on with the turn that it has.
        elif _may_be_later(row, line) and (
            line.succeeded or row.id in found.waiting or row.state in FAILED
        ):
            found.doubtful.append(row.seq)
        if waits and row.batch_id is not None:
            found.sources.add(row.batch_id)
    return found


def _standings(tx: Connection, ids: Iterable[str]) -> Iterator[Any]:
    """Yield how the ledger's requests among these ids stand; ``last`` is their last sending."""
    answer, run = batches.alias("answer"), runs.alias("run")
    posts = case((requests.c.state == RequestState.PACKED, func.coalesce(batches.c.posts, 0)))
    query = (
        select(
            requests.c.id,
            requests.c.seq,
            requests.c.run_id,
            requests.c.batch_id,
            requests.c.state,
            requests.c.answered_by,
            requests.c.sendings,
            run.c.converses,
            may_take_turns().label("may_take_turns"),
            batches.c.remote_id,
            # The row of live calls has the time of the last one.
            case((answer.c.state != BatchState.LIVE, answer.c.ended)).label("answer_ended"),
            or_(
                requests.c.state.in_((RequestState.QUEUED, RequestState.HELD)),
                (requests.c.state == RequestState.PACKED) & (batches.c.state == BatchState.PACKED),
            ).label("waits"),
            and_(
                requests.c.state == RequestState.PACKED,
                batches.c.state == BatchState.UNKNOWN,
            ).label("is_unknown"),
            and_(
                requests.c.state == RequestState.PACKED,
                batches.c.state.in_(AT_API),
            ).label("is_at_api"),
            (requests.c.sendings + func.coalesce(posts, 0)).label("last"),
        )
        .join(run, run.c.id == requests.c.run_id)
        .outerjoin(batches, batches.c.id == requests.c.batch_id)
        .outerjoin(results, OF_ANSWER)
        .outerjoin(answer, answer.c.id == results.c.batch_id)
    )
    return among(tx, query, requests.c.id, ids)


def _may_be_later(row: Any, line: Line) -> bool:
    """Return whether a line may be of a later turn than the ledger has of a conversation.

    The sendings before it are unknown, so one of them may have been answered. A failure does not
    show whether its turn was the last.
    """
    sending = line.sending
    takes_turns = (
        line.asks is not False or row.may_take_turns or row.state == RequestState.CONTINUING
    )
    if not row.converses or not takes_turns:
        return False
    if row.waits or row.state in (RequestState.CONTINUING, *FAILED):
        return bool(sending > row.last + 1)
    is_doubted = row.is_unknown or row.is_at_api or row.state == RequestState.LOST
    return bool(is_doubted and sending > row.last)


def may_go_on(tx: Connection, batch_id: int) -> bool:
    """Return whether an answer of a batch that has not been seen may ask for another turn."""
    member = and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED)
    query = select(requests.c.seq).where(member, may_take_turns()).limit(1)
    return tx.scalar(query) is not None


def answers_with_tools(
    tx: Connection, workspace_id: int, *, after: tuple[int, int], limit: int = 100
) -> list[Record]:
    """Return the answers that call tools, and that a conversation goes on from, or may go on from.

    Columns: ``seq``, ``sending`` and ``raw``. ``after`` are the first two of the last page's last
    row. A request that stands elsewhere may take the answer of another sending later: if it is
    retried on order, or if its own batch turns out to be lost.
    """
    found = exists().where(
        former_members.c.request_seq == results.c.request_seq,
        former_members.c.batch_id == results.c.batch_id,
    )
    return list(
        tx.execute(
            select(requests.c.seq, results.c.sending, results.c.raw)
            .join(results, results.c.request_seq == requests.c.seq)
            .where(
                of_workspace(requests.c.lane_id, workspace_id),
                requests.c.seq.in_(_conversing()),
                or_(and_(requests.c.state == RequestState.CONTINUING, OF_ANSWER), found),
                results.c.disposition == Disposition.TOOLS,
                transitions.can_answer(),
                tuple_(requests.c.seq, results.c.sending) > after,
            )
            .order_by(requests.c.seq, results.c.sending)
            .limit(limit)
        )
    )


def _conversing() -> Any:
    # A subquery that indexes answer, so that no other request's results are read.
    continuing = select(requests.c.seq).where(requests.c.state == RequestState.CONTINUING)
    return union_all(continuing, select(former_members.c.request_seq))


class Earlier(NamedTuple):
    """What may be known soon of the sendings before those in a forgotten batch."""

    batches: list[str]
    """API ids of the ledger's batches that hold earlier sendings of the same requests."""
    is_doubtful: bool
    """Whether an earlier sending of a conversation may be in a batch that is not found yet."""


def earlier_sendings(tx: Connection, lines: Mapping[str, Line]) -> Earlier:
    """Return what has to be known before a batch with these lines is adopted.

    Of a request that was sent again, the earlier sending has ended, and decides what the later one
    was, also if that has failed.
    """
    rows = [(row, lines[row.id]) for row in _standings(tx, lines)]
    held = {row.remote_id for row, line in rows if row.is_at_api and line.sending > row.last}
    doubtful = (_may_be_later(row, line) for row, line in rows)
    return Earlier(sorted(held), any(doubtful))


def _leave_unknown(tx: Connection, seqs: Iterable[int]) -> None:
    """Let requests leave their unknown batches, whose late lines still find them."""
    for some in in_chunks(seqs):
        remember_former(
            tx,
            select(batches.c.id, requests.c.seq, requests.c.sendings + batches.c.posts)
            .join(batches, batches.c.id == requests.c.batch_id)
            .where(requests.c.seq.in_(some), batches.c.state == BatchState.UNKNOWN),
        )
