"""Steps of the prompt cache: what is marked, and what the API and the ledger make of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
from behave import given, then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select
from staging import ledger_values
from tables import rule

import claude_batch as cb
from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.request import ActorRequest, RequestEncoder
from claude_batch.ledger.schema import params as params_table
from claude_batch.wire import caching
from claude_batch.wire.caching import CacheMarks
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders

use_step_matcher("parse")

LONG = "long text. " * 2182
MIDDLE = LONG[:8000]
WORDS = {"LONG": LONG, "MIDDLE": MIDDLE, "HUGE": "aaaa" * 50_000}
POINT = {"type": "ephemeral", "ttl": "1h"}


def params_of(written: str, number: int) -> dict[str, Any]:
    for word, text in WORDS.items():
        written = written.replace(word, text)
    given: dict[str, Any] = json.loads(written.replace('"N"', f'"ask {number}"'))
    default = {
        "model": "claude-opus-4-5",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": f"ask {number}"}],
    }
    return {**default, **given}


def as_bytes(params: dict[str, Any], headers: LaneHeaders | None = None) -> EncodedRequest:
    return EncodedRequest(msgspec.json.encode(params), headers or LaneHeaders())


def look(context: Context, requests: list[EncodedRequest], marks: CacheMarks | None = None) -> None:
    marks = marks or CacheMarks()
    context.marks = marks
    context.before = requests
    seen = [marks.mark(request) for request in requests]
    context.after = [request for request, _ in seen]
    context.numbers = [number for _, number in seen]


def at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else value[step]
    return value


def unmarked(params: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """The params without the marks at these places, in the form that they had before."""
    params = copy.deepcopy(params)
    for path in paths:
        assert at(params, path).pop("cache_control") == POINT, (path, params)
    return params


@when("{count:d} requests with these params are looked at")
def _(context: Context, count: int) -> None:
    look(context, [as_bytes(params_of(context.text, number)) for number in range(count)])


@then("the first {count:d} are as they were")
def _(context: Context, count: int) -> None:
    assert context.after[:count] == context.before[:count]
    assert context.numbers[:count] == [None] * count


@then("the others differ in the marks at {paths} alone, and share a number")
def _(context: Context, paths: str) -> None:
    pairs = list(zip(context.before, context.after, context.numbers, strict=True))[6:]
    assert len(pairs) == 2
    for before, after, number in pairs:
        given, marked = json.loads(before.params), json.loads(after.params)
        if isinstance(given.get("system"), str) and "system" in paths:
            given["system"] = [{"type": "text", "text": given["system"]}]
        assert unmarked(marked, paths.split(", ")) == given, marked
        assert list(marked) == list(given)
        assert number is not None and number == context.numbers[-1]
        assert 0 <= number < 2**63


@when("requests with the documents are looked at")
def _(context: Context) -> None:
    requests: list[EncodedRequest] = []
    for row in context.table:
        documents = [
            {"type": "document", "source": {"type": "text", "data": name + LONG}}
            for name in row["documents"].split()
        ]
        for number in range(int(row["times"])):
            content = [*documents, {"type": "text", "text": f"ask {number}"}]
            requests.append(
                as_bytes(
                    {"model": "claude-opus-4-5", "messages": [{"role": "user", "content": content}]}
                )
            )
    context.lists = len(list(context.table))
    look(context, requests)


@then("the last of them has its marks at {paths}")
def _(context: Context, paths: str) -> None:
    marked = json.loads(context.after[-1].params)
    assert unmarked(marked, paths.split(", ")) == json.loads(context.before[-1].params)


@then("the numbers are as many as the lists of documents")
def _(context: Context) -> None:
    assert len(set(context.numbers) - {None}) == context.lists, set(context.numbers)


@when("{count:d} requests of each kind that share a long system prompt alone are looked at")
def _(context: Context, count: int) -> None:
    plain: dict[str, Any] = {"model": "claude-opus-4-5", "max_tokens": 10, "system": LONG}
    others: list[tuple[dict[str, Any], LaneHeaders]] = [
        ({}, LaneHeaders()),
        ({"model": "claude-opus-4-6"}, LaneHeaders()),
        ({"tools": [{"name": "a"}]}, LaneHeaders()),
        ({"output_config": {"format": {"type": "json_schema"}}}, LaneHeaders()),
        ({}, LaneHeaders(betas=("b",))),
    ]
    messages = [{"role": "user", "content": "x"}]
    look(
        context,
        [
            as_bytes({**plain, **other, "messages": messages}, headers)
            for other, headers in others
            for _ in range(count)
        ],
    )


@then("none of them is marked")
def _(context: Context) -> None:
    assert context.after == context.before


@when("{count:d} prompts of an actor are looked at, as prompts and as params")
def _(context: Context, count: int) -> None:
    context.pairs = []
    tools = [{"name": "a", "input_schema": {"type": "object"}, "description": LONG}]
    for options in ({}, {"tools": tools}, {"max_tokens": 7}):
        configuration = ActorConfiguration(
            name="tests/marks", model="claude-opus-4-5", system_prompt=LONG, options=options
        )
        encoder = RequestEncoder(configuration, {"metadata": {"user_id": "u"}})
        quick, slow = CacheMarks(), CacheMarks()
        for number in range(count):
            prompt = f'"ask" {number} é\n'
            encoded = encoder.encode(ActorRequest(prompt))
            context.pairs.append((quick.mark(encoded, prompt), slow.mark(encoded)))


@then("both have become the same")
def _(context: Context) -> None:
    for one, other in context.pairs:
        assert one == other, (one, other)
    assert sum(number is not None for (_, number), _ in context.pairs) == 3 * 2


@when("{count:d} requests are looked at, of which every second has a prefix of its own")
def _(context: Context, count: int) -> None:
    look(
        context,
        [
            as_bytes(params_of(json.dumps({"system": LONG + str(number) * (number % 2)}), number))
            for number in range(count)
        ],
    )


@then("the shared prefix is marked all the same")
def _(context: Context) -> None:
    marked = [number is not None for number in context.numbers]
    assert not any(marked[1::2]) and all(marked[100::2]), marked


@then("no more than {count:d} prefixes are remembered")
def _(context: Context, count: int) -> None:
    assert len(context.marks._uses) <= count


@given("the largest body has {size:d} bytes")
def _(context: Context, size: int) -> None:
    before, caching._LARGEST = caching._LARGEST, size
    context.add_cleanup(setattr, caching, "_LARGEST", before)


# Runs


def long_actor() -> cb.ActorConfiguration:
    return cb.ActorConfiguration(
        name="tests/long",
        provider="anthropic",
        model="claude-haiku-4-5",
        system_prompt=LONG,
        batch_processing=True,
    )


@when("an actor with a long system prompt is asked {count:d} prompts in a run")
def _(context: Context, count: int) -> None:
    actor = cb.Actor(long_actor(), context.provider)
    prompts = [f"ask {number}" for number in range(count)]
    run = actor.submit_sync(prompts)
    run.wait_sync()
    context.runs = [*getattr(context, "runs", []), run]
    context.prompts = prompts
    context.results = list(run.results_sync())


@then("the first {count:d} requests are sent as they are without a cache, the others with a mark")
def _(context: Context, count: int) -> None:
    encoder = RequestEncoder(long_actor())
    query = select(params_table.c.body).order_by(params_table.c.request_seq)
    for number, body in enumerate(ledger_values(query)):
        plain = encoder.encode(context.prompts[number]).params
        if number < count:
            assert body == plain
            continue
        given = json.loads(plain)
        given["system"] = [{"type": "text", "text": given["system"], "cache_control": POINT}]
        assert json.loads(body) == given


@then("{writes:d} answers wrote to the cache for an hour, and {reads:d} read from it")
def _(context: Context, writes: int, reads: int) -> None:
    used = [result.unwrap().usage for result in context.results]
    assert sum(each.cache_creation_1h_input_tokens > 0 for each in used) == writes, used
    assert sum(each.cache_read_input_tokens > 0 for each in used) == reads, used
    assert not any(each.cache_creation_5m_input_tokens for each in used)


@then("the run's cost is what its answers come to, and its cache has saved something")
def _(context: Context) -> None:
    total = context.runs[-1].cost().total
    costs = [result.unwrap().cost for result in context.results]
    assert total.cost == sum(costs) and total.saved_by_cache > 0, total
    assert total.tokens.cache_read == sum(
        result.unwrap().usage.cache_read_input_tokens for result in context.results
    )


@then("both runs are one")
def _(context: Context) -> None:
    first, second = context.runs
    assert first.id == second.id


@given("a command's actor with a long system prompt")
def _(context: Context) -> None:
    written = {"name": "a/long", "model": "claude-haiku-4-5", "system_prompt": LONG,
               "provider": "anthropic", "batch_processing": True}  # fmt: skip
    Path("long.yaml").write_text(json.dumps(written))


@rule("`cache` in YAML means")
def _(yaml: str) -> dict[str, object]:
    text = f"name: a/b\nmodel: claude-haiku-4-5\nbatch_processing:\n  cache: {yaml}\n"
    return {"means": cb.ActorLoader.loads(text).batch_processing.cache}
