"""`Actor`: a configuration bound to the provider that answers its requests."""

from __future__ import annotations

import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

import msgspec

from claude_batch.actor.configuration import CLAUDE_PROVIDERS, ActorConfiguration
from claude_batch.actor.loader import ActorLoader
from claude_batch.actor.output import (
    FormatLike,
    OutputFormat,
    checked_schema,
    output_format_of,
)
from claude_batch.actor.request import (
    RequestLike,
    Requests,
    check_requests,
    check_synchronous,
)
from claude_batch.actor.response import ActorResponse, ActorResult, OutputT, judge_of, read_as
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.settings import (
    absolute_ledger,
    check_arguments,
    default_ledger,
    without_password,
)
from claude_batch.lifecycle.threads import fork_safe_lock, in_own_thread
from claude_batch.providers.keywords import CallKeywords
from claude_batch.providers.protocol import Provider
from claude_batch.providers.registry import ProviderRegistry, default_registry
from claude_batch.providers.sync_bridge import Closing, check_object, in_worker_thread

if TYPE_CHECKING:
    from claude_batch.providers.estimation import Estimate, Estimation
    from claude_batch.providers.progress_reports import ProgressLike
    from claude_batch.providers.run import Run


# Run context --------------------------------------------------------------------------------------


class RunContext:
    """Submits a run when the block is entered, and closes it when the block is left.

    Leaving the block cancels nothing, also after an exception. Batches continue at the API. The
    same requests, or `open_run` with the run's id, continue the run.
    """

    _run: Run

    def __init__(
        self,
        submit: Callable[[], Awaitable[Run]],
        submit_sync: Callable[[], Run],
        *,
        ordered: bool,
        progress: ProgressLike,
    ) -> None:
        self._submit = submit
        self._submit_sync = submit_sync
        self._ordered = ordered
        self._progress = progress

    async def __aenter__(self) -> Run:
        return self._entered(await self._submit())

    async def __aexit__(self, *_: object) -> None:
        await self._run.aclose()

    def __enter__(self) -> Run:
        return self._entered(self._submit_sync())

    def __exit__(self, *_: object) -> None:
        self._run.close()

    def _entered(self, run: Run) -> Run:
        run.ordered, run.on_progress = self._ordered, self._progress
        self._run = run
        return run

    if not TYPE_CHECKING:  # a type checker reports these itself

        def __iter__(self):
            raise TypeError(_BLOCK.format(name="for"))

        def __aiter__(self):
            raise TypeError(_BLOCK.format(name="async for"))

        def __await__(self):
            raise TypeError(_BLOCK.format(name="await"))


_BLOCK = (
    "actor.run(…) is a block, and {name} cannot be used with it; write `async with actor.run(…) as "
    "run:` (or `with`), and read `run` in it. actor.respond_all(…) yields the results, and `await "
    "actor.submit(…)` returns the run"
)


# The actor ----------------------------------------------------------------------------------------

StrPath: TypeAlias = str | os.PathLike[str]

_SHAPES_KEPT = 64
"""Number of output formats per actor whose encoding is cached."""


