"""Steps for the registry, and for actors bound to the providers that it finds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from behave import given, then, use_step_matcher, when
from behave.runner import Context
from tables import rule

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.response import ActorResult
from claude_batch.core.errors import (
    ActorConfigurationError,
    ActorError,
    InvalidRequestError,
    LiveRequestError,
)
from claude_batch.providers.actor import Actor, load_actor
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.providers.live import ClaudeProvider
from claude_batch.providers.protocol import Provider, ProviderCapabilities
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

    def respond_sync(self, actor: Any, request: Any, *, key: str | None = None) -> Any:
        self.noted.append(("respond_sync", actor, request, key))

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


def _register(context: Context, name: str, delay: float = 0.0) -> None:
    if not hasattr(context, "registry"):
        context.registry, context.registry_made = ProviderRegistry(), []
        context.providers_given = []

    def factory(**settings: Any) -> Provider:
        time.sleep(delay)
        made = _Provider(name.strip().lower(), settings)
        context.registry_made.append(made)
        return made

    context.registry.register(name, factory)


@given('a registry with the provider "{name}"')
def _(context: Context, name: str) -> None:
    _register(context, name)


@given('a registry with the providers "{names}"')
def _(context: Context, names: str) -> None:
    for name in names.split(", "):
        _register(context, name)


@given('a registry with a provider "{name}" that takes {delay:d} ms to make')
def _(context: Context, name: str, delay: int) -> None:
    _register(context, name, delay / 1000)


@then("the registry has called no factory")
def _(context: Context) -> None:
    assert context.registry_made == []


@when('the registry is asked for "{name}" {times:d} times')
def _(context: Context, name: str, times: int) -> None:
    context.registry_given = [context.registry.get(name) for _ in range(times)]


@then('the registry has called the factory of "{name}" once, without settings')
def _(context: Context, name: str) -> None:
    [made] = context.registry_made
    assert made.name == name and made.settings == {}, vars(made)


@then('the registry has called the factory of "{name}" once, with {settings}')
def _(context: Context, name: str, settings: str) -> None:
    [made] = context.registry_made
    assert made.name == name and made.settings == json.loads(settings), vars(made)


@then("the registry gave one and the same provider")
def _(context: Context) -> None:
    assert len(context.registry_given) > 1
    assert {id(one) for one in context.registry_given} == {id(context.registry_made[0])}


@then('the registry\'s names are "{names}"')
def _(context: Context, names: str) -> None:
    assert context.registry.names() == tuple(names.split(", ")), context.registry.names()


@then("the registry tells two unhashable settings apart, and knows each again")
def _(context: Context) -> None:
    one, other = bytearray(b"a"), bytearray(b"a")
    first = context.registry.get("acme", thing=one)
    assert context.registry.get("acme", thing=other) is not first
    assert context.registry.get("acme", thing=one) is first


@then('the registry gives a new provider for "{name}" once the old one is closed')
def _(context: Context, name: str) -> None:
    old = context.registry.get(name)
    assert context.registry.get(name) is old
    old.close()
    new = context.registry.get(name)
    assert new is not old and not new.closed
    assert context.registry.get(name) is new


@then('the registry gives {count:d} threads that ask for "{name}" one provider')
def _(context: Context, count: int, name: str) -> None:
    given: list[Provider] = []
    threads = [
        threading.Thread(target=lambda: given.append(context.registry.get(name)))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == count and len({id(one) for one in given}) == 1
    assert len(context.registry_made) == 1


@then('registering "{name}" in the registry again is refused with "{text}"')
def _(context: Context, name: str, text: str) -> None:
    try:
        context.registry.register(name, _Provider)
    except ActorConfigurationError as error:
        assert text in str(error), error
    else:
        raise AssertionError("it was registered")


@then('registering "{name}" in the registry with replace gives a new provider')
def _(context: Context, name: str) -> None:
    new = _Provider(name)
    context.registry.register(name, lambda: new, replace=True)
    assert context.registry.get(name) is new


# --- who answers ----------------------------------------------------------------------------------


def _ask_who(context: Context, actor: str, settings: str = "{}") -> None:
    context.registry_answer = context.registry_refusal = None
    configuration = ActorConfiguration.model_validate(json.loads(actor))
    try:
        context.registry_answer = context.registry.for_actor(configuration, **json.loads(settings))
    except ActorError as error:
        context.registry_refusal = error


use_step_matcher("re")


@when(r"the registry is asked who answers for (?P<actor>\{.*?\})(?: with (?P<settings>\{.*\}))?")
def _(context: Context, actor: str, settings: str | None) -> None:
    _ask_who(context, actor, settings or "{}")


use_step_matcher("parse")


@then('the registry\'s answer is "{name}"')
def _(context: Context, name: str) -> None:
    assert context.registry_refusal is None, context.registry_refusal
    assert context.registry_answer.name == name, context.registry_answer.name


@then('the registry\'s refusal says "{text}"')
def _(context: Context, text: str) -> None:
    assert text in str(context.registry_refusal), context.registry_refusal
    assert context.registry_answer is None


# --- Claude ---------------------------------------------------------------------------------------


@then('the registry by default knows "{names}"')
def _(context: Context, names: str) -> None:
    assert default_registry.names() == tuple(names.split(", ")), default_registry.names()


def _claude(batched: str, settings: dict[str, Any]) -> Provider:
    actor = ActorConfiguration(model="m", batch_processing=batched == "with")
    return default_registry.for_actor(actor, **settings)


@then("the registry by default gives an actor {batched} batches {kind} with {settings}")
def _(context: Context, batched: str, kind: str, settings: str) -> None:
    provider = _claude(batched, json.loads(settings))
    context.add_cleanup(provider.close)
    assert type(provider).__name__ == kind, provider
    assert provider is _claude(batched, json.loads(settings))


@then(
    'the registry by default refuses an actor {batched} batches the setting "{setting}" '
    'with "{text}"'
)
def _(context: Context, batched: str, setting: str, text: str) -> None:
    try:
        _claude(batched, {setting: 1})
    except ActorConfigurationError as error:
        assert text in str(error), error
    else:
        raise AssertionError("it was taken")


@then("the registry by default gives providers that keep the protocol, each under its name")
def _(context: Context) -> None:
    for name in ("claude", "claude-batch"):
        provider = default_registry.get(name)
        context.add_cleanup(provider.close)
        assert isinstance(provider, Provider), name
        assert provider.name == provider.provider_name == name
        assert provider.capabilities.sync
        batched = name == "claude-batch"
        assert (provider.capabilities.batch, provider.capabilities.durable) == (batched, batched)
    assert default_registry.get("anthropic") is default_registry.get("claude")


# --- actors ---------------------------------------------------------------------------------------


def _bind(context: Context, provider: _Provider) -> None:
    context.registry_noting = provider
    context.registry_actor = Actor(ActorConfiguration(name="a", model="m"), provider)


@given("the registry's actor with a provider that notes its calls")
def _(context: Context) -> None:
    _bind(context, _Provider("noting"))


@given("the registry's actor with a provider that notes its calls and keeps runs")
def _(context: Context) -> None:
    _bind(context, _RunKeeper("noting"))


@when("the registry's actor is asked in every way")
def _(context: Context) -> None:
    actor: Actor = context.registry_actor

    async def ask() -> None:
        await actor.respond("one", key="k")
        async for result in actor.respond_all(["two"], ordered=False):
            assert not result.ok

    asyncio.run(ask())
    actor.respond_sync("three", key="l")
    assert len(list(actor.respond_all_sync(["four"]))) == 1


@then("the registry's provider noted every call with the actor's configuration")
def _(context: Context) -> None:
    own = context.registry_actor.configuration
    assert context.registry_noting.noted == [
        ("respond", own, "one", "k"),
        ("respond_all", own, ["two"], False),
        ("respond_sync", own, "three", "l"),
        ("respond_all_sync", own, ["four"], True),
    ], context.registry_noting.noted
    assert own.name == context.registry_actor.name == "local/a"
    assert context.registry_actor.provider is context.registry_noting


@when('the registry\'s actor submits 2 requests with the label "{label}", anew')
def _(context: Context, label: str) -> None:
    actor: Actor = context.registry_actor
    assert asyncio.run(actor.submit(["a", "b"], label=label, new=True)) == "run"
    assert actor.submit_sync(["a", "b"]) == "run"


@then("the registry's provider noted the submissions with label and novelty")
def _(context: Context) -> None:
    own = context.registry_actor.configuration
    assert context.registry_noting.noted == [
        ("submit", own, ["a", "b"], {"label": "l", "new": True}),
        ("submit_sync", own, ["a", "b"], {"label": None, "new": False}),
    ], context.registry_noting.noted


@then('submitting to the registry\'s actor is refused with "{text}"')
def _(context: Context, text: str) -> None:
    actor: Actor = context.registry_actor
    for submit in (lambda: asyncio.run(actor.submit(["a"])), lambda: actor.submit_sync(["a"])):
        try:
            submit()
        except ActorConfigurationError as error:
            assert text in str(error) and "local/a" in str(error), error
        else:
            raise AssertionError("it was submitted")


@then("giving the registry's actor a single prompt for many is refused, and nothing was asked")
def _(context: Context) -> None:
    actor: Actor = context.registry_actor
    for give in (
        lambda: actor.respond_all("prompt"),
        lambda: actor.respond_all_sync("prompt"),
        lambda: actor.submit_sync("prompt"),
        lambda: asyncio.run(actor.submit("prompt")),
    ):
        try:
            give()
        except InvalidRequestError as error:
            assert "requests must be a list or another iterable" in str(error), error
        else:
            raise AssertionError("it was asked")
    assert context.registry_noting.noted == []


@then('binding a registry actor of type "{kind}" is refused with "{text}"')
def _(context: Context, kind: str, text: str) -> None:
    try:
        Actor(ActorConfiguration(type=kind), _Provider("x"))
    except ActorConfigurationError as error:
        assert text in str(error), error
    else:
        raise AssertionError("it was bound")


@when('the registry\'s actor is loaded from the actor file as "{name}" with {settings}')
def _(context: Context, name: str, settings: str) -> None:
    path = context.actor_folder / "actor.yaml"
    context.registry_actor = load_actor(
        path, name=name, registry=context.registry, **json.loads(settings)
    )


@then('the registry\'s actor is called "{name}", and its repr says so')
def _(context: Context, name: str) -> None:
    actor = context.registry_actor
    assert actor.name == name and actor.provider is context.registry_made[0]
    assert repr(actor) == f"Actor({name!r}, provider='acme')", repr(actor)


@then("loading the actor file binds the registry's own ClaudeProvider")
def _(context: Context) -> None:
    actor = load_actor(context.actor_folder / "actor.yaml")
    context.add_cleanup(actor.provider.close)
    assert actor.provider is default_registry.get("claude")
    assert type(actor.provider).__name__ == "ClaudeProvider"


@rule("the registry gives providers")
def _(context: Context, settings: dict[str, Any]) -> dict[str, int]:
    found = context.registry.get("acme", **settings)
    if found not in context.providers_given:
        assert found.settings == settings, found.settings
        context.providers_given.append(found)
    return {"provider": 1 + context.providers_given.index(found)}


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
