"""Access to the engine of a ledger, and the operations of every provider that has one.

Opening reads and writes the ledger, which may have to wait for other processes. So it happens on a
separate thread if the caller may have an event loop; callers wait for it as for an answer.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from claude_batch.actor.tools import ToolFinder
from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import (
    ActorConfigurationError,
    EngineStoppedError,
    InvalidRequestError,
    for_one_caller,
)
from claude_batch.core.events import ObserverLike
from claude_batch.core.quantities import count_of, parse_duration
from claude_batch.core.settings import (
    LedgerSettings,
    command_naming,
    naming_ledger,
    without_password,
)
from claude_batch.core.user_functions import UserFunctions
from claude_batch.ledger import (
    cancellations,
    conversations,
    cost_sums,
    deliveries,
    queries,
    uploaded_files,
    workspaces,
)
from claude_batch.ledger.deliveries import Outstanding
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.lifecycle.api_sessions import (
    ApiSession,
    closed_error,
    closed_words,
    halted_error,
    other_key_error,
)
from claude_batch.lifecycle.budget_holds import held_of
from claude_batch.lifecycle.budget_room import Reservations
from claude_batch.lifecycle.contact import Contact
from claude_batch.lifecycle.engine import Engine
from claude_batch.lifecycle.threads import REST_SECONDS, hold_at_fork
from claude_batch.money.prices import Prices, prices_of
from claude_batch.providers.cost_report import price_unpriced
from claude_batch.providers.document_upload import CallDocuments
from claude_batch.providers.status import RunStatus, require_run, status_in
from claude_batch.providers.sync_bridge import Closing
from claude_batch.wire.batches_client import ApiError, Unreachable

_log = logging.getLogger(__name__)

# Pruning ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of `ClaudeBatchProvider.prune`: what was removed, or would be."""

    runs: list[str]
    """Ids of the removed runs."""
    requests: int
    size: int
    """Bytes of prompts and answers.

    The ledger's file does not shrink, because later data fills the free space.
    """
    files: int
    """Number of uploaded documents that were deleted at the API."""
    kept: dict[str, str]
    """Runs that were old enough but stay, with the reason for each."""
    files_left: int = 0
    """Unused uploaded documents that could not be deleted; the next prune tries again."""
    reason: str = ""
    """Why they could not be deleted."""
    unpriced: int = 0
    """Number of their answers of unknown cost. A later budget counts the most that they can cost.
    """


def prune(
    engine: Engine,
    session: Callable[[], ApiSession],
    *,
    older_than: float,
    run_ids: Sequence[str] = (),
    dry_run: bool = False,
) -> Pruned:
    """Remove runs that were delivered ``older_than`` seconds ago, or only the named ones.

    Raises `RunNotFoundError`, and `InvalidRequestError` for a named run that must be kept, before
    anything is removed.
    """
    ledger, prices = engine.ledger, engine.prices
    with ledger.read() as tx:
        named = [str(require_run(ledger, tx, each).id) for each in run_ids]
        chosen = list(dict.fromkeys(named))
        if not run_ids:
            chosen = deliveries.delivered_runs(tx, ledger.now() - older_than)
        kept = {each: why for each in chosen if (why := _why_kept(ledger, tx, each)) is not None}
    if run_ids and kept:
        run_id, why = next(iter(kept.items()))
        raise InvalidRequestError(f"{run_id} was kept: {why}. Nothing was removed")
    going = [each for each in chosen if each not in kept]
    if dry_run:
        unpriced = sum(_unpriced(ledger, run_id) for run_id in going)
        return Pruned(runs=going, requests=0, size=0, files=0, kept=kept, unpriced=unpriced)
    gone: list[str] = []
    requests = size = unpriced = 0
    for run_id in going:
        # The run's requests are needed to bound the cost of answers without a price.
        price_unpriced(ledger, prices, run_id)
        Reservations(ledger, prices, ledger.now()).count_under_way([("run", run_id)])
        without_price = _unpriced(ledger, run_id)
        with ledger.write() as tx:
            if not queries.is_stored(tx, run_id):
                continue  # another process removes it
            why = deliveries.begin_pruning(tx, run_id, engine.process)
        if why is not None:  # submitted again meanwhile
            kept[run_id] = naming_ledger(why, ledger.location)
            continue
        for removed in deliveries.remove_in_pieces(ledger, run_id):
            requests, size = requests + removed.requests, size + removed.size
        gone.append(run_id)
        unpriced += without_price
    deleted, left, reason = _delete_files(engine, session)
    return Pruned(
        runs=gone,
        requests=requests,
        size=size,
        files=deleted,
        kept=kept,
        files_left=left,
        reason=reason,
        unpriced=unpriced,
    )


