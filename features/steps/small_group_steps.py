"""Steps of the warning for callers whose calls wait for each other."""

from __future__ import annotations

import asyncio
import io
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stderr
from typing import Any
from unittest import mock

from behave.runner import Context
from integration_steps import MODEL
from staging import QUICK
from tables import rule

import claude_batch as cb
from claude_batch.cli.server_commands import saying_small_groups
from claude_batch.lifecycle import call_queue

_SETTINGS: dict[str, Any] = {**QUICK, "linger": 0.1}
_Ask = Callable[[int], Awaitable[Any]]


def _params(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "messages": messages}


def _user(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"prompt {number}"}


def _responds(provider: cb.ClaudeBatchProvider) -> _Ask:
    configuration = cb.ActorConfiguration(model=MODEL, batch_processing=True)
    actor = cb.Actor(configuration, provider)
    return lambda number: actor.respond(f"prompt {number}")


def _creates(provider: cb.ClaudeBatchProvider) -> _Ask:
    sdk = cb.client(provider=provider)
    return lambda number: sdk.messages.create(**_params([_user(number)]))


def _takes_turns(provider: cb.ClaudeBatchProvider) -> _Ask:
    sdk = cb.client(provider=provider)
    said: list[dict[str, Any]] = []

    async def ask(number: int) -> None:
        said.append(_user(number))
        answer = await sdk.messages.create(**_params(said))
        said.append({"role": "assistant", "content": answer.content[0].text})

    return ask


async def _in_groups(ask: _Ask, calls: int, at_a_time: int) -> None:
    for first in range(0, calls, at_a_time):
        await asyncio.gather(*map(ask, range(first, first + at_a_time)))


def _in_threads(provider: cb.ClaudeBatchProvider, calls: int, at_a_time: int) -> None:
    sdk = cb.client_sync(provider=provider)
    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(lambda n: sdk.messages.create(**_params([_user(n)])), range(calls)))


@rule("callers who make calls are warned")
def _(context: Context, caller: str, calls: int, at_a_time: int) -> dict[str, str]:
    ledger = context.tmp / f"{caller}-{calls}.db"
    mode = "live" if "live" in caller else "batch"
    at_once = 0.0 if "after a while" in caller else call_queue.AT_ONCE
    in_a_gateway = saying_small_groups() if "gateway" in caller else nullcontext()
    with (
        cb.ClaudeBatchProvider(ledger=ledger, mode=mode, **_SETTINGS) as provider,
        mock.patch.object(call_queue, "AT_ONCE", at_once),
        warnings.catch_warnings(record=True) as warned,
        redirect_stderr(io.StringIO()) as printed,
        in_a_gateway,
    ):
        warnings.simplefilter("always")
        if "threads" in caller:
            _in_threads(provider, calls, at_a_time)
        else:
            kinds = {"client": _creates, "client in turns": _takes_turns}
            asyncio.run(_in_groups(kinds.get(caller, _responds)(provider), calls, at_a_time))
    said = [str(each.message) for each in warned if each.filename == call_queue.__file__]
    said += [printed.getvalue()] if printed.getvalue() else []
    return {"warning": "\n".join(said)}
