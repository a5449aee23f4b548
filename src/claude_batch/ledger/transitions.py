"""The only writer of a request's state, attempts, sendings, batch and answer.

A request moves like this; what follows an outcome is decided by `claude_batch.core.outcome`::

    stored ──► queued ◄──► held            (waits for an equal request, or for one with its prefix)
                 │  ▲
            pack │  │ unpack, conclude, return_call
                 ▼  │
               packed ──► conclude ──► continuing ──► queue_turn ──► queued
                 │            │             └───────► end_conversations, stop_conversation
                 │            └──────────► succeeded, errored, canceled, expired, malformed, …
                 ├──► lose ──► lost
                 └──► reject ──► errored   (the API refused the request by name)

A live call is the same without a batch of the API: `call` takes a request from ``queued`` to
``packed``. `cancel` and `expire` end a request that was not sent; it is lost if an earlier sending
of it is in doubt. `ask_again` takes a final request back to the queue, on the user's order.
`conclude` takes a lost one to its answer, if its result comes late.

Most functions take a condition that selects the requests, and return how many they moved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal,
    null,
    or_,
    select,
    update,
)

from claude_batch.core.outcome import Disposition, Next, Outcome, Standing, next_step
from claude_batch.core.states import FAILED, BatchState, RequestState
from claude_batch.ledger.portable_sql import meta_value, put_meta
from claude_batch.ledger.schema import (
    batches,
    conversations,
    doubles,
    former_members,
    requests,
    results,
    runs,
)
from claude_batch.ledger.store import next_stamp

REUSED = 0
"""The sending of an answer that was copied from another request. No request sends under it."""

REOPENED = "reopened"
"""Metadata: the stamp of the last transaction in which a final request became open again."""

REPRICED = "repriced"
"""Metadata: the highest row number of a batch at the last change of prices."""

Condition: TypeAlias = ColumnElement[bool]

_UPDATE = update(requests).prefix_with("OR FAIL", dialect="sqlite")
"""OR FAIL, because SQLite otherwise keeps a copy of every page that the statement changes, to undo
it alone after an error. Here an error undoes the whole transaction."""


def _change(tx: Connection, which: Condition, **values: Any) -> int:
    return tx.execute(_UPDATE.where(which).values(**values)).rowcount


def _note_reopened(tx: Connection, count: int) -> int:
    """Note that so many final requests are not final any more; return the number.

    A reader then sees, without counting the requests of a finished run, that it is still finished.
    """
    if count:
        put_meta(tx, REOPENED, next_stamp(tx))
    return count


def _reserve_at_prices(tx: Connection) -> ColumnElement[Any]:
    """Return the new reservation of requests that wait to be sent (again): the old one, or NULL.

    It is NULL if prices may have changed since it was computed, as for a request without a batch.
    The driver computes it again then.
    """
    last = meta_value(tx, REPRICED)
    if last is None:
        return null()
    return case((requests.c.batch_id > int(last), requests.c.reserve))


def sent_with(batch_id: Any) -> ColumnElement[int]:
    """Return a request's sendings, those of a batch that it was in included."""
    posts = select(batches.c.posts).where(batches.c.id == batch_id).scalar_subquery()
    return requests.c.sendings + posts


def former_of(batch_id: int) -> Condition:
    """Whether a request left this batch undecided."""
    former = select(former_members.c.request_seq).where(former_members.c.batch_id == batch_id)
    return requests.c.seq.in_(former)


def has_no_result(batch_id: Any) -> Condition:
    """Whether a request has no stored result of a batch."""
    return ~exists().where(results.c.request_seq == requests.c.seq, results.c.batch_id == batch_id)


def has_state(state: RequestState) -> Condition:
    """Whether a request that is named by its row number has a state.

    Not by the partial index of that state: PostgreSQL would read all that is in it for each one.
    """
    return func.coalesce(requests.c.state, "") == state


def is_double() -> Condition:
    """Whether a request takes its answer from an equal one."""
    return exists().where(doubles.c.request_seq == requests.c.seq)


# What follows an outcome --------------------------------------------------------------------------

