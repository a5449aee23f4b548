"""`ProviderRegistry`: selects the provider for an actor. Imports no heavy dependency."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.core.errors import ActorConfigurationError, ProviderNotFoundError
from claude_batch.lifecycle.threads import fork_safe_lock
from claude_batch.providers.keywords import meant_setting, parameters_of
from claude_batch.providers.protocol import Provider, ProviderCapabilities

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = logging.getLogger(__name__)

ProviderFactory: TypeAlias = Callable[..., Provider]
"""Creates a provider from keyword settings; called when an actor first needs it."""

_LIVE = "claude"
_BATCH = "claude-batch"
_ALIASES: Mapping[str, str] = {"anthropic": _LIVE}
# The host's name for the company that makes Claude.

_ENVIRONMENT = ("ANTHROPIC_", "CLAUDE_BATCH_")
# Environment variables that settings default to. Providers created under other values of them are
# other providers.


PLUG_INS = "claude_batch.providers"
"""The entry-point group in which other packages name their providers."""


class ProviderRegistry:
    """A table of provider names and factories.

    Names are case-insensitive; ``anthropic`` means ``claude``. Actors that request the same
    provider with the same settings get the same instance, so that their requests share batches and
    connections. Thread-safe.
    """

    def __init__(self, plug_ins: str | None = None) -> None:
        """``plug_ins`` is a group of entry points whose factories can be requested by name too.

        An entry point is imported when its provider is first requested, so that a broken one
        affects nobody else. A registered name takes precedence over it.
        """
        self._plug_ins = plug_ins
        self._factories: dict[str, ProviderFactory] = {}
        self._made: dict[tuple[str, object, object], Provider] = {}
        # How many actors hold a provider that was only lent; the last actor closes it.
        self._lent: dict[int, int] = {}
        # Reentrant: a factory may itself use the registry.
        self._lock = fork_safe_lock(self, "_lock")

    def register(self, name: str, factory: ProviderFactory, *, replace: bool = False) -> None:
        """Add a provider.

        Raises `ActorConfigurationError` if the name is taken, or ``factory`` cannot be called.

        With ``replace``, the new factory takes over the name; existing instances stay in use.
        """
        name = _normal(name)
        if not name:
            raise ActorConfigurationError("the name of a provider must not be empty")
        if not callable(factory):
            raise ActorConfigurationError(
                f"provider {name!r}: {factory!r} is not a class or function that makes a provider; "
                "register such a one, as in register(name, lambda **settings: provider)"
            )
        with self._lock:
            # An alias is taken, too: `anthropic` means Claude to every actor.
            taken = name in self._factories or _ALIASES.get(name) in self._factories
            if taken and not replace:
                raise ActorConfigurationError(
                    f"a provider called {name!r} is registered already; register it under another "
                    "name, or with replace=True"
                )
            self._factories[name] = factory
            self._made = {key: made for key, made in self._made.items() if key[0] != name}

    def names(self) -> tuple[str, ...]:
        """Return all names that `get` accepts, sorted."""
        with self._lock:
            aliases = (alias for alias, name in _ALIASES.items() if name in self._factories)
            plug_ins = (_normal(point.name) for point in self._entry_points())
            return tuple(sorted({*self._factories, *aliases, *plug_ins}))

    def get(self, name: str, **settings: Any) -> Provider:
        """Return the provider of that name, created on the first call for these settings.

        A setting that is None counts as not given. Raises `ProviderNotFoundError`, which lists the
        known names, `ActorConfigurationError` for a plug-in that cannot be imported, and what the
        factory raises.
        """
        with self._lock:
            provider = self._get(name, settings)
            self._lent.pop(id(provider), None)  # it is the caller's too from now on
            return provider

    def _get(self, name: str, settings: Mapping[str, Any]) -> Provider:
        """Return the provider of that name; the lock is held."""
        name = self._known(name)
        given = {key: value for key, value in settings.items() if value is not None}
        key = (name, _frozen(given), _environment())
        made = self._made.get(key)
        if made is None or getattr(made, "closed", False):
            made = self._factories[name](**given)
            _require(name, made, type(made), ("capabilities", *_METHODS))
            if not any(made is other for other in self._made.values()):
                self._lent[id(made)] = 0
            self._made[key] = made
        return made

    def for_actor(self, configuration: ActorConfiguration, **settings: Any) -> Provider:
        """Return the provider that answers an actor's requests.

        ``anthropic`` and ``claude`` mean Claude: in batches if the actor has a batch mode, else
        live. Raises `ProviderNotFoundError`, and `ActorConfigurationError` for an actor that cannot
        be answered or whose provider contradicts its mode.
        """
        provider = self.get(_name_for(configuration), **settings)
        _check_batches(configuration, provider.capabilities)
        return provider

    def lend(self, configuration: ActorConfiguration, **settings: Any) -> Provider:
        """`for_actor` for a caller that will `give_back` the provider."""
        with self._lock:
            provider = self._get(_name_for(configuration), settings)
            _check_batches(configuration, provider.capabilities)
            if id(provider) in self._lent:
                self._lent[id(provider)] += 1
            return provider

    def give_back(self, provider: Provider) -> bool:
        """Return True if no other actor holds the provider, so that the caller must close it."""
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

    def check(self, configuration: ActorConfiguration) -> None:
        """Raise what `for_actor` would raise, as far as that is known without a provider.

        A plug-in is imported, but makes no provider, which may need a key. A class shows its
        methods; what a function would make is not known.
        """
        with self._lock:
            name = self._known(_name_for(configuration))
            factory = self._factories[name]
        if isinstance(factory, type) and not hasattr(factory, "__getattr__"):
            # An object may get its capabilities as it is made.
            _require(name, factory, factory, _METHODS)
        capabilities = getattr(factory, "capabilities", None)
        if isinstance(capabilities, ProviderCapabilities):
            _check_batches(configuration, capabilities)

    def _known(self, name: str) -> str:
        """Return the name of the factory; the lock is held."""
        wanted = _normal(name)
        # A factory registered under an alias takes precedence over the alias's target.
        for candidate in (wanted, _ALIASES.get(wanted, wanted)):
            if candidate in self._factories:
                return candidate
        points = [point for point in self._entry_points() if _normal(point.name) == wanted]
        if points:
            self._factories[wanted] = _plug_in(wanted, points)
            return wanted
        raise ProviderNotFoundError(name, self.names())

    def _entry_points(self) -> Iterable[EntryPoint]:
        if self._plug_ins is None:
            return ()
        from importlib.metadata import entry_points  # the usual providers are found without it

        return entry_points(group=self._plug_ins)


def _name_for(configuration: ActorConfiguration) -> str:
    """Return the name of the provider that answers an actor. Raises `ActorConfigurationError`."""
    configuration.require_answerable()
    name = configuration.resolved_provider
    batched = configuration.batch_mode is not None
    if name == _BATCH and "batch_processing" in configuration.model_fields_set and not batched:
        raise ActorConfigurationError(
            f"actor {configuration.name} has `provider: {_BATCH}` and `batch_processing: "
            "false`; remove one of them"
        )
    return _BATCH if batched and _ALIASES.get(name, name) == _LIVE else name


def _check_batches(configuration: ActorConfiguration, capabilities: ProviderCapabilities) -> None:
    """Raise `ActorConfigurationError` for an actor with batches that its provider has not."""
    if configuration.batch_mode is not None and not capabilities.batch:
        raise ActorConfigurationError(
            f"actor {configuration.name} has `batch_processing`, and its provider "
            f"{configuration.resolved_provider!r} has no batches; remove `batch_processing`, "
            "or name `provider: anthropic`"
        )


def _plug_in(name: str, points: Sequence[EntryPoint]) -> ProviderFactory:
    """Import the factory of a plug-in. Raises `ActorConfigurationError`."""
    by = [f"{point.value} of {point.dist.name if point.dist else 'a package'}" for point in points]
    if len({point.value for point in points}) > 1:
        raise ActorConfigurationError(
            f"several packages have a provider {name!r}: {', '.join(by)}; uninstall all but one, "
            "or register the one to use"
        )
    try:
        factory = points[0].load()
        if not callable(factory):
            raise TypeError(f"it is not a class or function, but {type(factory).__name__}")
    except Exception as error:
        raise ActorConfigurationError(
            f"the provider {name!r} cannot be imported ({by[0]}): {type(error).__name__}: {error}. "
            "Other providers are not affected"
        ) from error
    return cast("ProviderFactory", factory)


_METHODS = ("respond", "respond_all", "aclose", "close")
"""What every actor uses of its provider, besides ``capabilities``. The rest needs a capability."""


def _require(name: str, provider: object, kind: type, needed: Iterable[str]) -> None:
    """Raise `ActorConfigurationError` if a provider, or the class of one, lacks a name."""
    if missing := [each for each in needed if not hasattr(provider, each)]:
        raise ActorConfigurationError(
            f"the provider {name!r} is {kind.__name__}, which has no {', '.join(missing)}; "
            "claude_batch.Provider says what a provider must have"
        )


def _normal(name: str) -> str:
    return name.strip().lower()


def _frozen(value: object) -> object:
    """Return a hashable form of a value: equal settings give equal keys."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return ("mapping", frozenset((key, _frozen(item)) for key, item in items))
    if isinstance(value, list | tuple):
        return ("list", tuple(_frozen(item) for item in cast("list[object]", value)))
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    return (type(value), value)


