"""Steps of answers that are had twice and paid for once."""

from __future__ import annotations

import json
import signal
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import programs
from behave import then, use_step_matcher, when
from behave.runner import Context
from cli_steps import command
from sqlalchemy import select
from staging import QUICK, ledger_values, opened_ledger

import claude_batch as cb
from claude_batch.ledger import held_requests
from claude_batch.ledger.held_requests import index_answers
from claude_batch.ledger.schema import digests, requests
from claude_batch.ledger.store import Ledger

use_step_matcher("parse")

ASK = """
import json, os, signal, sys
import claude_batch as cb
from claude_batch.core import crash_points

def die(point):
    if point == sys.argv[1]:
        # At once: whatever ends it more gently gives the driver's thread time to send.
        os.kill(os.getpid(), signal.SIGKILL)

crash_points.on_reach = die
settings, prompts = json.loads(sys.argv[2]), sys.argv[3].split()
with cb.ClaudeBatchProvider(linger=0.1, poll_interval=0.05, **settings) as provider:
    actor = cb.ActorConfiguration(
        name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True,
        system_prompt="shared text " * 2000,
    )
    asked = [f"prompt {prompt}" for prompt in prompts]
    for result in provider.respond_all_sync(actor, asked):
        answer = result.unwrap()
        print(json.dumps([answer.text, answer.cost, answer.reused]))
"""


def ask(context: Context, prompts: list[str], *, new: bool = False, **options: Any) -> None:
    actor = context.actor
    if options:
        configuration = cb.ActorConfiguration(
            name="tests/asker",
            provider="anthropic",
            model="claude-haiku-4-5",
            batch_processing=True,
            options=options,
        )
        actor = cb.Actor(configuration, context.provider)
    run = actor.submit_sync([f"prompt {prompt}" for prompt in prompts], new=new)
    run.wait_sync()
    context.run = run
    context.runs = [*getattr(context, "runs", []), run]
    context.asked = prompts
    context.known = getattr(context, "known", {})
    context.results = list(run.results_sync())
    context.told = [
        (each.response.text, each.response.cost, each.response.reused) if each.response else None
        for each in context.results
    ]
    for prompt, result in zip(prompts, context.results, strict=True):
        if result.response is not None and not result.response.reused:
            context.known.setdefault(prompt, result.response)


@when("prompts {first:d} to {last:d} are asked in a run")
@when("prompts {first:d} to {last:d} are asked in a run with {options}")
def _(context: Context, first: int, last: int, options: str = "{}") -> None:
    """Options of the actor; or `new`, of the run."""
    ask(context, [str(number) for number in range(first, last + 1)], **json.loads(options))


@when("the prompts {prompts} are asked in a run")
def _(context: Context, prompts: str) -> None:
    ask(context, prompts.split())


@when("the prompt {prompt} is asked by itself")
@when('the prompt {prompt} is asked by itself with the key "{key}"')
def _(context: Context, prompt: str, key: str | None = None) -> None:
    context.answer = context.actor.respond_sync(f"prompt {prompt}", key=key)


@when("what failed in the run is retried")
def _(context: Context) -> None:
    run = context.run
    run.retry_failed_sync()
    run.wait_sync()
    context.results = list(run.results_sync())
    context.told = [
        (each.unwrap().text, each.unwrap().cost, each.unwrap().reused) for each in context.results
    ]


@when("the run {numbers} is pruned")
@when("the runs {numbers} are pruned")
def _(context: Context, numbers: str) -> None:
    places = [int(number) - 1 for number in numbers.split(", ")]
    context.provider.prune(runs=[context.runs[place].id for place in places])


@when("the first request about the document A is asked by itself")
def _(context: Context) -> None:
    document = cb.Document(f"A says: {'long text. ' * 2200}".encode())
    context.answer = context.actor.respond_sync(cb.ActorRequest("ask A 0", documents=[document]))


