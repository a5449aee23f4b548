"""`ProviderRegistry`: which provider answers for which actor. Nothing heavy is imported for it."""

from __future__ import annotations

import difflib
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast, get_args

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.core.errors import ActorConfigurationError, ProviderNotFoundError
from claude_batch.providers.protocol import Provider

__all__ = ["ProviderFactory", "ProviderRegistry", "default_registry"]

ProviderFactory: TypeAlias = Callable[..., Provider]
"""Makes a provider from keyword settings; called when an actor first needs it."""

_LIVE = "claude"
_BATCH = "claude-batch"
_ALIASES: Mapping[str, str] = {"anthropic": _LIVE}
# The host's word for the company that makes Claude.

_ENVIRONMENT = ("ANTHROPIC_", "CLAUDE_BATCH_")
# Variables that settings default to: providers made under other values are other providers.


class ProviderRegistry:
    """A table of names and factories. Names count without case; ``anthropic`` means ``claude``.

    Actors that ask for the same provider with the same settings get the same instance, so that
    their requests share batches and connections. Safe to use from many threads.
    """

    def __init__(self) -> None:
        self._factories: dict[str, ProviderFactory] = {}
        self._made: dict[tuple[str, object, object], Provider] = {}
        # How many actors hold a provider that nobody else was given: the last one closes it.
        self._lent: dict[int, int] = {}
        # Reentrant: a factory may itself ask the registry.
        self._lock = threading.RLock()

    def register(self, name: str, factory: ProviderFactory, *, replace: bool = False) -> None:
        """Add a provider. Raises `ActorConfigurationError` where the name is taken.

        With ``replace`` the new factory takes the name over; instances that were made before stay
        with those who have them.
        """
        name = _normal(name)
        if not name:
            raise ActorConfigurationError("a provider needs a name that is not empty")
        with self._lock:
            if name in self._factories and not replace:
                raise ActorConfigurationError(
                    f"a provider called {name!r} is registered already; register it under another "
                    "name, or with replace=True"
                )
            self._factories[name] = factory
            self._made = {key: made for key, made in self._made.items() if key[0] != name}

    def names(self) -> tuple[str, ...]:
        """All names that `get` knows, sorted."""
        with self._lock:
            aliases = (alias for alias, name in _ALIASES.items() if name in self._factories)
            return tuple(sorted({*self._factories, *aliases}))

    def get(self, name: str, **settings: Any) -> Provider:
        """The provider of that name, made on the first call for these settings.

        A setting that is None counts as not given. Raises `ProviderNotFoundError`, which lists
        the known names, and what the factory raises.
        """
        with self._lock:
            provider = self._get(name, settings)
            self._lent.pop(id(provider), None)  # it is the caller's too from now on
            return provider

    def _get(self, name: str, settings: Mapping[str, Any]) -> Provider:
        name = self._known(name)
        given = {key: value for key, value in settings.items() if value is not None}
        with self._lock:
            key = (name, _frozen(given), _environment())
            made = self._made.get(key)
            if made is None or getattr(made, "closed", False):
                made = self._factories[name](**given)
                self._made[key] = made
            return made

    def for_actor(self, configuration: ActorConfiguration, **settings: Any) -> Provider:
        """The provider that answers for an actor.

        ``anthropic`` and ``claude`` mean Claude: in batches where the actor has a batch mode, live
        where it has none. Raises `ProviderNotFoundError`, and `ActorConfigurationError` for an
        actor that cannot be asked or whose provider contradicts its mode.
        """
        return self._for_actor(configuration, settings, self.get)

    def lend(self, configuration: ActorConfiguration, **settings: Any) -> Provider:
        """`for_actor`, for one who will `give_back` the provider."""

        def get(name: str, **settings: Any) -> Provider:
            known = list(self._made.values())
            provider = self._get(name, settings)
            if not any(provider is other for other in known):
                self._lent[id(provider)] = 0
            if id(provider) in self._lent:
                self._lent[id(provider)] += 1
            return provider

        with self._lock:
            return self._for_actor(configuration, settings, get)

    def give_back(self, provider: Provider) -> bool:
        """True where the provider was lent to nobody else, and is to be closed by the caller."""
        with self._lock:
            left = self._lent.get(id(provider))
            if left is None:
                return False
            self._lent[id(provider)] = left - 1
            if left > 1:
                return False
            del self._lent[id(provider)]
            self._made = {key: made for key, made in self._made.items() if made is not provider}
            return True

    @staticmethod
    def _for_actor(
        configuration: ActorConfiguration,
        settings: Mapping[str, Any],
        get: Callable[..., Provider],
    ) -> Provider:
        configuration.require_answerable()
        name = configuration.resolved_provider
        batched = configuration.batch_mode is not None
        if name == _BATCH and "batch_processing" in configuration.model_fields_set and not batched:
            raise ActorConfigurationError(
                f"actor {configuration.name} has `provider: {_BATCH}` and `batch_processing: "
                "false`; remove one of them"
            )
        if batched and _ALIASES.get(name, name) == _LIVE:
            name = _BATCH
        provider = get(name, **settings)
        if batched and not provider.capabilities.batch:
            raise ActorConfigurationError(
                f"actor {configuration.name} has `batch_processing`, and its provider "
                f"{configuration.resolved_provider!r} has no batches; remove `batch_processing`, "
                "or name `provider: anthropic`"
            )
        return provider

    def _known(self, name: str) -> str:
        wanted = _normal(name)
        with self._lock:
            # A factory registered under an alias itself comes before what the alias means.
            for candidate in (wanted, _ALIASES.get(wanted, wanted)):
                if candidate in self._factories:
                    return candidate
        raise ProviderNotFoundError(name, self.names())


