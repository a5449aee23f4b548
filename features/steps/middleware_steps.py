"""Steps of middleware, for the batch and the live provider alike."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from unittest import mock

import msgspec
import programs
from behave import given, then, when
from behave.runner import Context
from staging import make_provider
from toolbox import Unreadable

import claude_batch as cb
from claude_batch.lifecycle.threads import DaemonThreads, SharedEventLoop
from claude_batch.providers import middleware_runner


def _with_text(response: cb.ActorResponse, words: str) -> cb.ActorResponse:
    message = json.loads(response.raw)
    message["content"] = [{"type": "text", "text": f"{response.text} {words}"}]
    return cb.ActorResponse(msgspec.json.encode(message), batch_id=response.batch_id)


class Naming(cb.Middleware):
    def __init__(self, name: str) -> None:
        self._name = name

    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        assert actor == "tests/asker"
        return cb.ActorRequest(f"{request.prompt} {self._name}", key=request.key)

    def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse
    ) -> cb.ActorResponse:
        assert actor == "tests/asker"
        return _with_text(response, self._name)


class Guard:
    def __init__(self, word: str) -> None:
        self._word = word

    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        if self._word in (request.prompt or ""):
            raise ValueError("that must not leave the house")
        return request


class Judge:
    def __init__(self, key: str) -> None:
        self._key = key

    def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse
    ) -> cb.ActorResponse:
        if key == self._key:
            raise ValueError("that is no answer")
        return response


class Anew:
    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        return cb.ActorRequest("made anew")


class Forgetful:
    def before_request(self, actor: str, request: cb.ActorRequest) -> None: ...


class ForgetfulLater(cb.Middleware):
    def after_response(self, actor: str, key: str | None, response: Any) -> Any: ...


@given('the middleware "{first}" and "{second}", which add their names')
@given('the middleware "{first}" and "{second}", which add their names, the second {how}')
def _(context: Context, first: str, second: str, how: str = "") -> None:
    later = {"": Naming, "asynchronously": NamingLater}[how]
    context.middleware = [Naming(first), later(second)]


@given("a batch provider that has it")
def _(context: Context) -> None:
    make_provider(context, middleware=context.middleware)


@given("a live provider that has it")
@given("a live provider that has it, with a time-out of {seconds:g} seconds")
def _(context: Context, **timeout: float) -> None:
    settings = {"middleware_timeout": timeout["seconds"]} if timeout else {}
    provider = cb.ClaudeProvider(middleware=context.middleware, **settings)
    context.add_cleanup(provider.close)
    context.actor = cb.Actor(_asker_configuration(batched=False), provider)


@when('"{prompt}" is asked in this way: {how}')
def _(context: Context, prompt: str, how: str) -> None:
    actor = context.actor
    try:
        match how:
            case "awaited":
                context.answer = asyncio.run(actor.respond(prompt))
            case "synchronously":
                context.answer = actor.respond_sync(prompt)
            case "synchronously inside a running event loop":
                context.answer = asyncio.run(_inside_a_loop(actor, prompt))
            case "many at once":
                [result] = asyncio.run(_all(actor, [prompt], ordered=True))
                context.answer = result.unwrap()
            case "many at once synchronously":
                [result] = actor.respond_all_sync([prompt])
                context.answer = result.unwrap()
            case "submitted":
                [result] = actor.submit_sync([prompt]).results_sync()
                context.answer = result.unwrap()
            case _:
                raise AssertionError(how)
    except cb.ActorError as error:
        context.error = error


async def _inside_a_loop(actor: cb.Actor, prompt: str) -> cb.ActorResponse:
    return actor.respond_sync(prompt)


async def _all(actor: cb.Actor, requests: Any, *, ordered: bool) -> list[cb.ActorResult]:
    return [result async for result in actor.respond_all(requests, ordered=ordered)]


@then('the API was asked "{words}"')
def _(context: Context, words: str) -> None:
    # The sandbox's answers quote the prompt.
    answer = context.answer if "answer" in context else context.results[0].unwrap()
    assert f'begins: "{words}"' in answer.text, answer.text


@then('the answer ends with "{words}"')
def _(context: Context, words: str) -> None:
    assert context.answer.text.endswith(words), context.answer.text


@then('the results by place are "{kinds}" with the keys "{keys}"')
def _(context: Context, kinds: str, keys: str) -> None:
    results = sorted(context.results, key=lambda result: result.position)
    assert [result.position for result in results] == list(range(len(results)))
    assert [result.key for result in results] == keys.split(", "), results
    assert ["ok" if result.ok else "failed" for result in results] == kinds.split(", "), results


@then("the failures are MiddlewareErrors of {stage} that name the middleware and the key")
def _(context: Context, stage: str) -> None:
    for result in context.results:
        if result.ok:
            continue
        error = result.error
        assert isinstance(error, cb.MiddlewareError), error
        assert error.stage == stage and error.key == result.key
        assert error.middleware in str(error) and repr(result.key) in str(error)
        assert isinstance(error.__cause__, ValueError)


@then("the middleware's error is a MiddlewareError of {stage}")
def _(context: Context, stage: str) -> None:
    assert isinstance(context.error, cb.MiddlewareError), context.error
    assert context.error.stage == stage


# Blocking, asynchronous and slow middleware

_asker: ContextVar[str] = ContextVar("asker", default="nobody")


class Patient:
    """Blocks in each call until the caller's event loop has gone on."""

    def __init__(self) -> None:
        self.turns = 0
        self.saw: list[tuple[str, bool, str]] = []

    def _block(self, stage: str) -> None:
        before, end = self.turns, time.monotonic() + 10
        while self.turns < before + 20 and time.monotonic() < end:
            time.sleep(0.01)
        self.saw.append((stage, self.turns >= before + 20, _asker.get()))

    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        self._block("before")
        return request

    def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse
    ) -> cb.ActorResponse:
        self._block("after")
        return response


