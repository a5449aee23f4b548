"""`ClaudeBatchProvider`: answers an actor's requests through Anthropic's Message Batches API."""

from __future__ import annotations

import importlib
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack

from claude_batch.actor.configuration import ActorConfiguration, FixedOptions
from claude_batch.actor.middleware import TIMEOUT, PostProcessor
from claude_batch.actor.request import (
    ActorRequest,
    RequestEncoders,
    RequestLike,
    Requests,
)
from claude_batch.actor.response import ActorResponse, ActorResult, output_of
from claude_batch.core.batch_processing import (
    BatchProcessingMode,
    check_environment,
    resolve_mode,
)
from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.events import ObserverLike
from claude_batch.core.settings import (
    absolute_ledger,
    check_arguments,
    default_ledger,
    default_state_dir,
    from_environment,
    resolve_ledger_settings,
    url_text,
)
from claude_batch.core.states import RequestState
from claude_batch.core.user_functions import Classifier, PaceStrategy, UserFunctions
from claude_batch.ledger import queries, single_calls, unknown_batches, workspaces
from claude_batch.ledger.deliveries import AS_NAMED, Displaced, Forms
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.single_calls import StoredCall
from claude_batch.lifecycle.api_sessions import halted_error
from claude_batch.lifecycle.budget_holds import held_error
from claude_batch.lifecycle.notices import stuck_by
from claude_batch.lifecycle.observers import Carriers, checked_observers
from claude_batch.lifecycle.pending_call import CallOptions
from claude_batch.lifecycle.waiters import CallFuture, turn_to_begin
from claude_batch.money.prices import prices_of
from claude_batch.providers.engine_access import EngineAccess
from claude_batch.providers.estimation import Estimate, Estimation
from claude_batch.providers.keywords import (
    CallKeywords,
    SettingKeywords,
    ledger_keywords,
    mode_keywords,
)
from claude_batch.providers.middleware_runner import MiddlewareRunner
from claude_batch.providers.protocol import ProviderCapabilities
from claude_batch.providers.responder import NOTHING_BESIDE, Responder
from claude_batch.providers.result_cursor import merge, merge_sync
from claude_batch.providers.run import Run
from claude_batch.providers.run_storage import RunStorage, StoreOptions
from claude_batch.providers.sync_bridge import in_worker_thread
from claude_batch.wire.encoding import EncodedRequest

if TYPE_CHECKING:
    from langchain_anthropic import ChatAnthropic


# The provider -------------------------------------------------------------------------------------


