"""Steps for the registry, and for actors bound to the providers that it finds."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from behave import given, then, use_step_matcher
from behave.runner import Context
from tables import rule

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import (
    ActorError,
    LiveRequestError,
)
from claude_batch.providers.actor import Actor, load_actor, make_actor
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.providers.live import ClaudeProvider
from claude_batch.providers.protocol import FullProvider, Provider, ProviderCapabilities
from claude_batch.providers.registry import ProviderRegistry, default_registry

use_step_matcher("parse")


class _Provider:
    """Answers nothing, notes everything."""

    closed = False

    def __init__(self, name: str, settings: dict[str, Any] | None = None) -> None:
        self.name = self.provider_name = name
        self.settings = settings or {}
        self.capabilities = ProviderCapabilities(batch=name == "claude-batch")
        self.noted: list[tuple[Any, ...]] = []

    async def respond(self, actor: Any, request: Any, *, key: str | None = None) -> Any:
        self.noted.append(("respond", actor, request, key))
        return ActorResponse(b"{}")

    def respond_sync(self, actor: Any, request: Any, *, key: str | None = None) -> Any:
        self.noted.append(("respond_sync", actor, request, key))
        return ActorResponse(b"{}")

    async def respond_all(
        self, actor: Any, requests: Any, *, ordered: bool = True
    ) -> AsyncIterator[ActorResult]:
        self.noted.append(("respond_all", actor, requests, ordered))
        yield ActorResult(key=None, position=0, error=LiveRequestError("none"))

    def respond_all_sync(
        self, actor: Any, requests: Any, *, ordered: bool = True
    ) -> Iterator[ActorResult]:
        self.noted.append(("respond_all_sync", actor, requests, ordered))
        yield ActorResult(key=None, position=0, error=LiveRequestError("none"))

    def create_chat_model(self, model: str, temperature: float | None = None, **_: Any) -> Any:
        raise AssertionError("nobody asks for one here")

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True


class _RunKeeper(_Provider):
    async def submit(self, actor: Any, requests: Any, **how: Any) -> str:
        self.noted.append(("submit", actor, requests, how))
        return "run"

    def submit_sync(self, actor: Any, requests: Any, **how: Any) -> str:
        self.noted.append(("submit_sync", actor, requests, how))
        return "run"


# --- the table ------------------------------------------------------------------------------------


def _register(context: Context, name: str, *, replace: bool = False) -> None:
    if not hasattr(context, "registry"):
        context.registry, context.registry_made = ProviderRegistry(), []
        context.providers_given = []

    def factory(**settings: Any) -> Provider:
        time.sleep(0.02)  # so that threads which ask at once would meet here
        made = _Provider(name.strip().lower(), settings)
        context.registry_made.append(made)
        return made

    context.registry.register(name, factory, replace=replace)


@given('a registry with the provider "{name}"')
def _(context: Context, name: str) -> None:
    _register(context, name)


@given('the provider "{name}" in place of another one')
def _(context: Context, name: str) -> None:
    _register(context, name, replace=True)


@given('a registry with the providers "{names}"')
def _(context: Context, names: str) -> None:
    for name in names.split(", "):
        _register(context, name)


@then('the registry\'s names are "{names}"')
def _(context: Context, names: str) -> None:
    assert context.registry.names() == tuple(names.split(", ")), context.registry.names()


OBJECTS = {"<one>": bytearray(b"a"), "<other>": bytearray(b"a")}
"""Settings that are equal, and cannot be hashed."""


@rule("the registry gives providers")
def _(
    context: Context,
    name: Any = "acme",
    settings: Any = None,
    threads: int = 1,
    close: bool = False,
) -> dict[str, int]:
    """Providers have numbers in the order in which they were given. `close`: close it then."""
    asked = {key: OBJECTS.get(str(value), value) for key, value in (settings or {}).items()}
    before = len(context.registry_made)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda _: context.registry.get(name, **asked), range(threads)))
    [provider] = set(found)
    assert not provider.closed
    if provider not in context.providers_given:
        assert provider.settings == asked, provider.settings
        context.providers_given.append(provider)
    if close:
        provider.close()
    number = 1 + context.providers_given.index(provider)
    return {"made_before": before, "provider": number, "made": len(context.registry_made)}


@rule("names are registered")
def _(context: Context, name: Any, replace: bool) -> None:
    new = _Provider(name)
    context.registry.register(name, lambda: new, replace=replace)
    assert context.registry.get(name) is new


# --- who answers ----------------------------------------------------------------------------------


@rule("the registry finds who answers")
def _(context: Context, actor: Any, settings: Any = None) -> Provider:
    configuration = ActorConfiguration.model_validate(actor)
    return context.registry.for_actor(configuration, **(settings or {}))


# --- Claude ---------------------------------------------------------------------------------------


@then('the registry by default knows "{names}"')
def _(context: Context, names: str) -> None:
    assert default_registry.names() == tuple(names.split(", ")), default_registry.names()


@rule("the registry by default finds Claude")
def _(context: Context, batches: bool, settings: Any) -> str:
    actor = ActorConfiguration(model="m", batch_processing=batches)
    provider = default_registry.for_actor(actor, **settings)
    context.add_cleanup(provider.close)
    assert provider is default_registry.for_actor(actor, **settings)
    return type(provider).__name__


@rule("Claude's providers keep the protocol")
def _(context: Context, asked_for: str) -> dict[str, object]:
    provider = default_registry.get(asked_for)
    context.add_cleanup(provider.close)
    assert isinstance(provider, FullProvider), asked_for
    assert provider is default_registry.get(provider.name)
    can = provider.capabilities
    return {
        "name": provider.name,
        "provider_name": provider.provider_name,
        "sync": can.sync,
        "batch": can.batch,
        "durable": can.durable,
    }


# --- actors ---------------------------------------------------------------------------------------


@rule("what an actor is asked reaches its provider")
def _(way: str, given: Any, how: Any = None, runs: bool = True, kind: str = "llm") -> Any:
    """`noted` is the call that the provider got. `runs`: whether it keeps runs."""
    provider = _RunKeeper("noting") if runs else _Provider("noting")
    own = ActorConfiguration(name="a", type=kind, model="m")

    async def ask() -> None:
        asked = getattr(actor, way)(given, **(how or {}))
        if inspect.isawaitable(asked):
            asked = await asked
        if isinstance(asked, AsyncIterator):
            assert [result.ok async for result in asked] == [False]
        elif isinstance(asked, Iterator):
            assert [result.ok for result in asked] == [False]
        else:
            assert asked == ("run" if way.startswith("submit") else ActorResponse(b"{}")), asked

    try:
        actor = Actor(own, provider)
        assert own.name == actor.name == "local/a" and actor.provider is provider
        asyncio.run(ask())
    except ActorError:
        assert provider.noted == []
        raise
    [(called, configuration, *rest)] = provider.noted
    assert called == way and configuration is own, provider.noted
    return {"noted": rest}


@rule("the actor of the file is bound")
def _(context: Context, name: str | None, settings: Any) -> dict[str, Any]:
    registry = context.registry if "registry" in context else None
    path = context.actor_folder / "actor.yaml"
    actor = load_actor(path, name=name, registry=registry, **settings)
    context.add_cleanup(actor.provider.close)
    assert actor.provider is (
        context.registry_made[0] if registry else default_registry.get("claude")
    )
    return {
        "called": actor.name,
        "repr": repr(actor),
        "provider": type(actor.provider).__name__,
        "its_settings": getattr(actor.provider, "settings", None),
    }


@rule("actors are made without a file")
def _(model: str, given: Any) -> dict[str, Any]:
    with make_actor(model, **given) as actor:
        written = actor.configuration.to_dict()
        mode = written.pop("batch_processing", False)
        named = {"batch_processing": json.dumps(mode), "provider": actor.provider.name}
        return {"actor": written, **named}


@rule("the registry gives another provider once a variable has changed,")
def _(context: Context, variable: str) -> dict[str, bool]:
    before = context.registry.get("acme")
    os.environ[variable] = "changed"
    return {"another": context.registry.get("acme") is not before}


@rule("a registry refuses an unknown name")
def _(registered: str, name: str) -> object:
    registry = ProviderRegistry()
    if registered:
        registry.register(registered, lambda: _Provider(registered))
    return registry.get(name)


# --- providers of other packages ------------------------------------------------------------------


@given("packages with the providers")
def _(context: Context) -> None:
    folder = Path(tempfile.mkdtemp(dir=context.tmp))
    packages = [row["package"] for row in context.table]
    for package, row in zip(packages, context.table, strict=True):
        (folder / f"{package}.py").write_text(row["module"])
        facts = folder / f"{package}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        named = f"[claude_batch.providers]\n{row['name']} = {row['object']}\n"
        (facts / "entry_points.txt").write_text(named)
    sys.path.append(str(folder))

    def forget() -> None:
        sys.path.remove(str(folder))
        for package in packages:
            sys.modules.pop(package, None)

    context.add_cleanup(forget)


@then('the modules "{names}" are not imported')
def _(context: Context, names: str) -> None:
    assert not sys.modules.keys() & set(names.split(", "))


@rule("providers of packages are found")
def _(name: str) -> dict[str, str]:
    registry = ProviderRegistry("claude_batch.providers")
    registry.register("claude", ClaudeProvider)
    registry.register("claude-batch", ClaudeBatchProvider)
    return {"provider": type(registry.get(name)).__name__}
