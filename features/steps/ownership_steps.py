"""Steps of ownership: what closes with what, and what the use of a closed object says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import anthropic
from behave import then, when
from behave.runner import Context
from engine_steps import configuration
from opening_steps import engines
from staging import QUICK, make_provider
from tables import rule

import claude_batch as cb
from claude_batch.lifecycle import observers as observers_module
from claude_batch.providers.registry import default_registry

SOON: dict[str, Any] = {**QUICK, "linger": 0.05}
"""Settings for many objects that are asked one after the other."""

YAML = """
actors:
  one:
    {type: llm, config: {provider: anthropic, model: claude-haiku-4-5}, batch_processing: true}
  two: {type: llm, config: {provider: anthropic, model: claude-haiku-4-5}}
"""


class Made(NamedTuple):
    """An object to be closed."""

    provider: Any
    use: Callable[[], Any]
    close: Callable[[], Any]
    others: tuple[Any, ...] = ()


def load(context: Context, name: str = "one", **settings: Any) -> cb.Actor:
    path = Path(context.tmp / "actors.yaml")
    path.write_text(YAML.replace("one:", "tests/one:").replace("two:", "tests/two:"))
    return cb.load_actor(path, name=f"tests/{name}", **SOON, **settings)


def of_actor(actor: cb.Actor, others: tuple[Any, ...] = ()) -> Made:
    return Made(actor.provider, lambda: actor.respond_sync("hello").text, actor.close, others)


def of_run(run: cb.Run, others: tuple[Any, ...] = ()) -> Made:
    return Made(run.provider, run.status, run.close, others)


def of_client(client: Any, provider: Any) -> Made:
    def use() -> Any:
        messages = [{"role": "user", "content": "hello"}]
        return client.messages.create(model="claude-haiku-4-5", max_tokens=9, messages=messages)

    return Made(provider, use, client.close)


def in_block(managed: Any) -> Callable[[], None]:
    def leave() -> None:
        with managed:
            pass

    return leave


def in_async_block(managed: Any) -> Callable[[], None]:
    async def leave() -> None:
        async with managed:
            pass

    return lambda: asyncio.run(leave())


def stored_run(context: Context) -> str:
    with load(context) as actor:
        run = actor.submit_sync(["hello"])
        run.wait_sync()
        return run.id


def made(context: Context, what: str) -> Made:
    managed: Any = None
    name, _, block = what.partition(", in ")
    match name:
        case "a loaded actor":
            managed = load(context)
            found = of_actor(managed)
        case "a loaded actor without batches":
            found = of_actor(load(context, "two"))
        case "a made actor":
            found = of_actor(cb.make_actor("claude-haiku-4-5", **SOON))
        case "one of two loaded actors":
            other, managed = load(context), load(context)
            found = of_actor(managed, (other,))
        case "a loaded actor beside an actor of the registry":
            registered = cb.Actor(
                configuration(), default_registry.for_actor(configuration(), **SOON)
            )
            found = of_actor(load(context), (registered.provider,))
        case "a loaded actor before an actor of the registry":
            actor = load(context)
            found = of_actor(actor, (default_registry.for_actor(configuration(), **SOON),))
        case "an actor of one's provider":
            provider = cb.ClaudeBatchProvider(**SOON)
            managed = cb.Actor(configuration(), provider)
            found = of_actor(managed, (provider,))
        case "an opened run":
            managed = cb.open_run(stored_run(context))
            found = of_run(managed)
        case "a run of one's provider":
            provider = cb.ClaudeBatchProvider(**SOON)
            found = of_run(provider.open_run(stored_run(context)), (provider,))
        case "a run of a loaded actor":
            actor = load(context)
            found = of_run(actor.submit_sync(["hello"]), (actor,))
        case "a run of a loaded actor, with the actor":
            actor = load(context)
            run = actor.submit_sync(["hello"])
            found = Made(run.provider, run.status, actor.close)
        case "a client":
            client = cb.client_sync(**SOON)
            found = of_client(client, client._client._transport._provider)
        case "a client of one's provider":
            provider = cb.ClaudeBatchProvider(**SOON)
            found = of_client(cb.client_sync(provider=provider), provider)._replace(
                others=(provider,)
            )
        case "an http_client" | "an http_client of one's provider":
            others = (cb.ClaudeBatchProvider(**SOON),) if "provider" in name else ()
            http = cb.http_client_sync(**({"provider": others[0]} if others else SOON))
            client = anthropic.Anthropic(http_client=http)
            found = of_client(client, http._transport._provider)._replace(others=others)
        case "one's provider":
            provider = cb.ClaudeBatchProvider(**SOON)
            actor, managed = cb.Actor(configuration(), provider), provider
            found = Made(provider, lambda: actor.respond_sync("hello").text, provider.close)
        case _:
            raise AssertionError(what)
    blocks = {
        "": found.close,
        "a block": in_block(managed),
        "an async block": in_async_block(managed),
    }
    return found._replace(close=blocks[block])


def is_usable(other: cb.Actor | cb.ClaudeBatchProvider) -> bool:
    actor = other if isinstance(other, cb.Actor) else cb.Actor(configuration(), other)
    return bool(actor.respond_sync("another question").text)


def end(found: Made) -> None:
    for other in found.others:
        other.close()
    assert engines() == 0, "something was left open"


@rule("objects own their providers")
def _(context: Context, object: str) -> dict[str, bool | None]:
    found = made(context, object)
    assert found.use()
    found.close()
    found.close()  # again, to no effect
    closed = found.provider.closed
    try:
        usable = bool(found.use())
    except (cb.ActorError, anthropic.AnthropicError, RuntimeError):
        usable = False
    others = all(map(is_usable, found.others)) if found.others else None
    end(found)
    return {"provider_is_closed": closed, "usable_after": usable, "others_are_usable": others}


@rule("the use of a closed object fails, and the call that the error names opens it again")
def _(context: Context, object: str) -> dict[str, str]:
    found = made(context, object)
    found.use()
    found.close()
    try:
        found.use()
    except cb.ActorConfigurationError as error:
        words = str(error)
    else:
        raise AssertionError("it can still be used")
    again = eval(words[words.index("cb.") :], {"cb": cb})
    if isinstance(again, cb.Actor):
        assert again.respond_sync("again", mode="live").text
    elif isinstance(again, cb.Run):
        assert again.status().total
    again.close()
    end(found)
    return {"error_says": words, "opens": type(again).__name__}


@then("each way to ask a loaded actor that was closed is refused")
def _(context: Context) -> None:
    actor, other = load(context), load(context)
    actor.close()

    async def every() -> None:
        ways: list[Callable[[], Any]] = [
            lambda: actor.respond("a"),
            lambda: actor.submit(["a"]),
            lambda: anext(aiter(actor.respond_all(["a"]))),
        ]
        for way in ways:
            await refused(way)

    async def refused(way: Callable[[], Any]) -> None:
        try:
            await way()
        except cb.ActorConfigurationError as error:
            assert "is closed; open it again with cb.load_actor(" in str(error), error
        else:
            raise AssertionError("it was asked")

    asyncio.run(every())
    ways: list[Callable[[], Any]] = [
        lambda: actor.respond_sync("a"),
        lambda: actor.submit_sync(["a"]),
        lambda: list(actor.respond_all_sync(["a"])),
        lambda: actor.run(["a"]),
        lambda: actor.respond_sync("a", mode="live"),
    ]
    for way in ways:

        async def asked(way: Callable[[], Any] = way) -> None:
            way()

        asyncio.run(refused(asked))
    assert other.respond_sync("a").text
    other.close()


@when("a loaded actor with an observer that takes its time is closed, while many events wait")
def _(context: Context) -> None:
    context.got, context.hurry = [], threading.Event()

    def observe(event: cb.Event) -> None:
        context.got.append(event)
        context.hurry.wait(0.2)

    patch = mock.patch.object(observers_module, "CLOSING_SECONDS", 0.05)
    patch.start()
    context.add_cleanup(patch.stop)
    make_provider(context)
    context.actor.respond_sync("the other provider's")
    with load(context, observers=[observe]) as observed:
        observed.respond_sync("its own")
        reporting = context.provider.engine().observers
        for _ in range(50):
            reporting.report(cb.events.RunCancelled(ledger="l", run_id="run-x"))
    context.count = len(context.got)


@then("its observer gets no event after that, while others go on")
def _(context: Context) -> None:
    assert 0 < context.count < 20, context.count
    context.actor.respond_sync("later")
    context.hurry.set()
    time.sleep(0.5)
    # One event may have been under way when the owner closed.
    assert len(context.got) <= context.count, (context.count, len(context.got))