class Actor(Closing):
    """An actor bound to its provider. Cheap to create; actors may share a provider."""

    elsewhere = "load it in each process with cb.load_actor or cb.make_actor"

    def __init__(
        self,
        configuration: ActorConfiguration,
        provider: Provider,
        *,
        tools: Iterable[Callable[..., Any]] = (),
    ) -> None:
        """Bind a configuration to a provider.

        ``tools`` are functions that the model may call, in addition to those named in the YAML.

        Raises `ActorConfigurationError` if the actor is not of type ``llm``, if it has a budget and
        the provider cannot keep one, if a tool cannot be imported, or if an imported object is not
        a tool.
        """
        check_object("provider", provider)
        configuration.require_answerable()
        if not provider.capabilities.batch:
            configuration.refuse_budget(_name_of(provider))
        if tools != ():
            configuration = configuration.with_tools(tools)
        _ = configuration.toolset  # fail here, not at the first request
        self._configuration = configuration
        self._provider = provider
        self._shapes: dict[object, ActorConfiguration] = {}
        self._registry: ProviderRegistry | None = None
        """Registry that lent the provider; None if the actor must not close it."""
        self._settings: dict[str, Any] = {}
        """Settings with which the provider was lent."""
        self._other: Actor | None = None
        """The same actor in a ledger, once a call needs it."""
        self._opening: str = ""
        """The call that opens the actor, for errors; without its last parenthesis."""
        self._closed = False
        self._closing = fork_safe_lock(self, "_closing")

    @classmethod
    def of_registry(
        cls,
        configuration: ActorConfiguration,
        registry: ProviderRegistry,
        opening: str = "cb.Actor.of_registry(configuration, registry",
        /,
        **settings: Any,
    ) -> Actor:
        """Bind a configuration to the provider that a registry finds for it, with these settings.

        Closing the actor closes the provider, unless other actors use it too. ``opening`` is the
        call that errors name, without its last parenthesis. Raises `ActorConfigurationError`,
        `LedgerError` and `ProviderNotFoundError`.
        """
        if (ledger := settings.get("ledger")) is not None:
            # A call with settings of its own may open it only later, from another directory.
            settings["ledger"] = absolute_ledger(default_ledger(ledger))
        actor = cls(configuration, registry.lend(configuration, **settings))
        actor._registry, actor._settings, actor._opening = registry, settings, opening
        return actor

    def close(self) -> None:
        """Close the provider if `load_actor` or `make_actor` created it and no other actor uses it.

        Batches continue at the API, and the next process collects them. The actor cannot be used
        any more. A provider that was passed to ``Actor`` stays open, and the actor with it; the
        provider's owner closes it.
        """
        with self._closing:
            registry, self._registry = self._registry, None
            other, self._other = self._other, None
            self._closed = self._closed or registry is not None
        if other is not None:
            other.close()
        if registry is not None and registry.give_back(self._provider):
            self._provider.close()

    @property
    def configuration(self) -> ActorConfiguration:
        """The configuration from the YAML."""
        return self._configuration

    @property
    def provider(self) -> Provider:
        """The provider that answers the requests."""
        return self._provider

    @property
    def name(self) -> str:
        """The actor's ``namespace/name``."""
        return self._configuration.name

    async def respond(
        self,
        request: RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
        output_format: type[OutputT] | UnionType | Mapping[str, Any] | None = None,
        **settings: Unpack[CallKeywords],
    ) -> ActorResponse[OutputT]:
        """Send one request and return its response.

        Raises an `ActorError` if there is no answer.

        Cancelling the call withdraws a request that is not sent yet, at no cost. With ``keep`` or a
        ``key``, the request is sent anyway.

        ``output_format`` is a Pydantic model, or another type that Pydantic validates. The API
        constrains the answer to its JSON schema, and `ActorResponse.parsed_output` is the object.
        With a JSON schema as the format, `parsed_output` is the decoded JSON. Raises
        `InvalidRequestError` before sending if the API does not support the schema, and
        `OutputValidationError` if the answer does not match the type.

        ``settings`` are those of a run (``mode``, ``deadline``, ``budget_usd``, …), for this call
        alone. They take precedence over the actor's and the provider's. The call of an actor
        without ``batch_processing`` then goes through the ledger, live unless ``mode`` says
        otherwise.
        """
        asked, given = self._decided(settings)
        actor, output = asked._shaped(output_format)
        call = {**_kept(keep), **given}
        response = await asked._provider.respond(actor, request, key=key, **call)
        return read_as(asked._returned(response, ActorResponse), output)

    def respond_sync(
        self,
        request: RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
        output_format: type[OutputT] | UnionType | Mapping[str, Any] | None = None,
        **settings: Unpack[CallKeywords],
    ) -> ActorResponse[OutputT]:
        """Run `respond` synchronously, with or without a running event loop."""
        asked, given = self._decided(settings)
        actor, output = asked._shaped(output_format)
        call = {**_kept(keep), **given}
        response = asked._method("respond_sync")(actor, request, key=key, **call)
        return read_as(asked._returned(response, ActorResponse), output)

    def respond_all(
        self,
        requests: Requests,
        *,
        ordered: bool = True,
        new: bool = False,
        output_format: type[OutputT] | UnionType | Mapping[str, Any] | None = None,
        progress: ProgressLike = None,
        results_dir: StrPath | None = None,
        **settings: Unpack[CallKeywords],
    ) -> AsyncIterator[ActorResult[OutputT]]:
        """Send many requests and yield every result, failures included.

        Results come in input order, or as they complete if ``ordered`` is False.

        In batches, submitting the same requests again finds the earlier run, unless ``new`` is set.
        Its answers are returned at no cost (`ActorResult.reused`), and requests that failed for a
        transient reason are retried. `run` returns the run itself. ``output_format`` works as in
        `respond`; an answer that does not match it is a failed result. ``progress`` works as in
        `Run.wait`, whenever a result is asked for. ``results_dir`` works as in `submit`.
        ``settings`` are as in `respond`, for this run alone; a run that is continued keeps its own,
        except the budget.
        """
        check_requests(requests)
        check_arguments(bool, ordered=ordered, new=new)
        asked, given = self._decided(settings)
        actor, output = asked._shaped(output_format)
        more = {**given, **asked._more(new, progress, results_dir)}
        respond_all: Any = asked._provider.respond_all
        results = respond_all(actor, requests, ordered=ordered is not False, **more)
        asked._returned(results, AsyncIterable)
        if "prepare" in more:
            return results  # the run itself parses and reports
        if output is not None:
            results = _read_all(results, output)
        if not progress:
            return results
        from claude_batch.providers.progress_reports import counted

        return counted(results, requests, progress)

    def respond_all_sync(
        self,
        requests: Iterable[RequestLike],
        *,
        ordered: bool = True,
        new: bool = False,
        output_format: type[OutputT] | UnionType | Mapping[str, Any] | None = None,
        progress: ProgressLike = None,
        results_dir: StrPath | None = None,
        **settings: Unpack[CallKeywords],
    ) -> Iterator[ActorResult[OutputT]]:
        """Run `respond_all` synchronously, with or without a running event loop."""
        check_requests(requests)
        check_arguments(bool, ordered=ordered, new=new)
        asked, given = self._decided(settings)
        actor, output = asked._shaped(output_format)
        more = {**given, **asked._more(new, progress, results_dir)}
        respond_all = asked._method("respond_all_sync")
        results = respond_all(actor, requests, ordered=ordered is not False, **more)
        asked._returned(results, Iterable)
        if "prepare" in more:
            return results  # the run itself parses and reports
        if output is not None:
            results = (result.with_output(output) for result in results)
        if not progress:
            return results
        from claude_batch.providers.progress_reports import counted_sync

        return counted_sync(results, requests, progress)

    async def submit(
        self,
        requests: Requests,
        *,
        label: str | None = None,
        new: bool = False,
        output_format: FormatLike | None = None,
        results_dir: StrPath | None = None,
        **settings: Unpack[CallKeywords],
    ) -> Run:
        """Store a run and send it; the process may end as soon as this returns.

        ``label`` is a name for people to read. The same requests find the earlier run, unless
        ``new`` is set. If that run has ended, its requests that failed for a transient reason
        (expired, canceled, overload, …) are retried, and a log record reports this.
        ``output_format`` works as in `respond`: the run's `results` parse the answers with it, and
        another process passes it to them again. ``results_dir`` is a folder for one file per
        result, which `Run.wait` and `Run.results` write when all requests have ended.
        ``settings`` work as in `respond_all`. Raises `ActorConfigurationError` if the provider does
        not support batches, and ``OSError`` if the folder cannot be written; nothing is stored
        then.
        """
        check_requests(requests)
        asked, given = self._decided(settings, run=True)
        submit = asked._method("submit")
        actor, _ = asked._shaped(output_format)
        prepare = _preparing(None, results_dir)
        run: Run = await submit(actor, requests, label=label, new=new, **given)
        await in_worker_thread(lambda: prepare(run))
        return run

    def submit_sync(
        self,
        requests: Iterable[RequestLike],
        *,
        label: str | None = None,
        new: bool = False,
        output_format: FormatLike | None = None,
        results_dir: StrPath | None = None,
        **settings: Unpack[CallKeywords],
    ) -> Run:
        """Run `submit` synchronously, with or without a running event loop."""
        check_requests(requests)
        asked, given = self._decided(settings, run=True)
        submit = asked._method("submit_sync")
        actor, _ = asked._shaped(output_format)
        prepare = _preparing(None, results_dir)
        run: Run = submit(actor, requests, label=label, new=new, **given)
        prepare(run)
        return run

    def run(
        self,
        requests: Requests,
        *,
        label: str | None = None,
        new: bool = False,
        output_format: FormatLike | None = None,
        ordered: bool = True,
        progress: ProgressLike = None,
        results_dir: StrPath | None = None,
        **settings: Unpack[CallKeywords],
    ) -> RunContext:
        """`submit` as a block: ``async with actor.run(requests) as run:``, or ``with``.

        The block receives the `Run`: its id, `progress`, `results`, `wait`, `retry_failed` and
        `cancel`. Iterating over it yields its results, in input order unless ``ordered`` is False.
        ``progress`` works as in `Run.wait`, while the run is waited for or its results are read.
        ``settings`` work as in `respond_all`. Leaving the block never cancels the run. Entering it
        raises what `submit` raises.
        """
        check_requests(requests)
        self._decided(settings, run=True)[0]._method("submit")
        check_arguments(bool, ordered=ordered, new=new)
        _check(progress)
        plain = cast("Iterable[RequestLike]", requests)  # an asynchronous one for `async with`
        given: dict[str, Any] = {
            "label": label,
            "new": new,
            "output_format": output_format,
            "results_dir": results_dir,
            **settings,
        }
        return RunContext(
            partial(self.submit, requests, **given),
            partial(self.submit_sync, plain, **given),
            ordered=ordered is not False,
            progress=progress,
        )

    def _decided(
        self, settings: CallKeywords, *, run: bool = False
    ) -> tuple[Actor, dict[str, Any]]:
        """Return the actor that answers under a call's own settings, and those to pass on.

        A provider without a ledger has no settings of calls, so the same actor is then answered
        through the ledger. ``run``: the call stores a run.
        """
        self._check_open()
        given = {name: value for name, value in settings.items() if value is not None}
        if not given or self._provider.capabilities.durable:
            return self, given
        if given == {"mode": "live"} and not run:
            return self, {}
        other = self._in_ledger(next(iter(given)))
        return other, {"mode": "live", **given}

    def _check_open(self) -> None:
        if self._closed:
            ledger = getattr(self._provider, "ledger", None)
            named = "" if ledger is None else f", ledger={without_password(ledger)!r}"
            raise ActorConfigurationError(
                f"actor {self.name} is closed; open it again with {self._opening}{named})"
            )

    def _in_ledger(self, setting: str) -> Actor:
        """Return the same actor, answered by a provider with a ledger."""
        with self._closing:
            if self._other is None:
                if self._registry is None:
                    raise ActorConfigurationError(
                        f"actor {self.name} is answered by {self._named!r}, which has no "
                        f"ledger, so a call cannot set `{setting}`. Load the actor with "
                        "cb.load_actor, or bind it to a ClaudeBatchProvider"
                    )
                batched = self._configuration.in_batches()
                self._other = Actor.of_registry(batched, self._registry, **self._settings)
            return self._other

    async def estimate(
        self,
        requests: Requests,
        *,
        offline: bool = False,
        output_format: FormatLike | None = None,
    ) -> Estimate:
        """Estimate what these requests would cost; nothing is stored or sent.

        The API counts the input tokens of a few of them, free of charge. Without a key, or with
        ``offline``, they are estimated from earlier answers, else from their size. Middleware is
        not called. Raises `InvalidRequestError` for the first request that cannot be sent.
        """
        estimation = self._estimation(requests, output_format)
        rest: Iterable[RequestLike] = ()
        if isinstance(requests, AsyncIterable):
            position = 0
            async for request in requests:
                await in_worker_thread(partial(_add, estimation, request, position))
                position += 1
        else:
            rest = requests
        # Not `in_worker_thread`: it reads the caller's iterable, which may wait for answers.
        estimating = partial(_estimated, estimation, rest, offline)
        return await in_own_thread(estimating, name="claude-batch-estimate", daemon=True)

    def estimate_sync(
        self,
        requests: Iterable[RequestLike],
        *,
        offline: bool = False,
        output_format: FormatLike | None = None,
    ) -> Estimate:
        """Run `estimate` synchronously, with or without a running event loop."""
        check_synchronous(requests)
        return _estimated(self._estimation(requests, output_format), requests, offline)

    def _estimation(self, requests: object, output_format: FormatLike | None) -> Estimation:
        check_requests(requests)
        self._check_open()
        estimation = self._method("estimation")
        actor, _ = self._shaped(output_format)
        return estimation(actor)

    def _more(
        self, new: bool, progress: ProgressLike, results_dir: StrPath | None
    ) -> dict[str, Any]:
        """Return the keywords of `respond_all` that only a provider with a ledger accepts."""
        _check(progress)
        if not self._provider.capabilities.durable:
            if results_dir is not None:
                raise self._no_runs("write a folder of results")
            return {}  # it always sends anew
        more: dict[str, Any] = {"new": True} if new else {}
        if progress or results_dir is not None:
            more["prepare"] = _preparing(progress, results_dir)
        return more

    def _shaped(
        self, output_format: FormatLike | None
    ) -> tuple[ActorConfiguration, OutputFormat[Any] | None]:
        """Return the configuration to use, and the format that parses the answers."""
        if output_format is None:
            return self._configuration, None
        output: OutputFormat[Any] | None = None
        key: object
        if isinstance(output_format, Mapping):
            try:
                schema = checked_schema(output_format)
                key = msgspec.json.encode(schema)  # in the given order, in which it is sent
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise InvalidRequestError(f"output_format: {error}") from None
        else:
            output = key = output_format_of(output_format)  # not its type, which may have no hash
            schema = output.schema
        # Reuse the same object, because what its requests share is encoded once per object.
        shaped = self._shapes.get(key)
        if shaped is None:
            judge = None if output is None else judge_of(output)
            shaped = self._configuration.with_response_schema(schema, judge)
            if len(self._shapes) < _SHAPES_KEPT:
                shaped = self._shapes.setdefault(key, shaped)
        return shaped, output

    def _method(self, name: str) -> Any:
        """Return a method that not every provider has. Raises `ActorConfigurationError`."""
        found: Any = getattr(self._provider, name, None)
        if found is not None:
            return found
        if name in ("submit", "submit_sync"):
            raise self._no_runs("submit")
        if name == "estimation":
            words = f"{self._named!r}, which estimates no costs"
        else:
            instead = name.removesuffix("_sync")
            words = f"{type(self._provider).__name__}, which has no {name}; use {instead}"
        raise ActorConfigurationError(f"actor {self.name} is answered by {words}")

    def _returned(self, value: Any, kind: Any) -> Any:
        """Return what the provider returned. Raises `ActorConfigurationError` for another type."""
        if isinstance(value, kind):
            return value
        returned = type(value).__name__
        if isinstance(value, Coroutine):
            value.close()  # else Python warns that nobody awaited it
        raise ActorConfigurationError(
            f"the provider {self._named!r} returned {returned}, where claude_batch.Provider has "
            f"{kind.__name__}"
        )

    def _no_runs(self, what: str) -> ActorConfigurationError:
        if self._opening.startswith("cb.make_actor"):
            remedy = f"leave out `batch_processing=False` of make_actor to {what}"
        elif self._configuration.resolved_provider in CLAUDE_PROVIDERS:
            remedy = f"write `batch_processing: true` in its YAML to {what}"
        else:
            remedy = "use respond or respond_all, or name `provider: anthropic`"
        return ActorConfigurationError(
            f"actor {self.name} is answered by {self._named!r}, which keeps no runs; {remedy}"
        )

    @property
    def _named(self) -> str:
        return _name_of(self._provider)

    def __repr__(self) -> str:
        return f"Actor({self.name!r}, provider={self._named!r})"


