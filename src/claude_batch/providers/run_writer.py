"""Store a run: requests go to the ledger in chunks, and become one run at the end.

A run's identity is a digest of its requests, so the same requests find the same run again. An
unfinished run continues; a finished run is delivered at no cost. Its requests that failed for a
transient reason are retried, in the transaction that finds the run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.output import OutputFormat
from claude_batch.actor.request import ActorRequest, KeyedPrompt, json_context
from claude_batch.actor.response import ActorResult, judge_of
from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import (
    ActorConfigurationError,
    BudgetScope,
    InvalidRequestError,
    LedgerError,
)
from claude_batch.core.events import RequestsQueued, RequestsRetried
from claude_batch.core.ids import RequestIds, new_request_ids, new_run_id
from claude_batch.core.quantities import format_duration
from claude_batch.core.settings import on_server
from claude_batch.core.states import FAILED
from claude_batch.ledger import budgets, deliveries, enqueue, held_requests, queries, retries
from claude_batch.ledger.budgets import BudgetKey, budgets_of
from claude_batch.ledger.deliveries import Displaced
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.retries import Rerun
from claude_batch.ledger.single_calls import digest_of
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.lifecycle.budget_room import (
    Reservations,
    bound_cost,
    today,
    tokens_of_files,
    unbounded_error,
)
from claude_batch.lifecycle.engine import Engine
from claude_batch.lifecycle.tool_runner import ConversationSettings, Workbench
from claude_batch.money.prices import Prices, prices_of
from claude_batch.providers.export import is_special
from claude_batch.providers.preflight import Preflight
from claude_batch.providers.reruns import report_kept, report_rerun
from claude_batch.wire.bounds import Unbounded, token_bound
from claude_batch.wire.caching import CacheMarks
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode

_log = logging.getLogger(__name__)

_RUNS_LOOKED_AT = 4
"""Most earlier runs of which a new one asks whether they still need their functions: more than one,
so that they become fewer."""

CHUNK_REQUESTS = 4000
CHUNK_BYTES = 2 << 20
"""Maximum requests and bytes that are stored in one transaction.

More bytes would save no processor time, and are held in memory."""


class Beside(msgspec.Struct):
    """Objects that this process keeps beside the requests of a run, by position; usually none."""

    contexts: dict[int, Any] = msgspec.field(default_factory=dict[int, Any])
    """The contexts that are no JSON values; the ledger has the others."""
    outputs: dict[int, OutputFormat[Any]] = msgspec.field(
        default_factory=dict[int, OutputFormat[Any]]
    )
    """The parsers of requests with an ``output_format`` of their own."""
    refused: list[int] = msgspec.field(default_factory=list[int])
    """For each request that middleware refused: the number of the run's requests before it."""


class EmptyRunError(InvalidRequestError):
    """A run has no requests."""


_Pending = tuple[str | None, EncodedRequest, bytes | None, int | None, int | None]
"""Key, encoded request, digest that identifies equal requests, prefix and reservation."""


def run_identity(
    base_url: str,
    actor: ActorConfiguration,
    default_options: Mapping[str, Any],
    run_key: str | None = None,
) -> bytes:
    """Return the part of a run's identity that is not in its requests."""
    options = repr(sorted(default_options.items())).encode()
    # Without a key, as it was before there were keys, so that earlier runs are found.
    key = () if run_key is None else (b"run_key", run_key.encode("utf-8", "surrogatepass"))
    return b"\n".join((base_url.encode(), actor.digest_fields(), options, *key))


def deadline_fault(mode: BatchProcessingMode, now: float) -> ActorConfigurationError | None:
    """Return the error for an absolute deadline in the past; ``now`` is seconds since the epoch."""
    due = mode.deadline
    if not isinstance(due, datetime) or due.timestamp() > now:
        return None
    return ActorConfigurationError(
        f"the deadline {due.isoformat()} is in the past; give a later one. Nothing was sent"
    )