_run = runs.alias("run")
# An alias: conditions of callers have subqueries of `runs` of their own.

_FACTS: dict[str, Condition] = {
    "may_retry": and_(~requests.c.cancelled, _run.c.cancelled.is_(None)),
    "attempts_left": requests.c.attempts + 1 < _run.c.max_attempts + requests.c.forgiven,
    "past_margin": _run.c.past_margin.is_not(None),
    "converses": _run.c.converses.is_(True),
    "has_tools": _run.c.tools.is_not(None),
    "checks_format": _run.c.validation_attempts > 1,
}
"""The fields of `Standing` that follow from a request and its run."""


def _standing(facts: Sequence[Any]) -> Standing:
    return Standing(**dict(zip(_FACTS, map(bool, facts), strict=True)))


def standing_of(tx: Connection, seq: int) -> Standing:
    """Return the facts about one request that decide what follows its outcome."""
    facts = select(*_FACTS.values()).where(requests.c.seq == seq, _run.c.id == requests.c.run_id)
    return _standing(tx.execute(facts).one())


def conclude(
    tx: Connection,
    which: Condition,
    *,
    answer: FromClause | None = results,
    may_retry: bool = True,
    reopens: bool = False,
    contradicted: bool = False,
    may_be_paid: bool = True,
    sendings: Any = None,
    attempts: Any = 1,
    due: float = 0.0,
    stamp: int | None = None,
) -> Counter[Next]:
    """Give requests the state that follows from their results.

    ``which`` joins each request to its result in ``answer``. With ``answer`` `None` the requests
    have no result. ``may_retry``: whether a failure may queue them again. ``reopens``: whether some
    may be final already, as when a result comes late. ``contradicted``: the API counts more
    successes than the results show. ``may_be_paid``: a request without a result may have been
    billed. ``sendings``: their number after this one, if it changes. ``attempts``: how many a
    counted outcome adds. ``due``: when a request that is queued again is due. ``stamp``: the stamp
    of this transaction, if it has one.

    Requests with the same outcome and the same facts about their run are moved together. Returns
    the number of requests by what followed.
    """
    columns = _deciding(answer)
    # DISTINCT instead of GROUP BY, which would sort the requests. The updates count them.
    groups: Sequence[Any] = tx.execute(
        select(*columns).distinct().where(which, _run.c.id == requests.c.run_id)
    ).all()
    alike: defaultdict[Next, list[Any]] = defaultdict(list)
    for group in groups:
        step = _step_of(
            group, may_retry=may_retry, contradicted=contradicted, may_be_paid=may_be_paid
        )
        alike[step].append(group)
    if stamp is None and any(step.state.is_final for step in alike):
        stamp = next_stamp(tx)
    moved: Counter[Next] = Counter()
    for step, members in alike.items():
        mine = which if len(alike) == 1 else _among(which, columns, members)
        values = _after(tx, step, answer, due, stamp)
        if step.counts:
            values["attempts"] = requests.c.attempts + attempts
        if sendings is not None:
            values["sendings"] = sendings
        moved[step] = _change(tx, mine, **values)
        if reopens and not step.state.is_final:
            _note_reopened(tx, moved[step])
    return moved


def conclude_batches(
    tx: Connection,
    which: Condition,
    *,
    answer: FromClause | None = results,
    contradicted: bool = False,
    may_be_paid: bool = True,
    sendings: Any,
    due: float,
    stamp: int,
) -> dict[int, Counter[Next]]:
    """Do what `conclude` does for requests of several small batches, in as few statements.

    Returns the number of requests by what followed, by batch.
    """
    of_each = (requests.c.batch_id, *_deciding(answer))
    # A subquery, because PostgreSQL does not see that two parameters are equal.
    named = [column.label(f"column_{place}") for place, column in enumerate(of_each)]
    found = select(*named).where(which, _run.c.id == requests.c.run_id).subquery()
    counted = tx.execute(select(*found.c, func.count()).group_by(*found.c)).all()
    alike: defaultdict[Next, list[Any]] = defaultdict(list)
    moved: defaultdict[int, Counter[Next]] = defaultdict(Counter)
    for batch_id, *group, count in counted:
        step = _step_of(group, contradicted=contradicted, may_be_paid=may_be_paid)
        alike[step].append(group)
        moved[batch_id][step] += count
    for step, members in alike.items():
        mine = which if len(alike) == 1 else _among(which, of_each[1:], members)
        values = _after(tx, step, answer, due, stamp)
        if step.counts:
            values["attempts"] = requests.c.attempts + 1
        _change(tx, mine, sendings=sendings, **values)
    return moved