class NamingLater(cb.Middleware):
    def __init__(self, name: str) -> None:
        self._plain = Naming(name)

    async def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        await asyncio.sleep(0)
        return self._plain.before_request(actor, request)

    async def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse
    ) -> cb.ActorResponse:
        await asyncio.sleep(0)
        return self._plain.after_response(actor, key, response)


class Faulty:
    def __init__(self, what: str) -> None:
        self._what = what

    async def before_request(self, actor: str, request: cb.ActorRequest) -> Any:
        if self._what == "raises in before_request":
            raise ValueError("not that one")
        return None if self._what == "returns nothing" else request

    async def after_response(self, actor: str, key: str | None, response: Any) -> Any:
        raise TimeoutError("somebody else's")


class Leaving:
    """Ends, or tries to end, the whole program."""

    def __init__(self, stage: str, error: type[BaseException]) -> None:
        self._stage = stage
        self._error = error

    def before_request(self, actor: str, request: cb.ActorRequest) -> Any:
        if self._stage == "before_request":
            raise self._error("leaving")
        return request

    def after_response(self, actor: str, key: str | None, response: Any) -> Any:
        raise self._error("leaving")


class LeavingLater(Leaving):
    async def before_request(self, actor: str, request: cb.ActorRequest) -> Any:
        return super().before_request(actor, request)

    async def after_response(self, actor: str, key: str | None, response: Any) -> Any:
        super().after_response(actor, key, response)


class Hanging:
    def __init__(self) -> None:
        self.may_return = threading.Event()
        self.called = threading.Event()

    def after_response(self, actor: str, key: str | None, response: Any) -> Any:
        self.called.set()
        self.may_return.wait(60)
        return response


class HangingLater(Hanging):
    async def after_response(self, actor: str, key: str | None, response: Any) -> Any:
        self.called.set()
        if not self.may_return.is_set():
            await asyncio.Event().wait()
        return response


class Once:
    def __init__(self) -> None:
        self._failed = False

    def after_response(self, actor: str, key: str | None, response: Any) -> Any:
        failed, self._failed = self._failed, True
        if not failed:
            raise ValueError("not yet")
        return response


class Counting:
    def __init__(self, word: str) -> None:
        self._word = word
        self._lock = threading.Lock()
        self._at_once = 0
        self.most = 0
        self.may_return = threading.Event()
        self.returned = 0

    def after_response(self, actor: str, key: str | None, response: Any) -> Any:
        if self._word in response.text:
            self.may_return.wait(60)
            self.returned += 1
            return response
        with self._lock:
            self._at_once += 1
            self.most = max(self.most, self._at_once)
        time.sleep(0.01)
        with self._lock:
            self._at_once -= 1
        return response


class Asking:
    def __init__(self, other: cb.Actor) -> None:
        self._other = other

    def after_response(self, actor: str, key: str | None, response: Any) -> Any:
        assert self._other.respond_sync("Is it so?").text.endswith("other")
        return _with_text(response, "asked other")


