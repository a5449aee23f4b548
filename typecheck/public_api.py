"""Pins the types of the public API; only type checkers read it, nothing runs it.

Each line is a promise to the reader of the pages: a type that changes here changes for users.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, assert_type, cast

import polars as pl
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message
from langchain_anthropic import ChatAnthropic
from pydantic import BaseModel

import claude_batch as cb


def actors() -> None:
    configuration = cb.ActorLoader.load("reviewer.yaml")
    assert_type(configuration, cb.ActorConfiguration)
    assert_type(cb.ActorLoader.loads("model: m"), cb.ActorConfiguration)
    assert_type(cb.ActorLoader.load_all(Path("all.yaml")), list[cb.ActorConfiguration])
    assert_type(configuration.name, str)
    assert_type(configuration.batch_processing, bool | cb.BatchProcessingMode)
    actor = cb.load_actor("reviewer.yaml", name="local/reviewer", ledger="l.db", linger="1s")
    assert_type(actor, cb.Actor)
    assert_type(actor.configuration, cb.ActorConfiguration)
    assert_type(cb.make_actor("m", "Be brief.", max_tokens=9, linger="1s"), cb.Actor)
    assert_type(actor.provider, cb.Provider)


async def answers(actor: cb.Actor, requests: list[str | cb.ActorRequest]) -> None:
    assert_type(await actor.respond("…"), cb.ActorResponse)
    assert_type(await actor.respond(cb.ActorRequest("…"), key="k"), cb.ActorResponse)
    assert_type(actor.respond_sync("…", key="k"), cb.ActorResponse)
    assert_type(await actor.respond("…", keep=True), cb.ActorResponse)
    assert_type(await actor.respond({"prompt": "…"}), cb.ActorResponse)
    assert_type(actor.respond_all_sync([{"id": "a", "prompt": "…"}]), Iterator[cb.ActorResult])
    assert_type(actor.respond_all(["a", "b"]), AsyncIterator[cb.ActorResult])
    assert_type(actor.respond_all(requests, ordered=False), AsyncIterator[cb.ActorResult])
    assert_type(actor.respond_all(requests, new=True), AsyncIterator[cb.ActorResult])
    assert_type(actor.respond_all_sync(["a", "b"]), Iterator[cb.ActorResult])
    assert_type(actor.respond_all_sync(["a", "b"], new=True), Iterator[cb.ActorResult])
    assert_type(actor.respond_all(["a"], progress=print), AsyncIterator[cb.ActorResult])
    assert_type(actor.respond_all_sync(["a"], progress=True), Iterator[cb.ActorResult])
    assert_type(actor.respond_all_sync(["a"], results_dir="kept"), Iterator[cb.ActorResult])
    assert_type(await actor.estimate(requests, offline=True), cb.Estimate)
    assert_type(actor.estimate_sync(["a"]).cost_usd, Decimal)
    async for result in actor.respond_all(requests):
        assert_type(result, cb.ActorResult)


def responses(response: cb.ActorResponse, result: cb.ActorResult) -> None:
    assert_type(response.text, str)
    assert_type(response.content, list[dict[str, Any]])
    assert_type(response.stop_reason, str | None)
    assert_type(response.model, str)
    assert_type(response.usage, cb.Usage)
    assert_type(response.usage.input_tokens, int)
    assert_type(response.usage.output_tokens, int)
    assert_type(response.usage.cache_creation_input_tokens, int)
    assert_type(response.usage.cache_read_input_tokens, int)
    assert_type(response.batch_id, str | None)
    assert_type(response.attempt, int)
    assert_type(response.citations, list[cb.Citation])
    assert_type(response.field_citations, dict[str, list[cb.Citation]])
    assert_type(response.citations[0].place, str)
    assert_type(response.citations[0].document, int | None)
    assert_type(response.cost, int | None)
    assert_type(response.cost_usd, Decimal | None)
    assert_type(response.raw, bytes)
    assert_type(response.usage.cache_hit_rate, float)
    assert_type(response.usage.effective_input_tokens, int)
    assert_type(response.to_dict(parsed=True), dict[str, Any])
    assert_type(result.to_dict(), dict[str, Any])
    assert_type(response.reused, bool)
    assert_type(response.answered, datetime | None)
    assert_type(response.message, Message)
    assert_type(result.key, str | None)
    assert_type(result.position, int)
    assert_type(result.ok, bool)
    assert_type(result.text, str | None)
    assert_type(result.reused, bool)
    assert_type(result.answered, datetime | None)
    assert_type(result.response, cb.ActorResponse | None)
    assert_type(result.error, cb.ActorError | None)
    assert_type(result.unwrap(), cb.ActorResponse)


class Invoice(BaseModel):
    total: float


def documents() -> None:
    request = cb.ActorRequest("…", documents=["a.pdf", Path("b.png"), b"text"], citations=True)
    assert_type(cb.ActorRequest("…", documents=[cb.Document("a", title="A")]), cb.ActorRequest)
    assert_type(request.citations, bool)


async def shapes(actor: cb.Actor, run: cb.Run) -> None:
    answer = await actor.respond("…", output_format=Invoice)
    assert_type(answer, cb.ActorResponse[Invoice])
    assert_type(answer.parsed_output, Invoice)
    assert_type(actor.respond_sync("…", output_format=Invoice), cb.ActorResponse[Invoice])
    assert_type(
        (await actor.respond("…", output_format=list[Invoice])).parsed_output, list[Invoice]
    )
    assert_type(await actor.respond("…", output_format=Invoice | None), cb.ActorResponse[Any])
    assert_type(actor.respond_sync("…", output_format=Invoice | list[int]), cb.ActorResponse[Any])
    assert_type(actor.respond_sync("…", output_format=Literal["a", "b"]), cb.ActorResponse[Any])
    named = cast("type[Invoice | None]", Invoice | None)  # which mypy needs
    assert_type(actor.respond_sync("…", output_format=named), cb.ActorResponse[Invoice | None])
    either = actor.respond_all_sync(["…"], output_format=None | Invoice)
    assert_type(either, Iterator[cb.ActorResult[Any]])
    assert_type(actor.submit_sync(["…"], output_format=Invoice | None), cb.Run)
    assert_type(run.results(output_format=Invoice | None), AsyncIterator[cb.ActorResult[Any]])
    assert_type(cb.ActorRequest("…", output_format=Invoice | list[int]), cb.ActorRequest)
    async for result in actor.respond_all(["…"], output_format=Invoice):
        assert_type(result, cb.ActorResult[Invoice])
        assert_type(result.response, cb.ActorResponse[Invoice] | None)
        assert_type(result.unwrap().parsed_output, Invoice)
    for result in actor.respond_all_sync(["…"], output_format=Invoice):
        assert_type(result, cb.ActorResult[Invoice])
    assert_type(await actor.submit(["…"], output_format=Invoice), cb.Run)
    assert_type(actor.submit_sync(["…"], output_format=Invoice), cb.Run)
    assert_type(run.results(output_format=Invoice), AsyncIterator[cb.ActorResult[Invoice]])
    assert_type(run.results_sync(output_format=Invoice), Iterator[cb.ActorResult[Invoice]])
    assert_type((await actor.respond("…")).parsed_output, Any)
    plain: cb.ActorResponse = answer
    assert_type(plain.parsed_output, Any)


async def runs(actor: cb.Actor) -> None:
    assert_type(await actor.submit(["a", "b"], label="nightly", new=True), cb.Run)
    assert_type(actor.submit_sync(["a", "b"]), cb.Run)
    run = cb.open_run("run", ledger="l.db")
    assert_type(run, cb.Run)
    assert_type(run.rows(), Iterator[dict[str, Any]])
    assert_type(cb.to_frame(run), pl.DataFrame)
    assert_type(cb.to_frame("run-7k2", ledger="ledger.db"), pl.DataFrame)
    assert_type(run.id, str)
    assert_type(run.status(), cb.RunStatus)
    assert_type(await run.retry_failed(["expired", "type=overloaded_error"]), int)
    assert_type(run.retry_failed_sync(), int)
    assert_type(await run.refetch(), int)
    assert_type(run.refetch_sync(), int)
    assert_type(run.cost(by="model"), cb.CostReport)
    assert_type(cb.ClaudeBatchProvider().prune(older_than="30d"), cb.Pruned)
    assert_type(run.cost().total, cb.CostShare)
    assert_type(run.cost().total.cost, int)
    assert_type(await run.wait(), cb.RunStatus)
    assert_type(run.wait_sync(), cb.RunStatus)
    assert_type(await run.wait(progress=lambda progress: print(progress.completed)), cb.RunStatus)
    assert_type(await run.export("answers.csv", "csv-safe"), int)
    assert_type(run.export_sync(Path("answers.jsonl")), int)
    assert_type(run.progress().total, int | None)
    assert_type(run.progress().expected_cost, int | None)
    assert_type(run.cost().total.cache_hit_rate, float)
    assert_type(run.results(ordered=False), AsyncIterator[cb.ActorResult])
    assert_type(run.results_sync(), Iterator[cb.ActorResult])
    block = actor.run(["a"], label="nightly", new=True, output_format=Invoice, ordered=False)
    async with block as asked:
        assert_type(asked, cb.Run)
        async for result in asked:
            assert_type(result, cb.ActorResult)
    with actor.run(["a"]) as asked_plainly:
        assert_type(asked_plainly, cb.Run)
        assert_type(next(iter(asked_plainly)), cb.ActorResult)
    async with cb.open_run("run") as again:
        assert_type(again, cb.Run)
    with cb.load_actor("reviewer.yaml") as loaded:
        assert_type(loaded, cb.Actor)
    # Checkers refuse a value of something that gives none.
    cancelled: None = await run.cancel()
    assert_type(cancelled, None)


def statuses(status: cb.RunStatus) -> None:
    assert_type(status.state, cb.RunState)
    assert_type(status.total, int)
    assert_type(status.counts, dict[cb.RequestState, int])
    assert_type(status.batches, tuple[cb.BatchStatus, ...])
    assert_type(status.batches[0].state, cb.BatchState)
    assert_type(status.to_dict(), dict[str, Any])


class Echo:
    """A provider with the names that actors need, and no others."""

    capabilities = cb.ProviderCapabilities()

    async def respond(
        self,
        actor: cb.ActorConfiguration,
        request: cb.RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
    ) -> cb.ActorResponse:
        return cb.ActorResponse(b"{}")

    async def respond_all(
        self, actor: cb.ActorConfiguration, requests: cb.Requests, *, ordered: bool = True
    ) -> AsyncIterator[cb.ActorResult]:
        yield cb.ActorResult(key=None, position=0, response=cb.ActorResponse(b"{}"))

    async def aclose(self) -> None: ...

    def close(self) -> None: ...


def providers(registry: cb.ProviderRegistry, configuration: cb.ActorConfiguration) -> None:
    batched = cb.ClaudeBatchProvider(ledger="l.db", poll_interval=0.05, max_wait="24h")
    fits: list[cb.FullProvider] = [batched, cb.ClaudeProvider()]
    for provider in fits:
        assert_type(provider.name, str)
        assert_type(provider.capabilities, cb.ProviderCapabilities)
    registry.register("mine", cb.ClaudeBatchProvider)
    assert_type(registry.get("mine"), cb.Provider)
    assert_type(registry.names(), tuple[str, ...])
    assert_type(cb.default_registry, cb.ProviderRegistry)
    assert_type(registry.for_actor(configuration), cb.Provider)
    assert_type(cb.Actor(configuration, batched), cb.Actor)
    registry.register("echo", Echo)
    assert_type(cb.Actor(configuration, Echo()), cb.Actor)


def doors() -> None:
    assert_type(cb.client(), AsyncAnthropic)
    assert_type(cb.client_sync(), Anthropic)
    AsyncAnthropic(http_client=cb.http_client())
    Anthropic(http_client=cb.http_client_sync(linger=1))
    assert_type(cb.ClaudeBatchProvider().create_chat_model("m"), ChatAnthropic)


def errors(
    invalid: cb.ActorConfigurationError,
    refused: cb.BatchRequestError,
    late: cb.BatchTimeoutError,
    missing: cb.MissingResultError,
    misshapen: cb.OutputValidationError,
) -> None:
    every: list[type[cb.ActorError]] = [
        cb.AccountHaltedError,
        cb.ActorConfigurationError,
        cb.BatchRequestError,
        cb.BatchTimeoutError,
        cb.MissingResultError,
        cb.OutputValidationError,
        cb.ProviderNotFoundError,
        cb.SubmissionUnknownError,
    ]
    caught: list[type[Exception]] = [*every]
    assert_type(caught, list[type[Exception]])
    assert_type(invalid.line, int | None)
    assert_type(late.run_id, str)
    assert_type(late.batch_ids, tuple[str, ...])
    assert_type(missing.batch_id, str | None)
    assert_type(refused.error_type, str | None)
    assert_type(misshapen.text, str)


class Watching:
    def on_event(self, event: cb.Event) -> None: ...


def observing(event: cb.Event) -> None:
    watching: cb.Observer = Watching()
    provider = cb.ClaudeBatchProvider(observers=[watching, print, observing])
    assert_type(provider, cb.ClaudeBatchProvider)
    assert_type(event.to_dict(), dict[str, Any])
    if isinstance(event, cb.events.ResultsCollected):
        assert_type(event.cost, int)


class Signing(cb.Middleware):
    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        return request


class SigningLater(cb.Middleware):
    async def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        return request


def process(result: cb.ActorResult) -> None:
    assert_type(result.key, str | None)


async def process_later(result: cb.ActorResult) -> None: ...


def classify(fault: cb.RequestFault) -> cb.Classification | None:
    assert_type(fault.status, int | None)
    return "retry" if "busy" in fault.message else None


async def plugged() -> None:
    cb.ClaudeBatchProvider(post_process=process, post_process_timeout="5s", classify=classify)
    cb.ClaudeProvider(post_process=process_later, requests_per_minute=50, pace=lambda n, asked: 5.0)


def changing(failed: cb.MiddlewareError) -> None:
    providers = [
        cb.ClaudeBatchProvider(middleware=[Signing()], middleware_timeout="2m"),
        cb.ClaudeProvider(middleware=[SigningLater()], middleware_timeout=30),
    ]
    assert_type(providers[0].name, str)
    assert_type(failed.middleware, str)
    assert_type(failed.key, str | None)
