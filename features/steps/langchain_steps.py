"""Steps of LangChain's chat model over the batched client."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import anthropic
import parse
from behave import given, register_type, then, when
from behave.runner import Context
from integration_steps import MODEL, _held
from pydantic_ai_steps import Invoice
from staging import until
from tables import rule

import claude_batch as cb


@given("a LangChain model")
@given("a LangChain model with {settings:Json}")
def _(context: Context, settings: dict[str, Any] | None = None) -> None:
    from claude_batch.integrations import langchain

    words = {"model": MODEL, "max_tokens": 500, **(settings or {})}
    with mock.patch.object(langchain, "_log") as log:
        context.model = context.provider.create_chat_model(**words)
    context.log = [call.args[0] % call.args[1:] for call in log.warning.mock_calls]


@given("a provider without batches, with {settings:Json}")
def _(context: Context, settings: dict[str, Any]) -> None:
    """An address that the provider is given is the API's; no other one leads there then."""
    if "base_url" in settings:
        settings["base_url"] = context.api.url
        os.environ["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:9"
    context.provider = cb.ClaudeProvider(**settings)
    context.add_cleanup(context.provider.close)


@given("LangChain has a default temperature")
def _(context: Context) -> None:
    from claude_batch.integrations import langchain

    class WithDefault(langchain.BatchedChatAnthropic):
        temperature: float | None = 0.7

    patched = mock.patch.object(langchain, "BatchedChatAnthropic", WithDefault)
    patched.start()
    context.add_cleanup(patched.stop)


@parse.with_pattern(r"at once|in turn")
def _order(text: str) -> str:
    return text


register_type(Order=_order)


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
    "with_retry": lambda model: model.with_retry(
        stop_after_attempt=3, wait_exponential_jitter=False
    ).ainvoke("by with_retry"),
    "stream": lambda model: _in_one(list(model.stream("by stream"))),
}


@when("a LangChain model is asked {order:Order} by {ways}")
def _(context: Context, order: str, ways: str) -> None:
    context.ways = ways.split(", ")

    async def ask_at_once() -> list[Any]:
        calls = (LANGCHAIN_WAYS[way](context.model) for way in context.ways)
        return await asyncio.gather(*calls)

    def ask(way: str) -> Any:
        try:
            answer = LANGCHAIN_WAYS[way](context.model)
            return asyncio.run(answer) if inspect.iscoroutine(answer) else answer
        except anthropic.APIError as error:
            return error

    if order == "at once":
        context.outcomes = asyncio.run(ask_at_once())
        return
    context.outcomes = [ask(way) for way in context.ways]
    until(lambda: [call for call in context.api.log() if call["method"] == "POST"])


@then("a LangChain model has answered in each way")
def _(context: Context) -> None:
    for way, outcome in zip(context.ways, context.outcomes, strict=True):
        if way == "structured output":
            assert isinstance(outcome, Invoice), outcome
            continue
        for answer in outcome if isinstance(outcome, list) else [outcome]:
            assert f'begins: "by {way}' in answer.text, answer
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


@when("a LangChain model is asked {count:d} questions by {way}")
def _(context: Context, count: int, way: str) -> None:
    questions = [f"question {number}" for number in range(count)]
    context.answers = [
        answer.content for answer in LANGCHAIN_BATCHES[way](context.model, questions)
    ]


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
        assert "refused by a handler" in str(error), error
    else:
        raise AssertionError("nothing was raised")


_BATCHES: dict[str, Callable[[Any, list[str]], list[Any]]] = {
    **LANGCHAIN_BATCHES,
    "abatch": lambda model, prompts: asyncio.run(model.abatch(prompts)),
}


@when(
    "a LangChain model is asked by {way} for {count:d} prompts, of which 1 fails, and then for the "
    "others"
)
def _(context: Context, way: str, count: int) -> None:
    fails = "[[sandbox:errored:invalid_request_error]]"
    others = [f"prompt {number}" for number in range(count - 1)]
    try:
        _BATCHES[way](context.model, [*others, fails])
    except anthropic.APIError:
        pass
    else:
        raise AssertionError("nothing was raised")
    answers = _BATCHES[way](context.model, others)
    for prompt, answer in zip(others, answers, strict=True):
        assert prompt in answer.text, answer


@when("a LangChain model counts tokens")
def _(context: Context) -> None:
    from langchain_core.messages import HumanMessage

    assert context.model.get_num_tokens_from_messages([HumanMessage("hello")]) > 0


@rule("LangChain models of claude-opus-5-5 are made")
def _(context: Context, kind: str, settings: dict[str, Any], kind_of_error: str) -> dict[str, Any]:
    provider = cb.ClaudeProvider(api_key="sk-any") if kind == "live" else context.provider
    try:
        return {"made": provider.create_chat_model("claude-opus-5-5", **settings)}
    except cb.ActorError as error:
        assert type(error).__name__ == kind_of_error, repr(error)
        raise