def _asker_configuration(*, batched: bool) -> cb.ActorConfiguration:
    settings: dict[str, Any] = {"batch_processing": True} if batched else {}
    return cb.ActorConfiguration(
        name="tests/asker", provider="anthropic", model="claude-haiku-4-5", **settings
    )


@given("a {kind} middleware which never returns from after_response")
def _(context: Context, kind: str) -> None:
    hanging = HangingLater() if kind == "asynchronous" else Hanging()
    context.add_cleanup(hanging.may_return.set)
    context.middleware = [hanging]


def _counting(context: Context) -> Counting:
    counting = Counting("Hang")
    context.add_cleanup(counting.may_return.set)
    return counting


def _asking(context: Context) -> Asking:
    provider = cb.ClaudeProvider(middleware=[Naming("other")])
    context.add_cleanup(provider.close)
    return Asking(cb.Actor(_asker_configuration(batched=False), provider))


MIDDLEWARE: dict[str, Callable[[Context], cb.Middleware]] = {
    'fails at what says "secret"': lambda _: Guard("secret"),
    'fails at the response with the key "b"': lambda _: Judge("b"),
    "fails once at a response": lambda _: Once(),
    "raises asynchronously in before_request": lambda _: Faulty("raises in before_request"),
    "raises a time-out asynchronously in after_response": lambda _: Faulty("raises a time-out"),
    "returns nothing asynchronously from before_request": lambda _: Faulty("returns nothing"),
    "makes each request anew": lambda _: Anew(),
    "raises what cannot be shown in before_request": lambda _: Leaving(
        "before_request", Unreadable
    ),
    "exits in before_request": lambda _: Leaving("before_request", SystemExit),
    "exits in after_response": lambda _: Leaving("after_response", SystemExit),
    "is interrupted in before_request": lambda _: Leaving("before_request", KeyboardInterrupt),
    "exits asynchronously in before_request": lambda _: LeavingLater("before_request", SystemExit),
    "exits asynchronously in after_response": lambda _: LeavingLater("after_response", SystemExit),
    "is interrupted asynchronously in after_response": lambda _: LeavingLater(
        "after_response", KeyboardInterrupt
    ),
    "awaits what was cancelled in before_request": lambda _: LeavingLater(
        "before_request", asyncio.CancelledError
    ),
    "awaits what was cancelled in after_response": lambda _: LeavingLater(
        "after_response", asyncio.CancelledError
    ),
    "returns nothing from before_request": lambda _: Forgetful(),
    "returns nothing from after_response": lambda _: ForgetfulLater(),
    "blocks until the caller's loop has gone on": lambda _: Patient(),
    'counts its threads, and never returns for "Hang"': _counting,
    "asks another actor that has middleware too": _asking,
}


@given("middleware that {what}")
def _(context: Context, what: str) -> None:
    plain = [cb.Middleware()] if what.startswith("fails at what") else []
    context.middleware = [*plain, MIDDLEWARE[what](context)]


@given("{count:d} threads for middleware")
def _(context: Context, count: int) -> None:
    # Those that earlier scenarios have left to wait are not this one's.
    context.add_cleanup(setattr, middleware_runner, "POOL", middleware_runner.POOL)
    middleware_runner.POOL = DaemonThreads(
        count, "claude-batch-middleware", stuck=middleware_runner.stuck_jobs
    )


