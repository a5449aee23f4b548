"""Steps of LangChain's chat model over the batched client."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import anthropic
from behave import given, then, when
from behave.runner import Context
from integration_steps import MODEL, _held
from pydantic_ai_steps import Invoice
from sqlalchemy import select
from staging import ledger_values, until
from tables import rule

import claude_batch as cb
from claude_batch.core.states import RequestState
from claude_batch.ledger.schema import requests


@given("a LangChain model")
@given("a LangChain model with {settings:Json}")
def _(context: Context, settings: dict[str, Any] | None = None) -> None:
    context.model = context.provider.create_chat_model(MODEL, max_tokens=500, **(settings or {}))


@given("LangChain has a default temperature")
def _(context: Context) -> None:
    from claude_batch.integrations import langchain

    class WithDefault(langchain.BatchedChatAnthropic):
        temperature: float | None = 0.7

    patched = mock.patch.object(langchain, "BatchedChatAnthropic", WithDefault)
    patched.start()
    context.add_cleanup(patched.stop)


@when("a LangChain model with with_retry is asked {times:d} times for an overloaded answer")
def _(context: Context, times: int) -> None:
    model = context.model.with_retry(stop_after_attempt=times, wait_exponential_jitter=False)
    try:
        context.outcomes = [asyncio.run(model.ainvoke("[[sandbox:errored:overloaded_error]]"))]
    except anthropic.APIError as error:
        context.outcomes = [error]


def _in_one(pieces: list[Any]) -> Any:
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    return whole


async def _streamed(model: Any) -> Any:
    return _in_one([piece async for piece in model.astream("by astream")])


LANGCHAIN_WAYS: dict[str, Callable[[Any], Any]] = {
    "ainvoke": lambda model: model.ainvoke("by ainvoke"),
    "abatch": lambda model: model.abatch(["by abatch, 1", "by abatch, 2"]),
    "astream": _streamed,
    "structured output": lambda model: model.with_structured_output(
        Invoice, method="json_schema"
    ).ainvoke("structured"),
    "invoke": lambda model: model.invoke("by invoke"),
    "stream": lambda model: _in_one(list(model.stream("by stream"))),
}


@when("a LangChain model is asked at once by {ways}")
def _(context: Context, ways: str) -> None:
    context.ways = ways.split(", ")

    async def ask() -> list[Any]:
        calls = [LANGCHAIN_WAYS[way](context.model) for way in context.ways]
        return await asyncio.gather(*calls)

    context.outcomes = asyncio.run(ask())


@when("a LangChain model is asked by {ways}")
def _(context: Context, ways: str) -> None:
    context.ways, context.outcomes = ways.split(", "), []
    for way in context.ways:
        try:
            answer = LANGCHAIN_WAYS[way](context.model)
            context.outcomes.append(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)
        except anthropic.APIError as error:
            context.outcomes.append(error)
    until(lambda: [call for call in context.api.log() if call["route"] == "create"])


@then("a LangChain model has answered in each way")
def _(context: Context) -> None:
    for way, outcome in zip(context.ways, context.outcomes, strict=True):
        if way == "structured output":
            assert isinstance(outcome, Invoice), outcome
            continue
        for answer in outcome if isinstance(outcome, list) else [outcome]:
            assert f'begins: "by {way}' in answer.content, answer
            assert answer.usage_metadata["output_tokens"] > 0, answer
            assert answer.response_metadata["stop_reason"] == "end_turn", answer
        assert not isinstance(outcome, list) or len(outcome) == 2, outcome


def _as_completed(model: Any, prompts: list[str]) -> list[Any]:
    answers = dict(model.batch_as_completed(prompts))
    return [answers[index] for index in range(len(prompts))]


def _chained(model: Any, prompts: list[str]) -> list[Any]:
    from langchain_core.prompts import ChatPromptTemplate

    chain = ChatPromptTemplate.from_template("{prompt}") | model.bind(stop=["never"])
    return chain.batch([{"prompt": prompt} for prompt in prompts])


LANGCHAIN_BATCHES: dict[str, Callable[[Any, list[str]], list[Any]]] = {
    "batch": lambda model, prompts: model.batch(prompts),
    "batch_as_completed": _as_completed,
    "batch of a chain": _chained,
}


@when("a LangChain model is asked {count:d} prompts by {way}")
def _(context: Context, count: int, way: str) -> None:
    prompts = [f"prompt {number}" for number in range(count)]
    context.outcomes = LANGCHAIN_BATCHES[way](context.model, prompts)


@then("a LangChain model has answered {count:d} prompts in order")
def _(context: Context, count: int) -> None:
    assert len(context.outcomes) == count, len(context.outcomes)
    for number, answer in enumerate(context.outcomes):
        assert f'begins: "prompt {number}"' in answer.content, (number, answer)


def _noticing(act: Callable[[dict[str, Any]], None]) -> Any:
    """A handler of LangChain's that does something when a model is asked."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Handler(BaseCallbackHandler):
        raise_error = True

        def on_chat_model_start(self, *_: Any, **words: Any) -> None:
            act(words)

    return Handler()