def _name_of(provider: Provider) -> str:
    """Return the name of a provider, or its class's: an actor needs no name of it."""
    return getattr(provider, "name", type(provider).__name__)


def _estimated(estimation: Estimation, requests: Iterable[RequestLike], offline: bool) -> Estimate:
    for position, request in enumerate(requests):
        _add(estimation, request, position)
    return estimation.result(offline=offline)


def _add(estimation: Estimation, request: RequestLike, position: int) -> None:
    try:
        estimation.add(request)
    except InvalidRequestError as error:
        raise error.naming(None, position) from None


def _check(progress: ProgressLike) -> None:
    if progress is not None:
        from claude_batch.providers.progress_reports import check_progress

        check_progress(progress)


def _preparing(progress: ProgressLike, results_dir: StrPath | None) -> Callable[[Run], None]:
    """Create the folder, and return what is done with the run once it is stored."""
    if results_dir is not None:
        from claude_batch.providers.export import make_folder

        make_folder(os.path.abspath(results_dir))

    def prepare(run: Run) -> None:
        if progress:
            run.on_progress = progress
        if results_dir is not None:
            run.set_results_dir(results_dir)

    return prepare


def _kept(keep: bool) -> dict[str, Any]:
    check_arguments(bool, keep=keep)
    # A third-party provider may not accept `keep`, so the default is not passed.
    return {"keep": True} if keep else {}


