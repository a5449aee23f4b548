"""LangChain's ``ChatAnthropic`` over this package's client: the extra ``langchain``.

Everything that LangChain does with a chat model (``ainvoke``, ``abatch``, streams, tools,
structured output) ends in a call of an SDK client that the model creates. Here, the model gets this
package's clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import as_completed
from functools import cached_property
from typing import Any, Final

import anthropic
from pydantic import Field, SecretStr, SkipValidation

from claude_batch.actor.configuration import CLAUDE_PROVIDERS
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.integrations.transport import RECEIVED, async_client, sync_client
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.threads import SharedEventLoop
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.wire.limits import SAMPLING_API_VERSION, SAMPLING_PARAMETERS, takes_sampling

try:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.runnables.config import get_config_list
except ImportError as _error:
    raise ActorConfigurationError(
        f"a LangChain model needs an extra: pip install 'claude-batch[langchain]' ({_error})"
    ) from None

_log = logging.getLogger(__name__)

_loop = SharedEventLoop("claude-batch-langchain-loop")

_THE_PROVIDERS_OWN: Final = (
    "api_key",
    "anthropic_api_key",
    "base_url",
    "anthropic_api_url",
    "anthropic_proxy",
)


class _Calls:
    """The calls of one batch. Their answers count as taken once the batch's caller has them.

    Others are kept in the ledger, and an equal call gets them. So a batch that fails loses nothing
    that was paid for.
    """

    def __init__(self, provider: ClaudeBatchProvider, count: int) -> None:
        self._provider = provider
        self._received: list[list[Answer]] = [[] for _ in range(count)]
        self._has_left = False
        self._lock = threading.Lock()

    async def ask(
        self, index: int, call: Callable[[], Awaitable[AIMessage]]
    ) -> tuple[int, AIMessage | Exception]:
        RECEIVED.set(self._received[index])
        try:
            return index, await call()
        except Exception as error:
            return index, error
        finally:
            if self._has_left:
                self._settle(index, taken=False)

    def taken(self, *indexes: int) -> None:
        """Record that the caller has these answers."""
        for index in indexes:
            self._settle(index, taken=True)

    def leave(self) -> None:
        """Keep all other answers for equal calls, also those that are still to come."""
        self._has_left = True
        for index in range(len(self._received)):
            self._settle(index, taken=False)

    def _settle(self, index: int, *, taken: bool) -> None:
        with self._lock:
            answers = self._received[index].copy()
            self._received[index].clear()
        for answer in answers:
            self._provider.acknowledge(answer, taken=taken)


class BatchedChatAnthropic(ChatAnthropic):
    """A ``ChatAnthropic`` whose calls are answered from batches."""

    batch_provider: SkipValidation[ClaudeBatchProvider] = Field(exclude=True, repr=False)
    """The provider that answers; its key and base URL are used, not LangChain's."""

    # LangChain's own `batch` and `batch_as_completed` call `invoke` on a few threads, so a batch
    # would hold a few calls, one batch after another. Here, all calls wait at once, as in `abatch`.

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """Answer all inputs together, in their order; ``max_concurrency`` of a config is kept.

        After the first error, the requests that are not sent yet are withdrawn. All other answers
        are kept in the ledger, and the next call with the same inputs gets them.
        """
        calls = _Calls(self.batch_provider, len(inputs))
        try:
            answers = dict(self._answered(calls, inputs, config, return_exceptions, kwargs))
            calls.taken(*answers)
        finally:
            calls.leave()
        return [answers[index] for index in range(len(inputs))]

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """Answer all inputs together, like `batch`."""
        calls = _Calls(self.batch_provider, len(inputs))
        asked = self._asked(calls, inputs, config, kwargs)
        tasks = [asyncio.ensure_future(each) for each in asked]
        answers: dict[int, Any] = {}
        try:
            for task in asyncio.as_completed(tasks):
                index, answer = await task
                if isinstance(answer, Exception) and not return_exceptions:
                    calls.taken(index)
                    raise answer
                answers[index] = answer
            calls.taken(*answers)
        finally:
            calls.leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [answers[index] for index in range(len(inputs))]

    def batch_as_completed(
        self,
        inputs: Sequence[LanguageModelInput],
        config: RunnableConfig | Sequence[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> Iterator[tuple[int, Any]]:
        """Yield the index and the answer of each input as it is answered; else like `batch`."""
        calls = _Calls(self.batch_provider, len(inputs))
        try:
            for index, answer in self._answered(calls, inputs, config, return_exceptions, kwargs):
                calls.taken(index)
                yield index, answer
        finally:
            calls.leave()

    def _asked(
        self,
        calls: _Calls,
        inputs: Sequence[LanguageModelInput],
        config: RunnableConfig | Sequence[RunnableConfig] | None,
        arguments: dict[str, Any],
    ) -> list[Coroutine[Any, Any, tuple[int, AIMessage | Exception]]]:
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        most = configs[0].get("max_concurrency")
        room = asyncio.Semaphore(most) if most else contextlib.nullcontext()

        async def answer(index: int) -> tuple[int, AIMessage | Exception]:
            async with room:
                return await calls.ask(
                    index, lambda: self.ainvoke(inputs[index], configs[index], **arguments)
                )

        return [answer(index) for index in range(len(inputs))]

    def _answered(
        self,
        calls: _Calls,
        inputs: Sequence[LanguageModelInput],
        config: RunnableConfig | Sequence[RunnableConfig] | None,
        return_exceptions: bool,
        arguments: dict[str, Any],
    ) -> Iterator[tuple[int, Any]]:
        _loop.check_blocking()  # a callback of another batch may call this
        # Each coroutine runs in a copy of this thread's context, which holds LangChain's tracers.
        futures = [_loop.run(each) for each in self._asked(calls, inputs, config, arguments)]
        try:
            for future in as_completed(futures):
                index, answer = future.result()
                if isinstance(answer, Exception) and not return_exceptions:
                    calls.taken(index)
                    raise answer
                yield index, answer
        finally:
            for future in futures:
                future.cancel()

    @cached_property
    def _client(self) -> anthropic.Client:
        return sync_client(self.batch_provider, owns=False).with_options(**self._options)

    @cached_property
    def _async_client(self) -> anthropic.AsyncClient:
        return async_client(self.batch_provider, owns=False).with_options(**self._options)

    @property
    def _options(self) -> dict[str, Any]:
        """Return the model's client options: headers, retries and timeout."""
        given = self._client_params
        return {name: given[name] for name in given if name not in ("api_key", "base_url")}


def create_chat_model(
    provider: ClaudeBatchProvider, model: str, *, temperature: float | None = None, **kwargs: Any
) -> ChatAnthropic:
    """Return a ``ChatAnthropic`` that a batch provider answers; ``kwargs`` are its own.

    Raises `InvalidRequestError` for a ``temperature`` (``top_p``, ``top_k``) that the model does
    not support, and `ActorConfigurationError` for a key or base URL, which belong to the provider.
    A LangChain default that the model does not support is dropped with a warning.
    """
    for name in _THE_PROVIDERS_OWN:
        if name in kwargs:
            raise ActorConfigurationError(
                f"{name}: the chat model uses its provider's value; pass it to ClaudeBatchProvider"
            )
    model = _without_provider(model)
    arguments = _arguments(model, temperature, kwargs)
    # LangChain looks up a key of its own, which is never used; this value keeps the lookup empty.
    made = BatchedChatAnthropic(**arguments, batch_provider=provider, api_key=SecretStr(""))
    for name in SAMPLING_PARAMETERS:
        value: object = getattr(made, name)
        if value is not None and not takes_sampling(model):
            _log.warning(
                "%s does not accept `%s`: LangChain's default %r is dropped", model, name, value
            )
            setattr(made, name, None)
    return made


def create_live_chat_model(
    model: str,
    *,
    temperature: float | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    **kwargs: Any,
) -> ChatAnthropic:
    """Return a plain ``ChatAnthropic``, for the live provider.

    Raises `InvalidRequestError` as `create_chat_model` does.
    """
    model = _without_provider(model)
    arguments = _arguments(model, temperature, kwargs)
    if any(arguments.get(name) is not None for name in SAMPLING_PARAMETERS):
        # LangChain sends them under the SDK's version, whose API no longer has them.
        headers: dict[str, str] = arguments.get("default_headers") or {}
        arguments["default_headers"] = {"anthropic-version": SAMPLING_API_VERSION, **headers}
    if base_url is not None:
        arguments["base_url"] = base_url
    if api_key is not None:
        arguments["api_key"] = api_key
    return ChatAnthropic(**arguments)


def _without_provider(model: str) -> str:
    """Return a model as it is sent, as for an actor: without ``anthropic/`` before it."""
    prefix, slash, rest = model.strip().partition("/")
    return rest if slash and prefix.strip().lower() in CLAUDE_PROVIDERS else model.strip()


def _arguments(model: str, temperature: float | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the model's arguments, without those that the caller did not set."""
    arguments = {"model": model, **kwargs}
    if temperature is not None:
        arguments["temperature"] = temperature
    for name in SAMPLING_PARAMETERS:
        if arguments.get(name) is not None and not takes_sampling(model):
            raise InvalidRequestError(f"{model} does not accept `{name}`; leave it out")
    return arguments