def _warn_of_margin(mode: BatchProcessingMode, now: float) -> None:
    """Warn if a deadline leaves a new run no time for a batch, because that doubles its cost."""
    due = mode.deadline_after(now)
    if due is None or mode.mode == "live" or due - now > (mode.deadline_margin or 0):
        return
    margin = mode.deadline_margin
    words = "" if margin is None else f", and deadline_margin is {format_duration(margin)}"
    instead = (
        "every request is sent live, at full price"
        if mode.fallback == "live"
        else "every request expires without being sent"
    )
    _log.warning(
        "the deadline is in %s%s: that leaves no time for a batch, and %s",
        format_duration(round(due - now, 1)),
        words,
        instead,
        extra={"for_people": True},
    )


def _are_own(headers: LaneHeaders, request: str | KeyedPrompt | ActorRequest) -> bool:
    """Return whether a request's headers belong to its run's identity.

    The identity already has the actor's user profile, and earlier runs are found without it here.
    """
    if headers.betas or headers.user_profile is None:
        return bool(headers.betas)
    return isinstance(request, ActorRequest) and "user_profile_id" in (request.options or ())


def keeps_places(ledger: Ledger, process: str | None) -> bool:
    """Return whether a run of that process keeps its output, although another run names it too.

    On a server, the same path may be another file, on another machine. A command that waits there
    for its run writes it.
    """
    return on_server(ledger.location) and process is not None and ledger.is_alive(process)


def warn_of_displaced(displaced: Iterable[Displaced], run_id: str) -> None:
    """Log from which runs a run has taken the output."""
    for each in displaced:
        _log.warning(
            "%s was to write to %s too; only %s writes to it now", each.run_id, each.place, run_id
        )