def _why_kept(ledger: Ledger, tx: Transaction, run_id: str) -> str | None:
    why = deliveries.why_kept(tx, run_id)
    return None if why is None else naming_ledger(why, ledger.location)


def _unpriced(ledger: Ledger, run_id: str) -> int:
    with ledger.read() as tx:
        (total,) = cost_sums.sums(tx, run_id)
    return total.unpriced


def _delete_files(engine: Engine, session: Callable[[], ApiSession]) -> tuple[int, int, str]:
    """Delete unused files; return how many were deleted, how many are left, and why."""
    ledger = engine.ledger
    with ledger.read() as tx:
        unused = uploaded_files.count_unused(tx)
    if not unused:
        return 0, 0, ""
    try:
        opened = session()
    except ActorConfigurationError as error:
        return 0, unused, str(error)
    with ledger.write() as tx:
        merged = workspaces.merged_workspaces(tx, opened.workspace_id)
        uploaded_files.dismiss_unused(tx, opened.workspace_id, merged)
        leaving = uploaded_files.files_leaving(tx, opened.workspace_id)
    reach(CrashPoint.BEFORE_FILES_DELETED)
    for number, file_id in enumerate(leaving):
        try:
            engine.do(opened.client.delete_file(file_id)).result()
        except (ApiError, Unreachable) as error:
            return number, unused - number, str(error)
        with ledger.write() as tx:
            uploaded_files.file_left(tx, opened.workspace_id, file_id)
    elsewhere = unused - len(leaving)
    return (
        len(leaving),
        elsewhere,
        "they belong to the workspace of another key" if elsewhere else "",
    )


# Access to the engine -----------------------------------------------------------------------------

_accesses: weakref.WeakSet[EngineAccess] = weakref.WeakSet()


def find_credentials(
    base_url: str | None, api_key: str | None, api_key_env: str | None
) -> dict[str, str]:
    """Return ``base_url`` and ``api_key`` for an SDK client; the SDK looks up what is missing.

    Raises `ActorConfigurationError` if ``api_key_env`` names a variable that is not set.
    """
    found: dict[str, str] = {}
    if base_url is not None:
        found["base_url"] = base_url
    if api_key is not None:
        found["api_key"] = api_key
    elif api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            raise ActorConfigurationError(f"no API key: the variable {api_key_env} is not set")
        found["api_key"] = key
    return found


class Entered(NamedTuple):
    """The open engine and session."""

    engine: Engine
    session: ApiSession