def _deciding(answer: FromClause | None) -> tuple[ColumnElement[Any], ...]:
    """Return the columns that decide what follows: outcome, disposition and facts."""
    if answer is None:
        missing = literal(str(Outcome.MISSING)), literal(str(Disposition.FINAL))
        return *missing, *_FACTS.values()
    return answer.c.outcome, answer.c.disposition, *_FACTS.values()


def _step_of(
    group: Sequence[Any], *, may_retry: bool = True, contradicted: bool, may_be_paid: bool
) -> Next:
    """Return what follows for the requests whose `_deciding` columns have these values."""
    ended, asks, *facts = group
    at = _standing(facts)
    may_retry = may_retry and at.may_retry
    at = replace(at, may_retry=may_retry, contradicted=contradicted, may_be_paid=may_be_paid)
    return next_step(Outcome(ended), Disposition(asks), at)


def _among(
    which: Condition, columns: Sequence[ColumnElement[Any]], groups: Sequence[Any]
) -> Condition:
    """Return the condition for the requests of ``which`` whose columns have one of these values."""
    distinct = dict.fromkeys(tuple(group) for group in groups)
    same = (
        and_(*(column == value for column, value in zip(columns, group, strict=True)))
        for group in distinct
    )
    return and_(which, _run.c.id == requests.c.run_id, or_(*same))


def _after(
    tx: Connection, step: Next, answer: FromClause | None, due: float, stamp: int | None
) -> dict[str, Any]:
    if step.state is RequestState.QUEUED:
        reserve = _reserve_at_prices(tx)
        return {"state": step.state, "batch_id": None, "due": due, "reserve": reserve}
    finished = null() if step.state is RequestState.CONTINUING else stamp
    values: dict[str, Any] = {"state": step.state, "finished": finished}
    if answer is not None and step.state is not RequestState.LOST:
        values["answered_by"] = answer.c.sending
    return values


def lose(
    tx: Connection,
    which: Condition,
    *,
    counts: bool = True,
    **values: Any,
) -> int:
    """End requests as lost: they may have been billed, and have no answer.

    ``counts``: whether this uses up an attempt. ``values`` are other columns to set.
    """
    if counts:
        values["attempts"] = requests.c.attempts + 1
    return _change(tx, which, state=RequestState.LOST, finished=next_stamp(tx), **values)


def reject(tx: Connection, seqs: Sequence[int], *, posts: int) -> dict[int, int]:
    """End requests that the API refused as errored; return their sendings by row number.

    ``posts``: how often their batch was sent. They leave it.
    """
    ended = tx.execute(
        update(requests)
        .where(requests.c.seq.in_(seqs))
        .values(
            state=RequestState.ERRORED,
            attempts=requests.c.attempts + 1,
            sendings=requests.c.sendings + posts,
            answered_by=requests.c.sendings + posts,
            batch_id=None,
            finished=next_stamp(tx),
        )
        .returning(requests.c.seq, requests.c.answered_by)
    )
    return {row.seq: row.answered_by for row in ended}


# Late lines ---------------------------------------------------------------------------------------


def _of_this_turn(sent: Any) -> Condition:
    """Return the condition for a sending that its conversation has not continued from."""
    consumed = (
        select(conversations.c.consumed)
        .where(conversations.c.request_seq == requests.c.seq)
        # Of the outer query, also if that is itself a subquery.
        .correlate(requests)
        .scalar_subquery()
    )
    return sent.c.sending > func.coalesce(consumed, -1)