def _normal(name: str) -> str:
    return name.strip().lower()


def _frozen(value: object) -> object:
    """A value that can be looked up: equal settings give equal keys."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return ("mapping", frozenset((key, _frozen(item)) for key, item in items))
    if isinstance(value, list | tuple):
        return ("list", tuple(_frozen(item) for item in cast("list[object]", value)))
    try:
        hash(value)
    except TypeError:
        # Kept alive by the provider that it went into, so its id stays its own.
        return (type(value), id(value))
    return (type(value), value)


def _environment() -> frozenset[tuple[str, str]]:
    return frozenset(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))


# --- Claude, live and in batches ------------------------------------------------------------------


def _live(**settings: Any) -> Provider:
    from claude_batch.providers.live import ClaudeProvider

    return ClaudeProvider(**_own(settings, _LIVE, ClaudeProvider, _batch_class))


def _batch(**settings: Any) -> Provider:
    return _batch_class()(**_own(settings, _BATCH, _batch_class(), _live_class))


def _live_class() -> Callable[..., Provider]:
    from claude_batch.providers.live import ClaudeProvider

    return ClaudeProvider


def _batch_class() -> Callable[..., Provider]:
    from claude_batch.providers.batch import ClaudeBatchProvider

    return ClaudeBatchProvider


def _own(
    settings: Mapping[str, Any],
    name: str,
    provider: Callable[..., Provider],
    twin: Callable[[], Callable[..., Provider]],
) -> dict[str, Any]:
    """The settings that this provider of Claude takes.

    The actor's mode chooses between the two, so one that only the other takes (``ledger`` for an
    actor that is answered live) is no fault; one that neither takes is.
    """
    known = _keywords_of(provider)
    others = [setting for setting in settings if setting not in known]
    if others:
        all_known = (*known, *_keywords_of(twin()))
        for setting in others:
            if setting not in all_known:
                close = difflib.get_close_matches(setting, all_known, n=1)
                meant = f"; did you mean {close[0]!r}?" if close else ""
                raise ActorConfigurationError(f"provider {name} has no setting {setting!r}{meant}")
    return {setting: value for setting, value in settings.items() if setting in known}


def _keywords_of(provider: Callable[..., Provider]) -> list[str]:
    names: list[str] = []
    for name, parameter in inspect.signature(provider, eval_str=True).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (keywords,) = get_args(parameter.annotation)  # ``Unpack`` of a TypedDict
            names += keywords.__annotations__
        else:
            names.append(name)
    return names


default_registry: ProviderRegistry = ProviderRegistry()
"""The registry that `load_actor` uses; it knows ``claude`` (``anthropic``) and ``claude-batch``."""

default_registry.register(_LIVE, _live)
default_registry.register(_BATCH, _batch)