@given("a batch provider that has it, with a time-out of {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    make_provider(context, middleware=context.middleware, middleware_timeout=seconds)


@then("{count:d} requests that are asked {how} hold up no loop, and middleware has its context")
def _(context: Context, count: int, how: str) -> None:
    [patient] = context.middleware
    prompts = [f"prompt {number}" for number in range(count)]

    async def tick() -> None:
        while True:
            patient.turns += 1
            await asyncio.sleep(0.001)

    async def ask() -> None:
        ticking = asyncio.create_task(tick())
        _asker.set("the caller")
        if how == "one by one":
            await asyncio.gather(*(context.actor.respond(prompt) for prompt in prompts))
        else:
            assert all(result.ok for result in await _all(context.actor, prompts, ordered=True))
        ticking.cancel()

    asyncio.run(ask())
    stages = Counter(stage for stage, _, _ in patient.saw)
    assert stages == {"before": count, "after": count}, patient.saw
    assert all(went_on for _, went_on, _ in patient.saw), patient.saw
    assert {asker for _, _, asker in patient.saw} == {"the caller"}, patient.saw


@then("it says that the answer was paid for and is {what}")
def _(context: Context, what: str) -> None:
    words = str(context.error)
    assert "did not return from after_response within 0.3 s (middleware_timeout)" in words, words
    kept = "the answer was billed and is kept in the ledger" in words
    assert kept == words.endswith("at no cost") == (what == "kept"), words
    assert ("the answer was billed and is lost" in words) == (what == "lost"), words


@when('the middleware returns again, and "{prompt}" is asked once more, {how}')
def _(context: Context, prompt: str, how: str) -> None:
    context.middleware[0].may_return.set()
    context.execute_steps(f'When "{prompt}" is asked in this way: {how}')
    assert context.answer.text


@then("{count:d} of them are answered, on at most {most:d} threads, and the others do not return")
def _(context: Context, count: int, most: int) -> None:
    answered = [each for each in context.outcomes if isinstance(each, cb.ActorResponse)]
    failed = [each for each in context.outcomes if isinstance(each, cb.MiddlewareError)]
    assert len(answered) == count, context.outcomes
    assert len(failed) == len(context.outcomes) - count, context.outcomes
    [counting] = context.middleware
    assert not counting.returned, "the others were answered only when those that hang had returned"
    assert 0 < counting.most <= most, counting.most


_FORKS = """
import os, sys
import claude_batch as cb

class Plain(cb.Middleware):
    def before_request(self, actor, request):
        return cb.ActorRequest(request.prompt + " plain", key=request.key)

class Later(cb.Middleware):
    async def before_request(self, actor, request):
        return cb.ActorRequest(request.prompt + " later", key=request.key)

configuration = cb.ActorConfiguration(
    name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
)
settings = {"linger": 0.1, "poll_interval": 0.05}
middleware = [Plain(), Later()] if sys.argv[1] == "with" else []
actor = cb.Actor(configuration, cb.ClaudeBatchProvider(middleware=middleware, **settings))
print(actor.respond_sync("parent").text, flush=True)
if sys.argv[1] != "with":
    import threading
    print(sorted(thread.name for thread in threading.enumerate()))
elif child := os.fork():
    _, code = os.waitpid(child, 0)
    assert code == 0, code
else:
    print(actor.respond_sync("child").text, flush=True)
    os._exit(0)
"""


@then("a process that asks through middleware and forks is answered, and its child too")
def _(_: Context) -> None:
    done = programs.run(_FORKS, "with")
    assert done.returncode == 0, done.stderr
    for who in ("parent", "child"):
        assert f'begins: "{who} plain later"' in done.stdout, done.stdout


@then("a process that asks without middleware has no thread for it")
def _(_: Context) -> None:
    done = programs.run(_FORKS, "without")
    assert done.returncode == 0, done.stderr
    assert "claude-batch-engine" in done.stdout and "middleware" not in done.stdout, done.stdout


# An event loop that an exit or a fault reaches


@given("an event loop that the process shares, with work that never ends")
def _(context: Context) -> None:
    context.shared = SharedEventLoop("shared-loop")
    context.endless = context.shared.run(asyncio.Event().wait())
    context.first = context.shared._thread


@when("other work on it exits")
def _(context: Context) -> None:
    async def leave() -> None:
        sys.exit(3)

    context.left = context.shared.run(leave()).exception(20)


@then("the caller of that work gets its exit, and the event loop goes on")
def _(context: Context) -> None:
    assert isinstance(context.left, SystemExit), context.left
    assert context.shared.run(asyncio.sleep(0, "done")).result(20) == "done"
    assert context.shared._thread is context.first and not context.endless.done()


@when("the event loop itself fails")
def _(context: Context) -> None:
    loop = context.first._loop
    with mock.patch.object(loop, "_run_once", side_effect=OSError("no selector")):
        loop.call_soon_threadsafe(lambda: None)
        context.loop_failure = context.endless.exception(20)


@then("the work that never ends fails, and later work runs on another event loop")
def _(context: Context) -> None:
    assert isinstance(context.loop_failure, cb.EngineStoppedError), context.failed
    assert "OSError: no selector" in str(context.loop_failure), context.failed
    assert context.shared.run(asyncio.sleep(0, "done")).result(20) == "done"
    assert context.shared._thread is not context.first