def can_answer(line: Any = results) -> Condition:
    """Return the condition for a joined line that a request ends with instead of being sent."""
    unusable = (Disposition.MALFORMED, Disposition.UNDOCUMENTED)
    usable = and_(line.c.outcome == Outcome.SUCCEEDED, line.c.disposition.not_in(unusable))
    return and_(usable, _of_this_turn(line))


def ends_late(*, contradicted: bool) -> Condition:
    """Return the condition for requests that a joined line ends, although none waits for it.

    ``contradicted``: some failure of its batch hides a success. By the state of the request:

    - queued: an answer, which saves a sending. After a failure it is sent anyway.
    - lost: any success, because it was billed. Also a failure that hides no success, if no other
      sending is in doubt; a failed request may be sent, and paid for, again.
    - failed: a success that replaced its own failure.
    """
    state, success = requests.c.state, results.c.outcome == Outcome.SUCCEEDED
    replaced = and_(state.in_(FAILED), requests.c.answered_by == results.c.sending)
    in_another = func.coalesce(requests.c.batch_id, results.c.batch_id) != results.c.batch_id
    certain = false() if contradicted else ~or_(in_another, in_doubt())
    lost = and_(state == RequestState.LOST, or_(success, certain))
    ended = and_(or_(lost, and_(replaced, success)), _of_this_turn(results))
    return or_(ended, and_(state == RequestState.QUEUED, can_answer()))


# The queue and batches ----------------------------------------------------------------------------


def pack(tx: Connection, which: Condition, batch_id: int) -> int:
    """Bind queued requests to a batch."""
    return _change(tx, which, state=RequestState.PACKED, batch_id=batch_id)


def pack_each(tx: Connection, batch_id: int, seqs: Sequence[int]) -> None:
    """Bind the requests of these row numbers to a batch, as far as they are queued."""
    queued = has_state(RequestState.QUEUED)
    statement = update(requests).where(queued, requests.c.seq == bindparam("of_seq"))
    values = {"state": RequestState.PACKED, "batch_id": batch_id}
    tx.execute(statement.values(**values), [{"of_seq": seq} for seq in seqs])


def move(tx: Connection, which: Condition, batch_id: int, *, posts: int) -> int:
    """Move requests to another batch, after their former one was sent ``posts`` times in vain."""
    sent = requests.c.sendings + posts
    return _change(tx, which, batch_id=batch_id, sendings=sent, reserve=_reserve_at_prices(tx))


def reserve_anew(tx: Connection, batch_id: int) -> int:
    """Discard what a batch's requests reserve that is sent again, if prices may have changed.

    Call `charges.reserve` afterwards if any did. Returns how many did.
    """
    last = meta_value(tx, REPRICED)
    if last is not None and batch_id > int(last):
        return 0
    here = and_(requests.c.batch_id == batch_id, requests.c.reserve.is_not(None))
    return _change(tx, here, reserve=None)


def unpack(tx: Connection, which: Condition, *, sendings: Any, due: float | None = None) -> int:
    """Queue a batch's requests again: the API did not accept it, or the user gave up on it."""
    more = {} if due is None else {"due": due}
    queued = {"state": RequestState.QUEUED, "batch_id": None, "reserve": _reserve_at_prices(tx)}
    return _change(tx, which, **queued, sendings=sendings, **more)


def leave_batch(tx: Connection, which: Condition) -> int:
    """Take requests out of a batch that have ended in another way."""
    return _change(tx, which, batch_id=None)


def adopt(tx: Connection, seq: int, batch_id: int, *, sendings: int) -> None:
    """Bind a request to a batch that was found at the API, and that carries its ``custom_id``."""
    which = requests.c.seq == seq
    packed = {"state": RequestState.PACKED, "answered_by": None}
    reserve = _reserve_at_prices(tx)
    _change(tx, which, batch_id=batch_id, sendings=sendings, reserve=reserve, **packed)


def pass_over(tx: Connection, seq: int, sending: int) -> None:
    """Let the next sending of a request, if there is one, have a later number than this one.

    A request in a batch stays as it is, because its number there follows from its sendings.
    """
    outside = and_(requests.c.seq == seq, requests.c.state != RequestState.PACKED)
    _change(tx, and_(outside, requests.c.sendings < sending), sendings=sending)