@when("a process with {settings:JsonObject} asks for {prompts}, and dies at {point}")
@when("another process with {settings:JsonObject} asks for {prompts}")
def _(context: Context, settings: Any, prompts: str, point: str = "") -> None:
    done = programs.run(ASK, point, json.dumps(settings), prompts)
    assert done.returncode == (-signal.SIGKILL if point else 0), (done.returncode, done.stderr)
    context.asked = prompts.split()
    context.told = [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@then("the answers to {prompts} are reused, cost nothing, and are those of before")
def _(context: Context, prompts: str) -> None:
    for prompt in prompts.split():
        response = context.results[context.asked.index(prompt)].unwrap()
        first = context.known[prompt]
        assert response.reused and response.cost == 0 and response.cost_usd == 0, response
        assert (response.raw, response.batch_id) == (first.raw, first.batch_id)
        assert response.to_dict()["reused"] is True and response != first


@then("the answers to {prompts} are not reused")
def _(context: Context, prompts: str) -> None:
    for prompt in prompts.split():
        response = context.results[context.asked.index(prompt)].unwrap()
        assert not response.reused and response.cost, response


@then("the answer is reused")
def _(context: Context) -> None:
    assert context.answer.reused and context.answer.cost == 0, context.answer


@then("the costs of the runs together are what the API's bill comes to")
def _(context: Context) -> None:
    # Of this model a batch costs half a dollar for a million tokens in, and 2.5 for one out.
    usages = [entry["usage"] for entry in context.api.billing()]
    bill = sum(500 * each["input_tokens"] + 2500 * each["output_tokens"] for each in usages)
    totals = [run.cost().total for run in context.runs]
    assert bill > 0 and sum(total.cost for total in totals) == bill, (bill, totals)
    answers = [each for result in context.results if (each := result.response) is not None]
    assert totals[-1].cost == sum(each.cost for each in answers)
    assert totals[-1].reused_answers == sum(each.reused for each in answers)
    assert totals[-1].results["succeeded"] == sum(not each.reused for each in answers)


@then("the results came in order")
def _(context: Context) -> None:
    assert [result.position for result in context.results] == list(range(len(context.asked)))
    assert all(result.ok for result in context.results)


@then("equal prompts have equal answers, of which the first alone has cost something")
def _(context: Context) -> None:
    first: dict[str, str] = {}
    for prompt, (text, cost, reused) in zip(context.asked, context.told, strict=True):
        if prompt in first:
            assert (text, cost, reused) == (first[prompt], 0, True), (prompt, text, cost, reused)
        else:
            first[prompt] = text
            # Whether it was there already when it was asked for is another question.
            assert cost, (prompt, cost, reused)


@then('the lines of "{name}" that are marked as reused are {count:d}')
def _(context: Context, name: str, count: int) -> None:
    lines = [json.loads(line) for line in Path(name).read_text().splitlines()]
    reused = [line for line in lines if line.get("reused")]
    assert len(reused) == count and all(line["cost_usd"] == 0 for line in reused), lines
    assert all("reused" not in line for line in lines if line not in reused)


@then("the ledger's answers are indexed for {count:d} requests in no more than {most:d} MB")
def _(context: Context, count: int, most: int) -> None:
    with opened_ledger() as ledger:
        tracemalloc.start()
        try:
            index_answers(ledger)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(ledger_values(select(digests.c.request_seq))) == count
    assert peak < most * 1_000_000, peak


@then("the ledger's answers are not indexed if other requests take their place meanwhile")
def _(context: Context) -> None:
    rows = ledger_values(select(requests.c.seq))

    def replace_first(body: bytes) -> bytes:
        digest.stop()
        with cb.ClaudeBatchProvider(**QUICK, drive=False) as provider:
            assert provider.prune(older_than=0).runs
            asker = cb.make_actor("claude-haiku-4-5").configuration
            cb.Actor(asker, provider).submit_sync(list("abc"))
        return held_requests.digest_of(body)

    digest = mock.patch.object(held_requests, "digest_of", replace_first)
    digest.start()
    with opened_ledger() as ledger:
        index_answers(ledger)
    assert ledger_values(select(requests.c.seq)) == rows
    assert not ledger_values(select(digests.c.request_seq))


@when("all that was delivered is removed while a command looks up its answers: {words}")
def _(context: Context, words: str) -> None:
    take = held_requests.take_all_answers

    def remove_first(ledger: Ledger, pairs: Iterable[held_requests.Pair]) -> int:
        found = list(pairs)
        assert found
        with cb.ClaudeBatchProvider(**QUICK, drive=False) as provider:
            assert provider.prune(older_than=0).runs
        return take(ledger, found)

    with mock.patch.object(held_requests, "take_all_answers", remove_first):
        command(context, words)
