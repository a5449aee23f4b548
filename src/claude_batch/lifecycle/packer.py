"""Packing: which queued requests share the next batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.ledger import batch_contents, live_calls, unknown_batches
from claude_batch.ledger.batch_contents import Cut
from claude_batch.ledger.store import Leader, Ledger, Record, Transaction
from claude_batch.lifecycle.budget_room import Fitting, Reservations
from claude_batch.money.prices import Prices
from claude_batch.wire.encoding import body_length
from claude_batch.wire.limits import MAX_BODY_BYTES, MAX_REQUESTS

Queued = tuple[int, int, str]
"""A queued request for packing: row number, bytes of its params, run id."""


def plan_cut(
    queued: Iterable[Queued],
    policies: Mapping[str, Record],
    *,
    avoid: Collection[int] = (),
) -> Cut | None:
    """Return the first queued requests up to the next limit, or `None` if none is queued.

    The maximum number of requests is the smallest of their runs; the polling intervals are the
    shortest. The body is counted exactly, envelope included. ``avoid`` are ambiguous counts: if a
    few requests less make another count, these wait for the next batch.
    """
    count = total = last = 0
    limit, poll, max_poll = MAX_REQUESTS, float("inf"), float("inf")
    run: str | None = None
    steps: deque[tuple[int, int, int]] = deque(maxlen=len(avoid) + 1)
    for seq, size, run_id in queued:
        if run_id != run:
            # Requests of a run are usually adjacent, so its policy is read once.
            run, policy = run_id, policies[run_id]
            if count + 1 > min(limit, policy.max_requests) and count:
                break
            limit = min(limit, policy.max_requests)
            poll = min(poll, policy.poll_interval)
            max_poll = min(max_poll, policy.max_poll_interval)
        if count and (count + 1 > limit or body_length(count + 1, total + size) > MAX_BODY_BYTES):
            break
        count, total, last = count + 1, total + size, seq
        if avoid:
            steps.append((count, total, last))
    while len(steps) > 1 and count in avoid:
        steps.pop()
        count, total, last = steps[-1]
    return Cut(last, count, total, poll, max(max_poll, poll)) if count else None


def whole_cut(
    count: int,
    params_bytes: int,
    last_seq: int,
    policies: Mapping[str, Record],
    *,
    avoid: Collection[int] = (),
) -> Cut | None:
    """Return the result of `plan_cut` for a lane that fits into one batch, else `None`.

    ``policies`` are those of the runs that have requests in the lane, and of no others.
    """
    limit = min([MAX_REQUESTS, *(policy.max_requests for policy in policies.values())])
    if (
        count in avoid
        or not 0 < count <= limit
        or body_length(count, params_bytes) > MAX_BODY_BYTES
    ):
        return None
    poll = min(policy.poll_interval for policy in policies.values())
    max_poll = min(policy.max_poll_interval for policy in policies.values())
    return Cut(last_seq, count, params_bytes, poll, max(max_poll, poll))


def due_of(queues: Sequence[Record], now: float) -> float:
    """Return when a lane is packed: at the earliest time that one of its runs asks for.

    Single calls wait until none has arrived for ``linger``, whatever process or actor it is of. A
    call arrives ``linger`` before its stored time. Other requests are packed when the first of them
    is due, and a full batch at once.
    """
    waiting = sum(queue.waiting for queue in queues)
    params_bytes = sum(queue.params_bytes for queue in queues)
    if (
        waiting >= min(queue.max_requests for queue in queues)
        or body_length(waiting, params_bytes) > MAX_BODY_BYTES
        # Due later than the longest wait: queued before the clock jumped back.
        or any(queue.last_due > now + queue.linger + 1 for queue in queues)
    ):
        return now
    arrived = max(queue.last_due - queue.linger for queue in queues)
    return min(
        min(arrived + queue.linger, _latest(queue)) if queue.kind == "calls" else queue.first_due
        for queue in queues
    )


def _latest(queue: Record) -> float:
    """Return how long single calls may wait for others that keep arriving."""
    arrived = queue.first_due - queue.linger
    longest = min(queue.max_linger, queue.max_wait / 2)
    if queue.deadline is not None:
        margin = queue.deadline_margin
        if margin is None:
            # The longest that is learned.
            margin = (queue.deadline - queue.created) / 2
        longest = min(longest, (queue.deadline - margin - arrived) / 2)
    return arrived + max(queue.linger, longest)


def goes_live(waiting: int, policies: Collection[Record]) -> bool:
    """Return whether the requests that wait in a lane go to the live API instead.

    They do if all have mode ``auto`` and at most ``auto_threshold`` of them wait (the smallest
    value of any run). A run counts with all its requests, so the few retries of a large run stay in
    batches.
    """
    return bool(policies) and all(
        policy.mode == "auto"
        and max(waiting, policy.request_count if policy.kind == "run" else 0)
        <= policy.auto_threshold
        for policy in policies
    )


def reserve_due(ledger: Ledger, leader: Leader, now: float, prices: Prices) -> dict[int, int]:
    """Store what the requests in the lanes that are due reserve, because there is a budget.

    A request without a reservation is not packed. Reading documents may take seconds each. Returns
    the `Reservations.live_costs` of requests that may go live, for `pack_due`.
    """
    costs: dict[int, int] = {}
    reservations = Reservations(ledger, prices, now, leader)
    with ledger.read() as tx:
        lanes = batch_contents.queues(tx, leader.workspace_id)
    for (lane_id, alone), queue in lanes.items():
        if due_of(queue.runs, now) > now:
            continue
        with ledger.read() as tx:
            decisive = _decisive(tx, lane_id, alone, now)
        if decisive is None:
            continue
        queue = decisive.queue
        has_budget = reservations.reserve_what_waits(lane_id, queue, alone)
        if has_budget and goes_live(queue.waiting, queue.runs):
            costs.update(reservations.live_costs(lane_id, alone))
    return costs


def pack_due(
    ledger: Ledger,
    leader: Leader,
    now: float,
    *,
    not_before: float | None = None,
    costs: Mapping[int, int] | None = None,
) -> tuple[list[int], float | None]:
    """Pack every lane that is due, each as far as one batch and the budgets allow.

    Call `reserve_due` first, and pass on its ``costs``. ``not_before``: no batch may be sent before
    then, so only what goes live leaves the queue. Returns the new batches, and the time when the
    next lane is due (`None` if no lane waits).
    """
    with ledger.read() as tx:
        lanes = batch_contents.queues(tx, leader.workspace_id)
    packed: list[int] = []
    later: list[float] = []
    for (lane_id, alone), looked_at in lanes.items():
        due = due_of(looked_at.runs, now)
        if due > now:
            later.append(due)
            continue
        reach(CrashPoint.BEFORE_PACK)
        with ledger.write(leader) as tx:
            # An unknown sending is identified by its count, so no other batch should have the same.
            unknown = unknown_batches.unknown_batches(tx, leader.workspace_id)
            avoid = {row.request_count for row in unknown}
            budget = _decisive(tx, lane_id, alone, now)
            if budget is None:
                continue
            queue = budget.queue
            if goes_live(queue.waiting, queue.runs):
                fits = budget.all_fit_live(costs or {})
                if fits is None:
                    later.append(now)  # stored since `reserve_due`
                    continue
                if fits:  # what does not fit live is packed, because a batch costs less
                    live_calls.choose(tx, lane_id, [run.id for run in queue.runs])
                    continue
            if not_before is not None:
                later.append(not_before)
                continue
            limited = any(run.parallel_batches for run in queue.runs)
            if limited and batch_contents.full_runs(tx):
                # The queries leave these runs out now, so others may be next, and fewer wait.
                queue = batch_contents.queues_of_lane(tx, lane_id, whole=True)[lane_id, alone]
                queue = queue._replace(is_whole=False)
                budget = Fitting(tx, lane_id, alone, queue, now)
            cut, which = _cut_of(tx, lane_id, alone, budget, avoid)
            if cut is None:
                continue
            only = None
            if not budget.all_fit:
                only = [seq for seq in budget.taken if seq <= cut.last_seq]
            first_seq = queue.first_seq
            packed.append(
                batch_contents.pack(
                    tx, lane_id, cut, now, alone=alone, which=which, only=only, first_seq=first_seq
                )
            )
        reach(CrashPoint.AFTER_PACK)
    return packed, min(later, default=None)


def _decisive(tx: Transaction, lane_id: int, alone: str, now: float) -> Fitting | None:
    """Return the part of a lane's queue that decides about its next batch, and how it fits.

    If the part does not fit into the budgets, later requests may, so it is the whole queue. None if
    nothing waits.
    """
    queue = batch_contents.queues_of_lane(tx, lane_id).get((lane_id, alone))
    if queue is None:
        return None
    budget = Fitting(tx, lane_id, alone, queue, now)
    if not queue.is_whole and not budget.all_fit:
        queue = batch_contents.queues_of_lane(tx, lane_id, whole=True)[lane_id, alone]
        budget = Fitting(tx, lane_id, alone, queue, now)
    return budget


def _cut_of(
    tx: Transaction, lane_id: int, alone: str, budget: Fitting, avoid: Collection[int]
) -> tuple[Cut | None, batch_contents.Selection]:
    """Return the requests of a lane that make the next batch, and how they were selected.

    If not all of the lane fit into the budgets, they are the first of ``budget.taken``.
    """
    queue, all_fit = budget.queue, budget.all_fit
    policies = queue.policies
    queued_of = partial(
        batch_contents.queued_of_lane, tx, lane_id, alone, first_seq=queue.first_seq
    )
    prefixed = any(policy.prefixed for policy in policies.values())
    if prefixed and (ahead := list(queued_of("primers"))):
        if not all_fit:
            ahead = list(budget.fitting({seq for seq, _, _ in ahead}))
        if ahead:
            # Only one request of each prefix is sent; more requests would delay all the others.
            return plan_cut(ahead, policies, avoid=avoid), "primers"
    if not all_fit:
        return plan_cut(budget.fitting(), policies, avoid=avoid), "first"
    # A whole lane usually fits into one batch, so its requests need not be read one by one.
    if queue.is_whole:
        totals = queue.waiting, queue.params_bytes, queue.last_seq
        if (cut := whole_cut(*totals, policies, avoid=avoid)) is not None:
            return cut, "first"
    # Requests with the same prefix share a batch.
    which = "by_prefix" if prefixed else "first"
    return plan_cut(queued_of(which), policies, avoid=avoid), which