class RunWriter:
    """Writes one run: call `add` for every request, then `finish`; `abort` leaves no trace."""

    def __init__(
        self,
        ledger: Ledger,
        encode: Callable[[str | KeyedPrompt | ActorRequest], EncodedRequest],
        asked: NewRun,
        *,
        identities: Sequence[bytes],
        elsewhere: Mapping[str, bytes] | None = None,
        refused: list[ActorResult] | None = None,
        on_stored: Callable[[int], None] | None = None,
        preflight: Preflight | None = None,
        prices: Prices | None = None,
        workbench: Workbench | None = None,
        conversation: ConversationSettings | None = None,
        drives: bool = False,
    ) -> None:
        """Store an empty run as ``asked``.

        ``identities`` are the parts of the run's digest from base URL, actor and options: the
        present one, then those by which an earlier version may have stored the same run.
        ``elsewhere`` has one for each other base URL of the ledger. ``refused`` collects a failed
        result for each request whose middleware fails; without it, such a request raises.
        ``on_stored`` is called after each `flush` with the number of requests stored so far.
        ``preflight`` checks them before they can be sent. ``prices`` bound the cost of a request if
        there is a budget. ``conversation`` is how its conversations continue, and ``workbench``
        receives their tools. ``drives``: the run's process drives, or waits to, so it can judge
        answers.
        """
        self._preflight = preflight
        self.asked: NewRun = asked
        mode = asked.mode
        self._marks = CacheMarks.of(mode)
        self._is_compared = mode.reuse or mode.dedupe
        self._on_stored = on_stored
        self._workbench = workbench
        self._conversation = conversation
        self.ledger: Ledger = ledger
        self._encode = encode
        self._refused = refused
        self._digests = [hashlib.blake2b(each, digest_size=20) for each in identities]
        self._elsewhere = {
            address: hashlib.blake2b(each, digest_size=20)
            for address, each in (elsewhere or {}).items()
        }
        self._all_digests = [*self._digests, *self._elsewhere.values()]
        self._ids = RequestIds()
        self._prefixed = self._known_apart = False
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._count = 0
        self.size: int = 0
        """Bytes of the params added so far."""
        self._stored = 0
        self.beside: Beside = Beside()
        self._contexts: list[tuple[int, bytes]] = []
        self._has_contexts = False
        self.rerun: Rerun | None = None
        """The earlier content of the run that `finish` has found; None for a new run."""
        self.displaced: dict[tuple[str, str], Displaced] = {}
        """The runs, by id and place, from which `finish` has taken an output path or a folder."""
        self._continued: tuple[Any, Rerun | None, int] | None = None
        """What a transaction found that has continued an earlier run, and may be committed."""
        self.stamp: int = 0
        """The ledger-wide stamp of `finish`: a later result was answered after it."""
        self._drives = drives
        self._prices: Prices | None = None
        self._files = tokens_of_files(ledger)
        self.run_id: str = new_run_id()
        ledger.apply(lambda tx: enqueue.begin_run(tx, asked, self.run_id))
        self._budget: BudgetScope = "run"
        """The narrowest budget, which needs a bound of each request's cost."""
        day = today(self.asked.created)
        if found := ledger.query(lambda tx: budgets_of(tx, self.run_id, asked.actor, day)):
            self._prices = prices or prices_of()
            self._budget = found[0].scope

    @property
    def count(self) -> int:
        """Return the number of requests added so far."""
        return self._count

    @property
    def is_bounded(self) -> bool:
        """Return whether a budget applies, so that `add` bounds the cost of each request."""
        return self._prices is not None

    @property
    def is_judged(self) -> bool:
        """Return whether a type of the caller checks answers of the run."""
        return bool(self.beside.outputs or (self._conversation and self._conversation.judge))

    @property
    def is_full(self) -> bool:
        """Return True if `flush` is due."""
        return len(self._pending) >= CHUNK_REQUESTS or self._pending_bytes >= CHUNK_BYTES

    @property
    def position(self) -> int:
        """The 0-based position of the request that is added next."""
        return self._count + len(self._refused or ())

    def add(self, request: str | KeyedPrompt | ActorRequest) -> None:
        """Encode a request and keep it for the next `flush`.

        Raises `InvalidRequestError` for a request that the API would reject, and for a duplicate
        key.
        """
        encoded = self._encode(request)
        # A plain prompt is by far the most frequent kind.
        if isinstance(request, KeyedPrompt):
            key, own = request.key, request.prompt
        elif isinstance(request, str):
            key, own = None, request
        else:
            key, own = request.key, request.own_prompt
        reserve = None if self._prices is None else self._most_cost(encoded, key)
        self._ids.check(key)
        if self._preflight is not None:
            self._preflight.look(encoded, self.position, key=key, plain=own is not None)
        if isinstance(request, ActorRequest):
            self._keep_beside(request)
        self._ids.add(key)
        self._count += 1
        name = b"" if key is None else key.encode("utf-8", "surrogatepass")
        headers = repr(encoded.headers).encode() if _are_own(encoded.headers, request) else b""
        named = -1 if key is None else len(name)
        identity = encoded.identity
        asked = encoded.params if identity is None else identity
        # Length prefixes keep adjacent values apart.
        identified = b"%d,%d,%d:%b%b%b" % (named, len(headers), len(asked), name, headers, asked)
        for digest in self._all_digests:
            digest.update(identified)
        # The stored bytes differ from those that identify an equal request.
        same_as = digest_of(asked) if self._is_compared or identity is not None else None
        prefix = None
        if self._marks is not None:
            marked, prefix = self._marks.mark(encoded, own)
            if prefix is not None and same_as is None:
                same_as = digest_of(asked)
            if reserve is not None and marked is not encoded:
                # A marked prefix may be written to the cache, which costs more.
                reserve = self._most_cost(marked, key)
            encoded = marked
            self._prefixed = self._prefixed or prefix is not None
        if same_as is not None:
            self._known_apart = True
        self._pending.append((key, encoded, same_as, prefix, reserve))
        size = len(encoded.params)
        self._pending_bytes += size
        self.size += size

    def _keep_beside(self, request: ActorRequest) -> None:
        if request.output_format is not None and (output := request.output) is not None:
            self.beside.outputs[self._count] = output
        if request.context is None:
            return
        if (encoded := json_context(request.context)) is None:
            self.beside.contexts[self._count] = request.context
        else:
            self._contexts.append((self._count, encoded))

    def refuse(self, result: ActorResult) -> None:
        """Keep the failed result of a request whose middleware fails, or raise its error."""
        if self._refused is None:
            result.unwrap()
        else:
            self._refused.append(replace(result, position=self.position))
            self.beside.refused.append(self._count)

    def _most_cost(self, encoded: EncodedRequest, key: str | None) -> int | None:
        """Return what a budget reserves for a request, or None without a budget."""
        if self._prices is None:
            return None
        try:
            bound = token_bound(encoded.params, self._files)
            in_batches = self.asked.mode.mode != "live"
            return bound_cost(self._prices, bound, self.asked.created, batch=in_batches)
        except Unbounded as error:
            raise unbounded_error(error, key, (self._budget, self.asked.actor)) from None

    def flush(self) -> None:
        """Store the requests added since the last flush."""
        if not self._pending:
            return
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        self.ledger.apply(lambda tx: self._store(tx, pending))
        self._has_contexts = self._has_contexts or bool(self._contexts)
        self._contexts.clear()
        self._stored += len(pending)
        if self._on_stored is not None:
            self._on_stored(self._stored)
        reach(CrashPoint.DURING_STORE_CHUNK)

    def _store(self, tx: Transaction, pending: Sequence[_Pending]) -> None:
        """Store requests once."""
        if enqueue.stored_count(tx, self.run_id) > self._stored:
            return  # they are stored; only the answer of the COMMIT was lost
        # Not kept between transactions: another process may merge the key's workspace meanwhile.
        lanes: dict[LaneHeaders, int] = {}
        new: list[NewRequest] = []
        headers, lane_id = None, 0
        ids = new_request_ids(len(pending))
        for position, (key, encoded, _, prefix, reserve) in enumerate(pending, self._stored):
            if encoded.headers is not headers:  # neighbours usually share theirs
                headers = encoded.headers
                lane_id = self._lane(tx, headers, lanes)
            identifier = ids[position - self._stored]
            new.append(
                NewRequest(identifier, position, key, lane_id, encoded.params, prefix, reserve)
            )
        if self._prices is not None:
            budgets.price_by(tx, self._prices.digest)
        first = enqueue.add_requests(
            tx,
            self.run_id,
            new,
            created=self.asked.created,
            due=self.asked.created,
            prefixed=self._prefixed,
            process=self.asked.process,
        )
        if self._known_apart:
            kept = [(seq, each[2]) for seq, each in enumerate(pending, first) if each[2]]
            held_requests.add_digests(tx, kept)
        if self._contexts:
            # Positions within this flush become row numbers.
            shift = first - self._stored
            enqueue.add_contexts(tx, [(shift + at, each) for at, each in self._contexts])

    def _lane(self, tx: Transaction, headers: LaneHeaders, lanes: dict[LaneHeaders, int]) -> int:
        lane_id = lanes.get(headers)
        if lane_id is None:
            lane_id = enqueue.ensure_lane(tx, self.asked.workspace_id, *headers.as_lane())
            lanes[headers] = lane_id
        return lane_id

    def to_send(self) -> tuple[Sequence[int], BatchProcessingMode]:
        """Return the positions of the requests that are sent once `finish` was called, and how.

        Of a new run, these are all. Of a run that the ledger has already, they are those that are
        not sent yet or that are sent again, with the settings that it keeps. Stores what was added,
        and sends nothing.
        """
        self.flush()
        known = self.ledger.query(self._earlier)
        if known is None:
            return range(self._count), self.asked.mode
        places = self.ledger.query(lambda tx: retries.to_send(tx, known.id))
        return places, enqueue.kept_mode(known, self.asked.mode)

    def finish(self, *, new: bool = False) -> str | None:
        """Make the stored requests a run that can be sent, and return its id.

        If the ledger has the same run and ``new`` is not set, returns the earlier run's id and
        discards this one. If that run has ended, its requests that failed for a transient reason
        are queued again in the same transaction. So of two processes that submit the same requests
        at once, only one queues them.

        Without any request, returns None if ``refused`` was given (the caller needs results and no
        run), else raises `InvalidRequestError`. Raises `PreflightError`.
        """
        self.flush()
        if not self._count:
            self.abort()
            if self._refused is not None:
                return None
            raise EmptyRunError("the input has no requests; nothing was sent")
        if new or not self._is_known():
            if not new:
                self._warn_of_twins()
            self._check_deadline()
            if self._preflight is not None:
                self._preflight.check(self._count)
            self._spare(anew=new)
        # Before its budget is there, too: a driver may send something as soon as it is.
        mode = self.asked.mode
        of_actor: list[BudgetKey] = (
            [] if mode.actor_budget is None else [("actor", self.asked.actor)]
        )
        self._count_under_way(of_actor)
        reach(CrashPoint.BEFORE_STORED)
        known, self.rerun, self.stamp = self.ledger.apply(lambda tx: self._finish(tx, new))
        reach(CrashPoint.AFTER_STORED)
        run_id = self.run_id if known is None else str(known.id)
        self._count_under_way(of_actor)
        self._count_under_way([] if mode.budget is None else [("run", run_id)])
        warn_of_displaced(self.displaced.values(), run_id)
        if self.rerun is not None:
            report_rerun(run_id, self.rerun)
            if self.rerun.queued or self.rerun.unfinished:
                kept = enqueue.kept_settings(known, self.asked.mode, prefixed=self._prefixed)
                report_kept(run_id, kept)
        if self._workbench is not None and self._conversation is not None:
            own = {at: judge_of(output) for at, output in self.beside.outputs.items()}
            tools, judge = self._conversation.tools, self._conversation.judge
            self._workbench.give(run_id, tools, judge, own)
            if tools is not None or judge is not None or own:
                self._forget_answered(self._workbench, run_id)
        if known is not None:
            try:
                self.abort()
            except LedgerError as error:
                _log.warning("a second copy of %s is removed by a later process: %s", run_id, error)
        return run_id

    def _forget_answered(self, workbench: Workbench, run_id: str) -> None:
        """Forget the functions of earlier runs that have ended with answers only, or were removed.

        Failed requests may be retried, by another process too, and need them then.
        """
        given = workbench.given_runs
        given.append(run_id)
        some: list[str] = []
        with suppress(IndexError):  # other threads take of them, too
            while len(some) < _RUNS_LOOKED_AT and len(given) > 1:
                some.append(given.popleft())
        # The run is stored: an error here must not look as if it were not.
        with suppress(LedgerError), self.ledger.read() as tx:
            needed = queries.unfinished_runs(tx, some)
            needed |= queries.runs_with_failures(tx, set(some) - needed)
            for each in set(some) - needed:
                workbench.forget(each)
            some = list(needed)
        given.extend(some)

    def _count_under_way(self, of: Sequence[BudgetKey]) -> None:
        """Count what was sent before these budgets, which come with this run."""
        if of and self._prices is not None:
            Reservations(self.ledger, self._prices, self.ledger.now()).count_under_way(of)

    def _finish(self, tx: Transaction, new: bool) -> tuple[Any | None, Rerun | None, int]:
        """Return the row of the earlier run, what it holds, and the stamp; None for a new run."""
        if self._continued is not None and enqueue.is_discarded(tx, self.run_id):
            return self._continued  # this is done; only the answer of the COMMIT was lost
        known = None if new else self._earlier(tx)
        rerun = None
        # It is this run itself if only the answer of the COMMIT was lost.
        if known is None or known.id == self.run_id:
            known = None
            enqueue.finish_storing(
                tx,
                self.run_id,
                digest=self._digests[0].hexdigest(),
                stored=self.ledger.now(),
                prefixed=self._prefixed,
                process=self.asked.process,
            )
        else:
            if self._has_contexts or self.beside.contexts:
                enqueue.move_contexts(tx, self.run_id, known.id)
            enqueue.discard(tx, self.run_id)
            enqueue.ask_again(tx, known.id, self.asked, self.ledger.now())
            rerun = retries.rerun(tx, known.id, self.asked.created)
        run_id = self.run_id if known is None else known.id
        judge = self.asked.process
        if judge is not None and self._drives and self.is_judged:
            workspace_id, now = self.asked.workspace_id, self.ledger.now()
            enqueue.add_judge(tx, run_id, judge, workspace_id=workspace_id, now=now)
        output, folder = self.asked.output, self.asked.forms.results_dir
        if output is not None and is_special(output):
            output = None  # a pipe or a device is not replaced, so that several runs may write it
        keeps = partial(keeps_places, self.ledger)
        taken = deliveries.take_places(tx, run_id, output, folder, keeps=keeps)
        # The transaction may run again after its COMMIT, and then finds nothing to take.
        self.displaced.update(((each.run_id, each.place), each) for each in taken)
        found = known, rerun, queries.last_stamp(tx)
        self._continued = None if known is None else found
        return found

    def report(self, engine: Engine, run_id: str) -> None:
        """Notify the engine and the observers that the run which `finish` returned waits."""
        ledger, event = engine.observers.ledger, None
        if self.rerun is None:
            event = RequestsQueued(
                ledger=ledger,
                run_id=run_id,
                actor=self.asked.actor,
                requests=self._count,
                kind="run",
            )
        elif self.rerun.queued:
            count = sum(self.rerun.queued.values())
            event = RequestsRetried(ledger=ledger, requests=count, reason="order", run_id=run_id)
        if event is not None:
            engine.observers.report(event)
            engine.noticing.follow([run_id])
        engine.wake()

    def _earlier(self, tx: Transaction) -> Any | None:
        """Return the row of the same run, stored before or as this one; None if there is none."""
        for digest in self._digests:
            if (known := enqueue.run_by_digest(tx, digest.hexdigest())) is not None:
                return known
        return None

    def _is_known(self) -> bool:
        return self.ledger.query(self._earlier) is not None

    def _check_deadline(self) -> None:
        # Relative deadlines begin now. A run that is continued may have missed its own.
        if (fault := deadline_fault(self.asked.mode, self.asked.created)) is not None:
            self.abort()
            raise fault
        _warn_of_margin(self.asked.mode, self.asked.created)

    def _warn_of_twins(self) -> None:
        """Warn if the ledger has the same requests for another base URL, and they may be paid."""
        for address, digest in self._elsewhere.items():
            name, there = digest.hexdigest(), address.rstrip("/")
            known = self.ledger.query(lambda tx, name=name: enqueue.run_by_digest(tx, name))
            if known is None:
                continue
            with self.ledger.read() as tx:
                holds = any(state not in FAILED for state in queries.request_counts(tx, known.id))
                sent = deliveries.was_sent(tx, known.id)
            if holds and sent:
                words = (
                    f"the same requests were sent to {there} as {known.id}; they are sent again "
                    f"now. To continue that run instead: add `--base-url {there}` (base_url=)"
                )
            elif holds:
                words = (
                    f"the same requests wait for {there} as {known.id}, of which nothing was sent; "
                    f"if that base URL is wrong, run `claude-batch cancel {known.id}`"
                )
            else:
                continue
            _log.warning("%s", words, extra={"for_people": True})

    def _spare(self, *, anew: bool) -> None:
        """Find requests that need not be sent, and requests that must wait for the cache.

        A request need not be sent if it was answered before, or if the run has an equal one. A
        request waits until the prompt cache holds the prefix that it shares.

        ``anew``: requests that were answered before are sent again anyway.
        """
        if self.asked.mode.reuse and not anew:
            held_requests.index_answers(self.ledger)
            with self.ledger.read() as tx:
                held_requests.take_all_answers(
                    self.ledger, held_requests.answered_before(tx, self.run_id)
                )
        if self.asked.mode.dedupe:
            with self.ledger.read() as tx:
                held_requests.hold_doubles(self.ledger, held_requests.doubled(tx, self.run_id))
        if self.asked.mode.prime and self._prefixed:
            held_requests.hold_back(self.ledger, self.run_id)

    def kept(self) -> str | None:
        """Return the id of the run if `finish` has stored it, even if it did not return."""

        def find(tx: Transaction) -> str | None:
            if queries.is_stored(tx, self.run_id):
                return self.run_id
            known = self._earlier(tx) if enqueue.is_discarded(tx, self.run_id) else None
            return None if known is None else str(known.id)

        return self.ledger.query(find)

    def abort(self) -> None:
        """Delete what was stored; nothing of it was sent."""
        for _ in deliveries.remove_in_pieces(self.ledger, self.run_id):
            pass