class _Same:
    """A value that has no hash, as a part of a key: equal to itself only.

    The key keeps it alive. Of a value that is gone, another one could have the same ``id``.
    """

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def _environment() -> frozenset[tuple[str, str]]:
    return frozenset(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))


# --- Claude, live and in batches ------------------------------------------------------------------


def _class_of(name: str) -> Callable[..., Provider]:
    """Import one of Claude's two providers."""
    if name == _LIVE:
        from claude_batch.providers.live import ClaudeProvider

        return ClaudeProvider
    from claude_batch.providers.batch import ClaudeBatchProvider

    return ClaudeBatchProvider


def _claude(provider: str, twin: str, /, **settings: Any) -> Provider:
    """Make one of Claude's two providers with the settings that it accepts.

    The actor's mode chooses between them, so a setting that only the other one accepts is ignored
    (``ledger`` for a live actor); in batches with a warning, because ``timeout`` limits no wait
    there. A setting that neither accepts is an error, and so is a budget of a live actor, which
    nothing would keep.
    """
    made = _class_of(provider)
    known = parameters_of(made)
    if others := [name for name in settings if name not in known]:
        all_known = (*known, *parameters_of(_class_of(twin)), "name", "registry")
        for name in others:
            if "budget" in name and name in all_known and settings[name] is not None:
                raise ActorConfigurationError(
                    "an actor without `batch_processing` has no ledger, so no budget holds its "
                    "calls; for live calls under a budget, write `batch_processing: {mode: live}`",
                    setting=name,
                )
            if name not in all_known:
                hint = meant_setting(name, all_known)
                raise ActorConfigurationError(f"provider {provider} has no setting {name!r}{hint}")
            if provider == _BATCH and settings[name] is not None:
                hint = meant_setting(name, known)
                _log.warning("%s: no effect on an actor with `batch_processing`%s", name, hint)
    return made(**{name: value for name, value in settings.items() if name in known})


default_registry: ProviderRegistry = ProviderRegistry(PLUG_INS)
"""The registry that `load_actor` uses.

It has ``claude`` (``anthropic``) and ``claude-batch``, and what other packages bring.
"""

default_registry.register(_LIVE, partial(_claude, _LIVE, _BATCH))
default_registry.register(_BATCH, partial(_claude, _BATCH, _LIVE))