# Waiting for other requests -----------------------------------------------------------------------


def hold(tx: Connection, which: Condition) -> int:
    """Hold queued requests until another one has ended."""
    return _change(tx, which, state=RequestState.HELD)


def release(tx: Connection, which: Condition, *, due: float | None = None) -> int:
    """Queue held requests; ``due`` is set anew if it is given."""
    more = {} if due is None else {"due": due}
    return _change(tx, which, state=RequestState.QUEUED, **more)


def hold_lost(tx: Connection, which: Condition) -> int:
    """Hold lost requests again, because the one that they equal has an answer by now."""
    reserve = _reserve_at_prices(tx)
    open_again = {"finished": None, "answered_by": None, "reserve": reserve}
    held = _change(tx, which, state=RequestState.HELD, **open_again)
    return _note_reopened(tx, held)


def copy_answer(tx: Connection, which: Condition, original: FromClause) -> int:
    """End requests as ``original``, which ``which`` joins to them, has ended."""
    return _change(
        tx,
        which,
        state=original.c.state,
        answered_by=case((original.c.answered_by.is_not(None), literal(REUSED))),
        attempts=original.c.attempts,
        finished=next_stamp(tx),
    )


def continue_copies(tx: Connection, which: Condition) -> int:
    """Take requests from a copied answer to the state in which it is judged."""
    return _change(tx, which, state=RequestState.CONTINUING, finished=None)


# Ends without an answer ---------------------------------------------------------------------------


_ANY_FORMER = select(former_members.c.request_seq).limit(1)


def any_former(tx: Connection) -> bool:
    """Return whether any request has ever left a batch undecided. Usually none has."""
    return tx.scalar(_ANY_FORMER) is not None


def _lose_in_doubt(tx: Connection, which: Condition, **values: Any) -> int:
    """End those of these requests as lost of which an earlier sending may have been billed.

    Every other end says that nothing was billed, so that a rerun would send them again.
    """
    if not any_former(tx):
        return 0
    return lose(tx, and_(which, in_doubt()), counts=False, **values)


def in_doubt() -> Condition:
    """Return the condition for requests that an earlier sending of this turn may have answered.

    A line of its batch decides a sending. An error of a live call does not, unless it is a success.
    """
    line = exists().where(
        results.c.request_seq == former_members.c.request_seq,
        results.c.batch_id == former_members.c.batch_id,
        results.c.sending == former_members.c.sending,
        batches.c.id == former_members.c.batch_id,
        or_(results.c.outcome == Outcome.SUCCEEDED, batches.c.state != BatchState.LIVE),
    )
    former = former_members.c.request_seq == requests.c.seq
    return exists().where(former, _of_this_turn(former_members), ~line)


def cancel(tx: Connection, which: Condition, *, by_caller: bool = False) -> int:
    """End requests as canceled that were not sent; ``by_caller``: and note who cancelled them.

    ``which`` names open states. A request with an earlier sending in doubt ends as lost.
    """
    more = {"cancelled": True} if by_caller else {}
    # A later order may send them again, and no number of a sending is used twice.
    posts = select(batches.c.posts).where(batches.c.id == requests.c.batch_id).correlate(requests)
    sent = requests.c.sendings + func.coalesce(posts.scalar_subquery(), 0)
    ended = {"batch_id": None, "sendings": sent, **more}
    lost = _lose_in_doubt(tx, which, **ended)
    finished = next_stamp(tx)
    return lost + _change(tx, which, state=RequestState.CANCELED, finished=finished, **ended)


def mark_cancelled(tx: Connection, which: Condition) -> int:
    """Note that the caller cancelled requests, wherever they are."""
    return _change(tx, which, cancelled=True)


def forget_cancellation(tx: Connection, which: Condition) -> int:
    """Let requests go on that the caller had cancelled, on the user's order."""
    return _change(tx, which, cancelled=False)


def expire(tx: Connection, which: Condition) -> int:
    """End queued requests as expired: they did not run before the margin of the deadline.

    ``which`` names their state. A request with an earlier sending in doubt ends as lost.
    """
    lost = _lose_in_doubt(tx, which)
    return lost + _change(tx, which, state=RequestState.EXPIRED, finished=next_stamp(tx))