class ClaudeBatchProvider(EngineAccess):
    """Provider that submits to ``/v1/messages/batches``, polls, and maps results to requests.

    It serves any number of callers. All providers of a process that name the same ledger share one
    engine, and their requests share batches. Nothing is opened before the first use. Keywords take
    the same precedence as command line options, above environment variables and an actor's YAML.
    """

    name: str = "claude-batch"
    provider_name: str = "claude-batch"
    capabilities: ProviderCapabilities = ProviderCapabilities(
        batch=True, streaming=False, sync=True, durable=True
    )

    def __init__(
        self,
        *,
        ledger: str | os.PathLike[str] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str | None = None,
        default_options: Mapping[str, Any] | None = None,
        drive: bool = True,
        observers: Iterable[ObserverLike] = (),
        middleware: Iterable[object] = (),
        middleware_timeout: str | float = TIMEOUT,
        classify: Classifier | None = None,
        pace: PaceStrategy | None = None,
        post_process: PostProcessor | None = None,
        post_process_timeout: str | float = TIMEOUT,
        **settings: Unpack[SettingKeywords],
    ) -> None:
        """Configure the provider; nothing is opened yet.

        ``default_options`` are Messages parameters for requests that do not set them.
        ``api_key_env`` names the environment variable that holds the key (``ANTHROPIC_API_KEY``).
        ``settings`` are those of `claude_batch.core.settings`, of the batch mode and of the ledger.
        ``drive=False`` only stores and reads: another process, or `advance`, sends and polls.
        ``observers`` are notified of what this process does with the ledger, for all its providers.
        ``middleware`` (see `Middleware`) changes requests and responses, and
        ``middleware_timeout``, a duration, limits each ``after_response`` call. ``classify``
        (see `Classifier`) decides which errors are retried, and ``pace`` (see `PaceStrategy`) how
        long live calls pause after a refusal; both hold for all providers of the ledger in this
        process. ``post_process`` (see `PostProcessor`) receives each result, for
        ``post_process_timeout`` at most. Raises
        `ActorConfigurationError` for an unusable value.
        """
        check_environment()
        base_url = url_text(base_url)
        check_arguments(base_url=base_url, api_key=api_key, api_key_env=api_key_env)
        check_arguments(bool, drive=drive)
        self.default_options: dict[str, Any] = FixedOptions(default_options or {})
        """Messages parameters for requests that do not set them. Its keys cannot change."""
        self.overrides: dict[str, Any] = mode_keywords(settings, of=ClaudeBatchProvider)
        """The settings given as keywords, durations in seconds."""
        ledger_settings = resolve_ledger_settings(ledger_keywords(settings))
        prices_of(ledger_settings.prices)  # report an error in the file here too
        if drive is not False:
            default_state_dir()  # likewise
        self.middleware: MiddlewareRunner = MiddlewareRunner(
            middleware, middleware_timeout, post_process, post_process_timeout
        )
        """The middleware for requests and responses."""
        checked = checked_observers(observers)
        super().__init__(
            absolute_ledger(default_ledger(ledger)),
            ledger_settings,
            base_url=base_url or from_environment("base_url"),
            api_key=api_key,
            api_key_env=api_key_env or from_environment("api_key_env"),
            drive=drive is not False,  # None, as of other settings, is the default
            observers=checked,
            functions=UserFunctions.of(classify, pace),
        )
        self._encoders = RequestEncoders(self.default_options)
        parts = (self, self._encoders, self._mode, Carriers(checked), self.middleware)
        self._responder = Responder(*parts)
        self._storage = RunStorage(*parts)

    # Single calls ----------------------------------------------------------------------------

    async def respond(
        self,
        actor: ActorConfiguration,
        request: RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
        **settings: Unpack[CallKeywords],
    ) -> ActorResponse:
        """Send one request. Concurrent calls of any task, thread and loop share batches.

        Cancelling the call withdraws a request that is not sent yet, at no cost. With ``keep`` or a
        ``key``, the request stays queued and is sent. A request that was sent is not withdrawn: the
        same call receives its answer later at no further cost.

        Raises `InvalidRequestError` before anything is stored, `BatchRequestError` for the API's
        own errors, `BatchTimeoutError` after ``max_wait``, `AccountHaltedError` at once when
        sending halts (the request stays queued), and `MiddlewareError`. ``key`` joins an earlier
        call of the same actor; a call that failed for a transient reason is retried.

        ``settings`` are for this call alone, and take precedence over all others. A call that joins
        an earlier request does not change it. With ``budget_usd``, the call raises
        `BudgetExceededError` before it is stored if it can cost more. It raises the same if only
        another budget would release it, and then stays queued.
        """
        if (turn := turn_to_begin()) is not None:
            await turn
        asked = ActorRequest.of(request, key=key)
        if self.middleware:
            return await self._responder.respond(actor, asked, keep, settings)
        # Neither a coroutine nor the request lasts as long as the wait: with ten thousand calls,
        # Python's garbage collector examines each object again and again.
        output, context = output_of(actor, asked), asked.context
        beside = NOTHING_BESIDE if output is None and context is None else (output, context)
        future = CallFuture()
        try:
            self._responder.ask(actor, asked, keep, settings, future)
            del turn, asked, output, context
            await future.on_loop()
        except BaseException:  # GeneratorExit: the coroutine was closed
            future.cancel()
            raise
        return self._responder.answered(future.result(), beside)

    def respond_sync(
        self,
        actor: ActorConfiguration,
        request: RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
        **settings: Unpack[CallKeywords],
    ) -> ActorResponse:
        """Run `respond` synchronously, with or without a running event loop; Ctrl-C cancels it."""
        asked = ActorRequest.of(request, key=key)
        return self._responder.respond_sync(actor, asked, keep, settings)

    def call(
        self, encoded: EncodedRequest, options: CallOptions, future: CallFuture | None = None
    ) -> CallFuture:
        """Queue encoded params: the entry point for integrations that need no actor.

        Without ``options.conversation``, the API's answer is returned even if it asks for another
        turn. Cancelling the future withdraws a request that is not sent yet, unless it has a key or
        ``keep`` is set. If it ``acknowledges``, the caller calls `acknowledge` once it has the
        answer, or will not take it. A caller that may be interrupted in this method passes the
        ``future``, and cancels it then. Never blocks: the first call opens the ledger on a separate
        thread.
        """
        future = future or CallFuture()
        self._responder.store(encoded, options, future)
        return future

    def stored_call(self, seq: int) -> StoredCall | None:
        """Return a call by its row number. Blocks. Raises `LedgerError`."""
        with self.engine().ledger.read() as tx:
            return single_calls.stored_call(tx, seq)

    def answer_of(self, call: StoredCall) -> Answer:
        """Return a stored call with its outcome, if it has one. Blocks. Raises `LedgerError`."""
        with self.engine().ledger.read() as tx:
            return queries.answer_of(tx, call.seq)

    def watch(self, call: StoredCall) -> CallFuture:
        """Return a future of a stored call's answer; leaving it changes nothing for the call."""
        future = CallFuture()
        self.engine().calls.watch(call, resolve_mode(True, self.overrides), future)
        return future

    def check_unsent(self, call: StoredCall) -> None:
        """Raise what keeps an unsent call from being sent until somebody changes it. Blocks.

        That is a spent budget, or a halt. Raises `BudgetExceededError`, `AccountHaltedError`, and
        `LedgerError`.
        """
        ledger, workspace_id = self.engine().ledger, self.session().workspace_id
        with ledger.read() as tx:
            now = ledger.now()
            row = workspaces.workspace_row(tx, workspaces.present_workspace(tx, workspace_id))
            held = stuck_by(tx, call.run_id, now)
        if workspaces.halt_stands(row, now):
            raise halted_error(row, call.run_id, ledger.location)
        if held is not None and held.for_good:
            raise held_error(call.run_id, held, ledger.location)

    def cancel_call(self, call: StoredCall) -> Future[None]:
        """Cancel a stored call even if it is sent, and so perhaps billed."""
        return self.engine().calls.cancel(call.seq)

    def own_batches(self, batch_ids: Collection[str]) -> unknown_batches.OwnBatches:
        """Return which of these ids are, or may be, batches of this ledger. Blocks."""
        with self.engine().ledger.read() as tx:
            return unknown_batches.own_batches(tx, batch_ids)

    def stored_workspace(self) -> str | None:
        """Return the API's id of the key's workspace, or None if the ledger does not have it.

        Blocks. Raises `LedgerError`.
        """
        own = self.session().workspace_id
        with self.engine().ledger.read() as tx:
            present = workspaces.present_workspace(tx, own)
            return workspaces.workspace_row(tx, present).name

    def why_stopped(self) -> str | None:
        """Return why the engine has stopped, for good or until that has passed, or None."""
        entered = self.entered
        failure = None if entered is None else entered.engine.failure
        return None if failure is None else str(failure)

    def why_not_sending(self) -> str | None:
        """Return why new requests would not be sent, or None. Blocks.

        Raises `LedgerError` if they could not even be stored.
        """
        workspace_id = self.session().workspace_id
        if (stopped := self.engine().failure) is not None:
            return str(stopped)
        self.engine().ledger.prove_writable()
        with self.engine().ledger.read() as tx:
            row = workspaces.workspace_row(tx, workspaces.present_workspace(tx, workspace_id))
        if row.halted is None:
            return self.session().client.outage.why()
        return f"sending is halted ({row.halt_reason}): {row.halt_message}"

    def acknowledge(self, answer: Answer, *, taken: bool) -> None:
        """Record whether the answer of a `call` reached its caller.

        If it did not, an equal call gets it. If it did and is a failure, equal calls get the same
        failure for ``failure_ttl``.
        """
        self._responder.acknowledge(
            answer, taken=taken, failed=answer.state is not RequestState.SUCCEEDED
        )

    def _mode(
        self, actor: ActorConfiguration, settings: CallKeywords | None = None
    ) -> BatchProcessingMode:
        return resolve_mode(actor.batch_processing or True, self._overrides(settings))

    def _overrides(self, settings: CallKeywords | None) -> dict[str, Any]:
        """Return the keywords of the provider, with those of a call before them."""
        if not settings:
            return self.overrides
        return {**self.overrides, **mode_keywords(settings, CallKeywords)}

    # Runs ------------------------------------------------------------------------------------

    async def respond_all(
        self,
        actor: ActorConfiguration,
        requests: Requests,
        *,
        ordered: bool = True,
        new: bool = False,
        prepare: Callable[[Run], None] | None = None,
        **settings: Unpack[CallKeywords],
    ) -> AsyncIterator[ActorResult]:
        """Send many requests as one run and yield every result, failures included.

        The same requests continue the earlier run, unless ``new`` is set: its answers are returned
        again, and requests that failed for a transient reason are retried. A request whose
        middleware fails is a failed result and not part of the run. Without requests there are no
        results. ``prepare`` receives the stored run, before its results are read. ``settings`` are
        for this run alone; a run that is continued keeps its own, except the budget.
        """
        refused: list[ActorResult] = []
        options = StoreOptions(new=new, refused=refused)
        run = await self._storage.store(actor, requests, settings, options)
        if run is not None and prepare is not None:
            await in_worker_thread(lambda: prepare(run))
        results = None if run is None else run.results(ordered=ordered)
        if refused:
            await self.middleware.finish(actor.name, refused)
        async for result in merge(results, refused, ordered=ordered):
            yield result

    def respond_all_sync(
        self,
        actor: ActorConfiguration,
        requests: Iterable[RequestLike],
        *,
        ordered: bool = True,
        new: bool = False,
        prepare: Callable[[Run], None] | None = None,
        **settings: Unpack[CallKeywords],
    ) -> Iterator[ActorResult]:
        """Run `respond_all` synchronously, with or without a running event loop."""
        refused: list[ActorResult] = []
        options = StoreOptions(new=new, refused=refused)
        run = self._storage.store_sync(actor, requests, settings, options)
        if run is not None and prepare is not None:
            prepare(run)
        results = iter(()) if run is None else run.results_sync(ordered=ordered)
        if refused:
            self.middleware.finish_sync(actor.name, refused)
        yield from merge_sync(results, refused, ordered=ordered) if refused else results

    async def submit(
        self,
        actor: ActorConfiguration,
        requests: Requests,
        *,
        label: str | None = None,
        new: bool = False,
        output: str | None = None,
        **settings: Unpack[CallKeywords],
    ) -> Run:
        """Store a run and send it; return once the API has accepted every batch its queue admits.

        The process may end then: any process that opens the run continues it. The same requests
        find the earlier run, unless ``new`` is set. If that run has ended, its requests that failed
        for a transient reason (expired, canceled, overload, …) are retried. Raises
        `InvalidRequestError` or `MiddlewareError` for the first request that cannot be sent, with
        nothing sent, and `AccountHaltedError`. ``settings`` are for this run alone; a run that is
        continued keeps its own, except the budget and those of waiting and retries. With
        ``budget_usd``, requests that do not fit are held, and this call does not wait for them. It
        returns without having sent everything if no process drives the run and ``drive=False``
        keeps this one from it, if the API cannot be reached, or if ``max_wait`` has passed.
        """
        options = StoreOptions(label=label, new=new, output=output)
        run = await self._storage.store(actor, requests, settings, options)
        assert run is not None
        await run.wait_until_sent()
        return run

    def submit_sync(
        self,
        actor: ActorConfiguration,
        requests: Iterable[RequestLike],
        *,
        label: str | None = None,
        new: bool = False,
        output: str | None = None,
        **settings: Unpack[CallKeywords],
    ) -> Run:
        """Run `submit` synchronously, with or without a running event loop."""
        options = StoreOptions(label=label, new=new, output=output)
        run = self._storage.store_sync(actor, requests, settings, options)
        assert run is not None
        run.wait_until_sent_sync()
        return run

    def store(
        self,
        actor: ActorConfiguration,
        requests: Iterable[RequestLike],
        *,
        label: str | None = None,
        new: bool = False,
        output: str | None = None,
        on_invalid: Callable[[InvalidRequestError], None] | None = None,
        on_stored: Callable[[int], None] | None = None,
        spare_single: bool = False,
        on_estimate: Callable[[Estimate], None] | None = None,
        estimate_all: bool = False,
        on_kept: Callable[[str], None] | None = None,
        run_key: str | None = None,
        send_meanwhile: bool = True,
        on_displaced: Callable[[Displaced], None] | None = None,
        forms: Forms = AS_NAMED,
        **settings: Unpack[CallKeywords],
    ) -> Run:
        """Store a run without waiting for its submission; the ledger's driver sends it.

        ``on_invalid`` is called for each request that is left out because the API would reject it;
        without it, the first such request raises and nothing is stored. ``on_stored`` is called
        repeatedly with the number of requests stored so far. ``spare_single``: a fault in one
        request's own messages does not fail the run. ``on_estimate`` receives the estimated cost of
        a new run, or of those requests of an earlier one that are not sent yet or are sent again;
        if it raises, nothing is stored. The estimate comes from a sample, unless ``estimate_all``:
        only then its highest cost holds for every request. Inside `sending_held`, nothing is sent
        before it. ``on_kept`` receives the run's id if the run is stored although the call raises,
        for example `KeyboardInterrupt`. ``run_key``: the same requests with another key are another
        run. ``send_meanwhile=False``: if the run has a budget, this process sends nothing until it
        is stored. The run may be an earlier one, which gets the budget only then. ``on_displaced``
        is called for each run that was to write the same output and has not: this run has its path
        or folder now. ``forms``: how ``output`` is written, and the folder for one file per result.
        ``settings`` are as in `submit`.
        """
        options = StoreOptions(
            label=label,
            new=new,
            output=output,
            on_invalid=on_invalid,
            on_stored=on_stored,
            spare_single=spare_single,
            on_estimate=on_estimate,
            estimate_all=estimate_all,
            on_kept=on_kept,
            run_key=run_key,
            send_meanwhile=send_meanwhile,
            on_displaced=on_displaced,
            forms=forms,
        )
        run = self._storage.store_sync(actor, requests, settings, options)
        assert run is not None
        return run

    def estimation(self, actor: ActorConfiguration) -> Estimation:
        """Return an empty estimate for requests of an actor; opens no ledger."""
        return Estimation(
            self._encoders.of(actor),
            self._mode(actor),
            self.prices,
            actor=actor,
            ledger=self.ledger,
            credentials=self.credentials,
        )

    def open_run(self, run_id: str) -> Run:
        """Return a run of this ledger by its id, or by first characters that no other run has.

        Raises `RunNotFoundError`.
        """
        mode = resolve_mode(True, self.overrides)
        return Run(
            self,
            run_id,
            middleware=self.middleware,
            settings={name: getattr(mode, name) for name in mode.model_fields_set},
        )

    def create_chat_model(
        self, model: str, temperature: float | None = None, **kwargs: Any
    ) -> ChatAnthropic:
        """Return LangChain's ``ChatAnthropic``, answered from batches (extra ``langchain``).

        Raises `InvalidRequestError` if the model does not accept ``temperature``.
        """
        integration = importlib.import_module("claude_batch.integrations.langchain")
        return integration.create_chat_model(self, model, temperature=temperature, **kwargs)


# Runs by their id ---------------------------------------------------------------------------------


def open_run(run_id: str, *, ledger: str | os.PathLike[str] | None = None, **settings: Any) -> Run:
    """Return a run by its id, in any process, at any time; needs no YAML.

    The first characters of the id are enough if no other run has them.

    ``settings`` are those of `ClaudeBatchProvider`; closing the run closes that provider. Raises
    `RunNotFoundError`.
    """
    provider = ClaudeBatchProvider(ledger=ledger, **settings)
    try:
        run = provider.open_run(run_id)
    except BaseException:
        provider.close()
        raise
    run.owns_provider = True
    return run