async def _read_all(
    results: AsyncIterator[ActorResult], output: OutputFormat[Any]
) -> AsyncIterator[ActorResult]:
    try:
        async for result in results:
            yield result.with_output(output)
    finally:
        # If the caller ends the iteration, end the provider's at once too.
        if isinstance(results, AsyncGenerator):
            await cast("AsyncGenerator[ActorResult]", results).aclose()


def load_actor(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    registry: ProviderRegistry | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    **settings: Any,
) -> Actor:
    """Read an actor's YAML and bind it to its provider.

    ``name`` selects one of several actors in the file. ``tools`` are functions that the model may
    call, in addition to those that the file names as ``module:function``. ``settings`` are keywords
    of the provider (``ledger``, ``linger``, ``base_url``, …); they take precedence over environment
    variables and YAML. Settings that concern only batches, apart from budgets, are accepted for a
    live actor without effect. So are those of `ClaudeProvider` alone (``timeout``, ``max_retries``,
    ``concurrency``) for an actor with batches, with a warning; its longest wait is ``max_wait``.
    Actors with the same settings share a provider, which is closed when the last of them is closed.
    Raises `ActorConfigurationError`, `LedgerError` and `ProviderNotFoundError`.
    """
    configuration = ActorLoader.load(path, name=name)
    named = "" if name is None else f", name={name!r}"
    opening = f"cb.load_actor({os.fspath(path)!r}{named}"
    return _bind(configuration, registry, tools, opening, settings)