def ask_again(
    tx: Connection,
    which: Condition,
    *,
    due: float,
    forgive: bool = True,
    sendings: Any = None,
) -> int:
    """Queue final requests again, on the user's order.

    A request that takes its answer from an equal one is held, because that one is asked.
    ``forgive``: the outcomes so far use up no attempts, and cancellations are forgotten.
    """
    more: dict[str, Any] = {} if sendings is None else {"sendings": sendings}
    if forgive:
        more |= {"cancelled": False, "forgiven": requests.c.attempts}
    asked = _change(
        tx,
        which,
        state=case((is_double(), RequestState.HELD), else_=RequestState.QUEUED),
        batch_id=None,
        due=due,
        finished=None,
        answered_by=None,
        reserve=_reserve_at_prices(tx),
        **more,
    )
    return _note_reopened(tx, asked)


# Conversations ------------------------------------------------------------------------------------


def queue_turn(tx: Connection, seq: int, *, size: int, due: float) -> None:
    """Queue the next turn of a conversation: ``size`` bytes, with all its attempts."""
    _change(
        tx,
        requests.c.seq == seq,
        state=RequestState.QUEUED,
        batch_id=None,
        answered_by=None,
        size=size,
        due=due,
        attempts=0,
        forgiven=0,
        # Each turn reserves of a budget what it can cost itself.
        reserve=None,
    )


def stands_at(seq: Any, sending: Any) -> Condition:
    """Whether a conversation waits for its next turn after the answer to this sending."""
    return and_(
        requests.c.seq == seq,
        requests.c.answered_by == sending,
        has_state(RequestState.CONTINUING),
    )


def end_conversations(tx: Connection, ends: Sequence[tuple[int, int, RequestState]]) -> None:
    """End conversations with the answer that they stand at: request, sending, final state."""
    if ends:
        at = next_stamp(tx)
        tx.execute(
            update(requests).where(stands_at(bindparam("of_seq"), bindparam("of_sending"))),
            [
                {"of_seq": seq, "of_sending": sending, "state": state, "finished": at}
                for seq, sending, state in ends
            ],
        )


def resize(tx: Connection, seq: int, size: int) -> None:
    """Note the size of a request's new params, whose reservation is computed again."""
    _change(tx, requests.c.seq == seq, size=size, reserve=None)


def stop_conversation(tx: Connection, seq: int, sending: int) -> int:
    """End a conversation that cannot continue."""
    at = next_stamp(tx)
    return _change(tx, stands_at(seq, sending), state=RequestState.STOPPED, finished=at)


# Live calls ---------------------------------------------------------------------------------------


def choose_live(tx: Connection, which: Condition) -> int:
    """Send queued requests to the live API."""
    # Its reservation is computed again, at the live price.
    return _change(tx, which, live=1, reserve=None)


def call(tx: Connection, seq: int, batch_id: int, *, reserve: int | None) -> int:
    """Bind a request to a live call that is about to leave; returns its sending."""
    sending: int = tx.execute(
        update(requests)
        .where(requests.c.seq == seq)
        .values(
            state=RequestState.PACKED,
            batch_id=batch_id,
            sendings=requests.c.sendings + 1,
            reserve=reserve,
        )
        .returning(requests.c.sendings)
    ).scalar_one()
    return sending


def return_call(tx: Connection, which: Condition, step: Next) -> int:
    """Queue a request again after a live call, or end it as canceled, according to ``step``.

    It ends as lost instead of canceled if an earlier sending is in doubt.
    """
    values: dict[str, Any] = {"batch_id": None}
    if step.counts:
        values["attempts"] = requests.c.attempts + 1
    else:
        # The API processed nothing under this number, so the next call uses it again.
        values["sendings"] = requests.c.sendings - 1
    if step.state is RequestState.QUEUED:
        values["reserve"] = _reserve_at_prices(tx)
    elif lost := _lose_in_doubt(tx, which, **values):
        return lost
    else:
        values["finished"] = next_stamp(tx)
    return _change(tx, which, state=step.state, **values)