@rule("a LangChain model answers batches")
def _(context: Context, inputs: str, config: Any, exceptions: bool) -> dict[str, Any]:
    from langchain_core.runnables import chain

    tags: list[str] = []
    handler = _noticing(lambda words: tags.extend(words["tags"]))
    before = context.api.billing_summary()["batches"]
    prompts = inputs.split(", ") if inputs else []
    shown: list[str] = []
    raised = ""

    @chain
    def ask(prompts: list[str]) -> list[Any]:
        # The handler is that of the caller: it is inherited by the calls of the batch.
        return context.model.batch(prompts, config, return_exceptions=exceptions)

    try:
        outputs = ask.invoke(prompts, {"callbacks": [handler]})
    except Exception as error:
        raised = type(error).__name__
    else:
        for prompt, output in zip(prompts, outputs, strict=True):
            answered = not isinstance(output, Exception) and f'"{prompt}"' in output.content
            shown.append(prompt if answered else type(output).__name__)
    return {
        "outputs": ", ".join(shown),
        "raised": raised,
        "traced": " ".join(sorted(tags)),
        "batches": context.api.billing_summary()["batches"] - before,
    }


@when("a LangChain model is asked for a batch of {count:d}, of which one fails at once")
def _(context: Context, count: int) -> None:
    def fail(_: dict[str, Any]) -> None:
        until(lambda: _held() == count - 1)
        raise ValueError("refused by a handler")

    configs: list[Any] = [{} for _ in range(count)]
    configs[0]["callbacks"] = [_noticing(fail)]
    try:
        context.model.batch([f"prompt {number}" for number in range(count)], configs)
    except ValueError as error:
        context.error = error


@then("the other requests of the LangChain model's batch are withdrawn")
def _(context: Context) -> None:
    assert "refused by a handler" in str(context.error), context.error
    states = select(requests.c.state)
    until(lambda: set(ledger_values(states)) == {RequestState.CANCELED})
    assert context.api.billing_summary()["batches"] == 0


@when("a LangChain model counts tokens")
def _(context: Context) -> None:
    from langchain_core.messages import HumanMessage

    assert context.model.get_num_tokens_from_messages([HumanMessage("hello")]) > 0


@when("a LangChain model with {one:Json} and one with {other:Json} are asked at once")
def _(context: Context, one: dict[str, Any], other: dict[str, Any]) -> None:
    async def ask() -> None:
        models = [context.provider.create_chat_model(MODEL, **words) for words in (one, other)]
        answers = await asyncio.gather(*(model.ainvoke("hello") for model in models))
        assert all(answer.content for answer in answers), answers

    asyncio.run(ask())


@rule("LangChain models of claude-opus-5-5 are made")
def _(context: Context, kind: str, settings: dict[str, Any], kind_of_error: str) -> dict[str, Any]:
    provider = cb.ClaudeProvider(api_key="sk-any") if kind == "live" else context.provider
    try:
        return {"made": provider.create_chat_model("claude-opus-5-5", **settings)}
    except cb.ActorError as error:
        assert type(error).__name__ == kind_of_error, repr(error)
        raise


@when("a LangChain model of {model} is made and asked")
def _(context: Context, model: str) -> None:
    from claude_batch.integrations import langchain

    with mock.patch.object(langchain, "_log") as log:
        made = context.provider.create_chat_model(model, max_tokens=500)
    context.warned = [call.args[0] % call.args[1:] for call in log.warning.mock_calls]
    context.outcomes = [asyncio.run(made.ainvoke("hello"))]


@then("a LangChain model has answered, and warned of the dropped default")
def _(context: Context) -> None:
    assert context.outcomes[0].text.startswith("Sandbox answer"), context.outcomes
    [warning] = context.warned
    assert "temperature" in warning and "0.7" in warning and "dropped" in warning, warning


@when("a LangChain model of the live provider with {settings:Json} is asked")
def _(context: Context, settings: dict[str, Any]) -> None:
    given: dict[str, Any] = {}
    if settings:
        given = {"base_url": context.api.url, "api_key": "sk-any"}
        os.environ["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:9"
    with cb.ClaudeProvider(**given) as provider:
        model = provider.create_chat_model(MODEL, max_tokens=500, **settings)
    context.outcomes = [model.invoke("hello")]


@then("a LangChain model was answered live under {version}")
def _(context: Context, version: str) -> None:
    assert context.outcomes[0].content.startswith("Sandbox answer"), context.outcomes
    summary = context.api.billing_summary()
    assert (summary["live"], summary["batches"]) == (1, 0), summary
    [call] = context.api.log()
    assert call["headers"]["anthropic-version"] == version, call