class EngineAccess(Closing):
    """Opens a ledger on first use, drives it, inspects it and closes it.

    The engine and its session are opened once for all threads and event loops of a provider.
    """

    def __init__(
        self,
        ledger: str,
        settings: LedgerSettings,
        *,
        base_url: str | None,
        api_key: str | None,
        api_key_env: str | None,
        drive: bool,
        observers: Sequence[ObserverLike],
        functions: UserFunctions,
    ) -> None:
        self.ledger: str = ledger
        """The ledger's URL, or its absolute path."""
        self.shown_location: str = without_password(ledger)
        """The same for messages."""
        self.settings: LedgerSettings = settings
        """The ledger settings from keywords and environment."""
        self._base_url = base_url
        self._api_key = api_key
        self._api_key_env = api_key_env
        self.may_drive: bool = drive
        """Whether this process may send and poll."""
        self._observers = observers
        self._functions = functions
        self.opens: threading.RLock = threading.RLock()
        """Held while it opens: never waited for on an event loop.

        Like `_planning`, it can be taken again, because a signal handler may call `close` while the
        thread that it has interrupted opens the ledger.
        """
        self._engine: Engine | None = None
        self._session: ApiSession | None = None
        self._planning = threading.RLock()  # held only briefly
        self._opening: Future[Entered] | None = None
        self.documents: CallDocuments = CallDocuments()
        """The documents of the provider's calls."""
        self._named: set[str] = set()
        """The runs of other keys and base URLs that the log has named."""
        self.closed: bool = False
        """True after `close`; the provider then rejects all calls."""
        _accesses.add(self)

    def credentials(self) -> dict[str, str]:
        """Return ``base_url`` and ``api_key`` for an SDK client; the SDK looks up what is missing.

        Raises `ActorConfigurationError` if ``api_key_env`` names a variable that is not set.
        """
        return find_credentials(self._base_url, self._api_key, self._api_key_env)

    def suggest_credentials(self, base_url: str, api_key: str | None) -> None:
        """Use a base URL and an API key if none is configured. Only before the first use."""
        self._base_url = self._base_url or base_url
        if self._api_key_env is None:
            self._api_key = self._api_key or api_key

    def forget(self) -> None:
        """Reset after a fork: the parent keeps its engine, and the child opens its own."""
        self.opens, self._planning = threading.RLock(), threading.RLock()
        self._engine = self._session = self._opening = None
        self.documents = CallDocuments()

    @property
    def entered(self) -> Entered | None:
        """Return the open engine and session, or None if it is not open. Never waits."""
        engine, session = self._engine, self._session
        return None if engine is None or session is None else Entered(engine, session)

    @property
    def prices(self) -> Prices:
        """Return the prices of the open engine; those of the file now, if none is open."""
        engine = self._engine
        return prices_of(self.settings.prices) if engine is None else engine.prices

    @property
    def known_address(self) -> str | None:
        """Return the base URL in use or configured; None if the environment decides."""
        if (session := self._session) is not None:
            return session.client.base_url
        try:
            return self.credentials().get("base_url")
        except ActorConfigurationError:
            return None

    def engine(self) -> Engine:
        """Return the engine, which needs no key; wait while it opens. Raises `LedgerError`."""
        if (engine := self._engine) is not None:
            return engine
        with self.opens:
            return self._acquire()

    def _acquire(self) -> Engine:
        if (engine := self._engine) is None:
            self._check_open()
            finder = ToolFinder(imports=self.settings.allow_tools_from_ledger)
            engine = Engine.acquire(self.ledger, self.settings, finder)
            try:
                engine.functions.join(self._functions)
            except ActorConfigurationError:
                engine.release()
                raise
            engine.observers.attach(self._observers)
            self._engine = engine
            if self.closed:
                self.close()  # again: a signal handler closed it before there was an engine
            self._check_open()
        return engine

    def session(self) -> ApiSession:
        """Return the session, once open. Raises `LedgerError` and `ActorConfigurationError`."""
        if (session := self._session) is not None:
            return session
        with self.opens:
            engine = self._acquire()
            if self._session is None:
                found = self.credentials()
                session = engine.open_session(
                    found.get("base_url"), found.get("api_key"), drive=self.may_drive
                )
                self._check_open()  # a signal handler may have closed it meanwhile
                self._session = session
            return self._session

    def _check_open(self) -> None:
        if self.closed:
            raise ActorConfigurationError(closed_words(self.shown_location))

    def opening(self) -> Future[Entered]:
        """Open the ledger if it is not open yet, without blocking the caller.

        The future raises what `session` would raise. It belongs to the caller, as does its error.
        """
        own: Future[Entered] = Future()
        own.set_running_or_notify_cancel()  # it gets its outcome even if nobody waits any more
        if (entered := self.entered) is not None:
            own.set_result(entered)
            return own

        def hand_over(opened: Future[Entered]) -> None:
            if (error := opened.exception()) is not None:
                own.set_exception(for_one_caller(error))
            else:
                own.set_result(opened.result())

        self._shared_opening().add_done_callback(hand_over)
        return own

    def _shared_opening(self) -> Future[Entered]:
        with self._planning:
            if (opening := self._opening) is not None:
                return opening
            opening = self._opening = Future()
        thread = threading.Thread(
            target=self._open, args=(opening,), name="claude-batch-open", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # too many threads, or the end of the process
            words = (
                f"the ledger {self.shown_location} was not opened, because no thread can start: "
                f"{error}. Nothing was changed; try again"
            )
            self._fail(opening, EngineStoppedError(words))
        return opening

    def _open(self, opening: Future[Entered]) -> None:
        try:
            session = self.session()
            entered = Entered(self.engine(), session)
        except BaseException as error:
            self._fail(opening, error)
        else:
            self._opening = None
            opening.set_result(entered)

    def _fail(self, opening: Future[Entered], error: BaseException) -> None:
        self._opening = None  # the next caller tries again
        opening.set_exception(error)

    @contextmanager
    def open_for(self, run_id: str) -> Generator[None]:
        """Do the work of a stored run; raise `EngineStoppedError` if the provider is closed."""
        try:
            yield
        except (ActorConfigurationError, EngineStoppedError):
            if not self.closed:
                raise
            raise closed_error(run_id, self.shown_location) from None

    def close(self) -> None:
        """Release the engine, once.

        The last provider of a ledger parks unfinished runs: batches continue at the API, and the
        next process collects them.
        """
        with self.opens:
            self.closed = True
            engine, self._engine = self._engine, None
            self._session = None
        if engine is not None:
            engine.release()
            engine.observers.detach(self._observers)

    # Operations -------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Wait only seconds more for a lost or locked ledger, because `close` follows."""
        self.engine().hurry()

    def sending_held(self) -> AbstractContextManager[None]:
        """Return a block in which this process sends nothing of the ledger; it polls and collects.

        If the block closes the provider, nothing is sent after it either.
        """
        return self.engine().sending_held()

    def packed_requests(self, run_id: str) -> queries.PackedRequests:
        """Return how many requests of a run are in batches or live calls."""
        return self.engine().ledger.query(lambda tx: queries.packed_requests(tx, run_id))

    @property
    def live_calls(self) -> int:
        """Return how many live calls of this process are under way; `close` waits for them."""
        entered = self.entered
        return 0 if entered is None else entered.session.driver.live_calls

    @property
    def contact(self) -> Contact:
        """Return whether the API has answered this process yet, and if not, what went wrong."""
        return self.session().driver.contact

    @property
    def drives(self) -> bool:
        """Return True if this process is the driver, or becomes it once the leader lock is free."""
        return self.may_drive and self.entered is not None

    @property
    def version(self) -> int:
        """Return a number that increases with every ledger change that this process has seen."""
        return self.engine().version

    @property
    def address(self) -> str:
        """Return the API base URL in use, without a slash at its end."""
        return self.session().client.base_url.rstrip("/")

    def missing_tools(self, run_id: str) -> str | None:
        """Return why a run makes no progress in this process, or None if it can.

        The reason is that all its unfinished requests are conversations that wait for tools which
        this process does not have, or must not import.
        """
        why = self.engine().workbench.why_not(run_id)
        if why is None:
            return None
        with self.engine().ledger.read() as tx:
            counts = queries.request_counts(tx, run_id)
            waiting = conversations.continuing_counts(tx, run_id).tools
            if waiting and (held := held_of(tx, run_id, self.engine().ledger.now())):
                waiting += held.requests  # they wait for the answers of the others
        left = sum(count for state, count in counts.items() if not state.is_final)
        return why if left == waiting else None

    def outstanding(self) -> list[Outstanding]:
        """Return the runs that are unfinished or whose output is not written yet, oldest first."""
        return self.engine().ledger.query(deliveries.outstanding_runs)

    def warn_of_other_runs(self) -> None:
        """Log the unfinished runs that this process cannot send, each of them once."""
        self._warn_of_other_addresses()
        if self.contact.made:  # which learns the key's workspace
            self._warn_of_other_keys()

    def _warn_of_other_addresses(self) -> None:
        here = self.address
        waiting = [
            left
            for left in self.outstanding()
            if left.base_url != here
            and not (left.finished or left.id in self._named or self.is_driven(left.id))
        ]
        self._named.update(left.id for left in waiting)
        for there, count in Counter(left.base_url for left in waiting).items():
            runs = count_of(count, "run waits", "runs wait")
            go_on = command_naming(
                f"claude-batch resume --base-url {there}", self.engine().ledger.location
            )
            _log.warning(
                "%s for another base URL, %s, and this process uses %s; continue them with `%s`",
                runs, there, here, go_on, extra={"for_people": True},
            )  # fmt: skip

    def _warn_of_other_keys(self) -> None:
        here, ledger = self.address, self.engine().ledger
        runs_of: defaultdict[int, list[str]] = defaultdict(list)
        with ledger.read() as tx:
            for left in deliveries.outstanding_runs(tx):
                if not left.finished and left.base_url == here and left.id not in self._named:
                    runs_of[queries.run_row(tx, left.id).workspace_id].append(left.id)
            own = workspaces.present_workspace(tx, self.session().workspace_id)
            rows = {each: workspaces.workspace_row(tx, each) for each in (own, *runs_of)}
        for there, run_ids in runs_of.items():
            if there != own and not ledger.has_leader(there):
                self._named.update(run_ids)
                error = other_key_error(run_ids[0], ledger.location, rows[there], rows[own])
                more = len(run_ids) - 1
                others = f" ({count_of(more, 'more run', 'more runs')} there)" if more else ""
                _log.warning("%s%s", error, others, extra={"for_people": True})

    def was_sent(self, run_id: str) -> bool:
        """Return whether a request of a run was ever sent, or may have been."""
        return self.engine().ledger.query(lambda tx: deliveries.was_sent(tx, run_id))

    def is_driven(self, run_id: str) -> bool:
        """Return whether any process drives the workspace of a run."""
        ledger = self.engine().ledger
        row = ledger.query(lambda tx: queries.run_row(tx, run_id))
        return ledger.patiently(lambda: ledger.has_leader(row.workspace_id))

    def status_without_this_process(self, run_id: str) -> RunStatus:
        """Return the status of a run as if this process had already ended."""
        ledger, driver = self.engine().ledger, self.session().driver
        address = self.address

        def read(tx: Transaction) -> RunStatus:
            workspace_id = queries.run_row(tx, run_id).workspace_id
            is_own = driver.is_leader and workspace_id == driver.workspace_id
            driven = ledger.has_leader(workspace_id) and not is_own
            return status_in(ledger, tx, run_id, driven=driven, address=address)

        return ledger.query(read)

    def uncancelled(self, run_id: str) -> int:
        """Return how many batches of a cancelled run the API has not been asked to cancel yet."""
        with self.engine().ledger.read() as tx:
            return cancellations.uncancelled(tx, run_id)

    def check_key(self, run_id: str) -> None:
        """Raise `AccountHaltedError` if a run cannot go on with this key.

        The API refuses the key, or the run waits in the workspace of another one.
        """
        session, ledger = self.session(), self.engine().ledger
        with ledger.read() as tx:
            run = queries.run_row(tx, run_id)
            theirs = workspaces.workspace_row(tx, run.workspace_id)
            own = workspaces.present_workspace(tx, session.workspace_id)
            ours = workspaces.workspace_row(tx, own)
        if session.driver.contact.refused and ours.halt_reason is not None:
            cancelled = run.cancelled is not None
            raise halted_error(ours, run_id, ledger.location, cancelled=cancelled)
        if theirs.id != ours.id:
            raise other_key_error(run_id, ledger.location, theirs, ours)

    def resume(self) -> None:
        """Drive the ledger, and lift a halt of this key's workspace."""
        self.session()
        self.engine().resume()

    def advance_sync(self, *, send: bool = True) -> bool:
        """Run one pass over everything that is due; return False if another process drives.

        Without ``send``, the pass sends no request; it only cancels, polls and collects.
        """
        engine, session = self.engine(), self.session()
        with nullcontext() if send else engine.sending_held():
            return engine.advance(session).result()

    def prune(
        self, *, older_than: str | float = "30d", runs: Sequence[str] = (), dry_run: bool = False
    ) -> Pruned:
        """Remove runs from the ledger that were delivered that long ago, or only ``runs`` by id.

        ``older_than`` is a duration such as ``30d``; a number is seconds, also if it is a text.
        Uploaded documents that no other run uses are deleted at the API. Unfinished, undelivered
        and unknown requests stay. A removed request is sent, and paid for, again if it is submitted
        again. Blocks. Raises `RunNotFoundError`, and `InvalidRequestError` for one of ``runs`` that
        must stay; then nothing is removed.
        """
        seconds = parse_duration(older_than)
        if isinstance(runs, str):
            raise InvalidRequestError(f"runs must be a list of ids, not a text; give [{runs!r}]")
        engine = self.engine()
        pruned = prune(engine, self.session, older_than=seconds, run_ids=runs, dry_run=dry_run)
        for run_id in () if dry_run else pruned.runs:
            engine.workbench.forget(run_id)
        return pruned


def _hold_openings() -> list[Callable[[], object]]:
    # The child of a fork in the middle of an opening would keep modules that are imported in part,
    # and locks of SQLite that nobody releases.
    end = time.monotonic() + REST_SECONDS
    locks = [engine_access.opens for engine_access in list(_accesses)]
    return [
        lock.release for lock in locks if lock.acquire(timeout=max(0.0, end - time.monotonic()))
    ]


def _after_fork() -> None:
    for engine_access in list(_accesses):
        engine_access.forget()


hold_at_fork(_hold_openings, _after_fork)