def make_actor(
    model: str,
    system_prompt: str | None = None,
    *,
    max_tokens: int | None = None,
    options: Mapping[str, Any] | None = None,
    batch_processing: bool | Mapping[str, Any] | BatchProcessingMode = True,
    name: str | None = None,
    registry: ProviderRegistry | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    **settings: Any,
) -> Actor:
    """Make an actor without a YAML file, and bind it to its provider.

    ``max_tokens`` is the most tokens of an answer (4096), and ``options`` are other Messages
    parameters. ``batch_processing`` is on by default; False answers live, at full price. ``name``
    is ``local/actor`` by default; costs and budgets of actors are counted by name. The other
    arguments, and what closes the provider, are as in `load_actor`. Raises
    `ActorConfigurationError`, `LedgerError` and `ProviderNotFoundError`.
    """
    if max_tokens is not None:
        options = {**(options or {}), "max_tokens": max_tokens}
    given = {"system_prompt": system_prompt, "options": options, "name": name}
    given = {key: value for key, value in given.items() if value is not None}
    configuration = ActorLoader.from_mapping(
        {"provider": "anthropic", "model": model, "batch_processing": batch_processing, **given}
    )
    others = ", …" if given or tools != () or batch_processing is not True else ""
    return _bind(configuration, registry, tools, f"cb.make_actor({model!r}{others}", settings)


def _bind(
    configuration: ActorConfiguration,
    registry: ProviderRegistry | None,
    tools: Iterable[Callable[..., Any]],
    opening: str,
    settings: Mapping[str, Any],
) -> Actor:
    """Bind a configuration to its provider, which closes with the actor."""
    if tools != ():
        configuration = configuration.with_tools(tools)
    _ = configuration.toolset  # before a provider is lent
    found = default_registry if registry is None else registry
    return Actor.of_registry(configuration, found, opening, **settings)
