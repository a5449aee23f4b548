"""Steps of mistakes that a caller makes in Python."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from behave import then
from behave.runner import Context
from langchain_core.callbacks import AsyncCallbackHandler
from staging import QUICK
from tables import rule

import claude_batch as cb


def _names(context: Context) -> dict[str, Any]:
    live = cb.ClaudeProvider()
    context.add_cleanup(live.close)
    configuration = cb.ActorConfiguration(model="claude-haiku-4-5")
    middle = cb.ClaudeBatchProvider(middleware=[cb.Middleware()])
    context.add_cleanup(middle.close)
    return {
        "asyncio": asyncio,
        "cb": cb,
        "actor": context.actor,
        "provider": context.provider,
        "changed": cb.Actor(configuration, middle),
        "live": cb.Actor(configuration, live),
        "run": getattr(context, "run", None),
    }


@then("these expressions have the values")
def _(context: Context) -> None:
    names = _names(context)
    for row in context.table:
        found = eval(row["expression"], names)
        assert str(found) == row["value"], (row["expression"], found)


@then("these mistakes are refused")
def _(context: Context) -> None:
    names = _names(context)
    for row in context.table:
        try:
            found = eval(row["expression"], names)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            assert words.startswith(row["error"]), (row["expression"], words)
        else:
            raise AssertionError(f"{row['expression']} is {found!r}")


class _Asking(cb.Middleware):
    """Middleware that asks another actor before each request of the outer one."""

    def __init__(self, ask: Callable[[], Awaitable[Any]]) -> None:
        self._ask = ask

    async def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        if actor == "tests/outer":
            await self._ask()
        return request


class _Grading(AsyncCallbackHandler):
    """A callback that asks once, after the first answer. Its exceptions reach the caller."""

    raise_error = True

    def __init__(self, ask: Callable[[], Awaitable[Any]]) -> None:
        self._asks = [ask]

    async def on_llm_end(self, *_: Any, **__: Any) -> None:
        if self._asks:
            await self._asks.pop()()


@cb.tool
async def little(city: str) -> str:
    """Say little."""
    return "little"


@rule("another actor is asked on an event loop of claude-batch")
def _(context: Context, by: str, awaits: bool) -> dict[str, str]:
    """The outcome of the call during which the other one is asked."""
    is_live, has_tools = " live " in by, "with asynchronous tools" in by

    async def ask() -> str:
        if model is not None:
            [answer] = await model.abatch(["inner"]) if awaits else model.batch(["inner"])
        else:
            prompt = "inner [[sandbox:tools]]" if has_tools else "inner"
            if "own run" in by:
                run = await inner.submit([prompt], new=True)
                if awaits:
                    await run.wait()
                elif "iterates" not in by:
                    run.wait_sync()
                [result] = run
                return result.unwrap().text
            answer = await inner.respond(prompt) if awaits else inner.respond_sync(prompt)
        return answer.text

    @cb.tool(timeout=20)
    async def look(city: str) -> str:
        """Ask another actor."""
        return await ask()

    async def source() -> AsyncIterator[str]:
        yield await ask()

    def actor(name: str, tools: list[Any]) -> cb.Actor:
        configuration = cb.ActorConfiguration(
            name=name, model="claude-haiku-4-5", batch_processing=not is_live
        )
        return cb.Actor(configuration, provider, tools=tools)

    middleware = [_Asking(ask)] if "middleware" in by else []
    provider: Any = (
        cb.ClaudeProvider(middleware=middleware)
        if is_live
        else cb.ClaudeBatchProvider(**QUICK, middleware=middleware)
    )
    context.add_cleanup(provider.close)
    inner = actor("tests/inner", [little] if has_tools else [])
    outer = actor("tests/outer", [look] if "tool" in by else [])
    model = provider.create_chat_model("claude-haiku-4-5") if "callback" in by else None

    def call() -> str:
        if model is not None:
            return model.batch(["outer"], {"callbacks": [_Grading(ask)]})[0].text
        if "source" in by:
            [result] = outer.respond_all_sync(source())
            return result.unwrap().text
        return outer.respond_sync("outer [[sandbox:tools]]" if "tool" in by else "outer").text

    return {"outcome": _outcome(call)}


def _outcome(call: Callable[[], str]) -> str:
    """What a call returns, or its error; a call that hangs is left behind."""
    future: Future[str] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_result(f"{type(error).__name__}: {error}")

    threading.Thread(target=run, daemon=True).start()
    try:
        return future.result(20)
    except TimeoutError:
        return "it hangs"
