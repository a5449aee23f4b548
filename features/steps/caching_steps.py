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
from staging import Markup, ledger_values
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
Seen = list[tuple[EncodedRequest, int | None]]


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


def look(requests: list[EncodedRequest]) -> Seen:
    """What marks make of requests in turn, each with the number of its prefix."""
    marks = CacheMarks()
    return [marks.mark(request) for request in requests]


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


def marked_at(value: Any, path: str = "") -> list[str]:
    """The places of all marks in params, without those that nobody of us makes."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return []
    own = [path] if value.get("cache_control") == POINT else []
    below = (marked_at(each, f"{path}.{key}" if path else str(key)) for key, each in value.items())
    return own + [place for places in below for place in places]


@rule("the seventh and the eighth request with these params are marked")
def _(params: str, what: str = "") -> dict[str, str]:
    before = [as_bytes(params_of(params, number)) for number in range(8)]
    seen = look(before)
    assert seen[:6] == [(request, None) for request in before[:6]], seen[:6]
    if seen[6:] == [(request, None) for request in before[6:]]:
        return {"at": "no place"}
    paths = marked_at(json.loads(seen[7][0].params))
    for request, (after, number) in zip(before[6:], seen[6:], strict=True):
        given, marked = json.loads(request.params), json.loads(after.params)
        if isinstance(given.get("system"), str) and "system.0" in paths:
            given["system"] = [{"type": "text", "text": given["system"]}]
        assert unmarked(marked, paths) == given, marked
        assert list(marked) == list(given)
        assert number is not None and number == seen[7][1] and 0 <= number < 2**63, number
    return {"at": ", ".join(paths)}


@rule("requests with documents are marked")
def _(eight_times_each_of: str) -> dict[str, Any]:
    requests: list[EncodedRequest] = []
    for names in eight_times_each_of.split(", "):
        documents = [
            {"type": "document", "source": {"type": "text", "data": name + LONG}}
            for name in names.split()
        ]
        for number in range(8):
            content = [*documents, {"type": "text", "text": f"ask {number}"}]
            messages = [{"role": "user", "content": content}]
            requests.append(as_bytes({"model": "claude-opus-4-5", "messages": messages}))
    seen = look(requests)
    marked = json.loads(seen[-1][0].params)
    places = marked_at(marked)
    assert unmarked(marked, places) == json.loads(requests[-1].params)
    prefixes = {number for _, number in seen} - {None}
    return {"the_last_one's_marks": ", ".join(places), "prefixes": len(prefixes)}


@rule("ten requests with one long system prompt are marked")
def _(half_of_them_have: dict[str, Any]) -> dict[str, int]:
    plain = {"model": "claude-opus-4-5", "max_tokens": 10, "system": LONG}
    messages = [{"role": "user", "content": "x"}]
    betas = tuple(half_of_them_have.pop("betas", ()))
    halves = [
        as_bytes({**plain, "messages": messages}),
        as_bytes({**plain, **half_of_them_have, "messages": messages}, LaneHeaders(betas=betas)),
    ]
    seen = look([request for request in halves for _ in range(5)])
    return {"marked": sum(number is not None for _, number in seen)}


@rule("eight prompts of an actor are marked as their params are")
def _(system_prompt: str, options: str) -> dict[str, int]:
    configuration = ActorConfiguration(
        name="tests/marks",
        model="claude-opus-4-5",
        system_prompt=system_prompt.replace("LONG", LONG),
        options=json.loads(options.replace("LONG", LONG)),
    )
    encoder = RequestEncoder(configuration, {"metadata": {"user_id": "u"}})
    quick, slow = CacheMarks(), CacheMarks()
    count = 0
    for number in range(8):
        prompt = f'"ask" {number} é\n'
        encoded = encoder.encode(ActorRequest(prompt))
        found = quick.mark(encoded, prompt)
        assert found == slow.mark(encoded), found
        count += found[1] is not None
    return {"marked": count}


@rule("eight prompts that do not end their params are marked")
def _(system: str) -> dict[str, int]:
    given = {"model": "claude-opus-4-5", "messages": [{"role": "user", "content": "ask"}]}
    requests = [as_bytes({**given, "system": system.replace("LONG", LONG)})] * 8
    marks = CacheMarks()
    seen = [marks.mark(request, "ask") for request in requests]
    assert seen == look(requests), seen
    return {"marked": sum(number is not None for _, number in seen)}


@rule("requests, of which every second has a prefix of its own, are marked")
def _(requests: int) -> dict[str, Any]:
    marks = CacheMarks()
    systems = (LONG + str(number) * (number % 2) for number in range(requests))
    seen = [marks.mark(as_bytes(params_of(json.dumps({"system": each}), 0))) for each in systems]
    marked = [number is not None for _, number in seen]
    return {
        "the_shared_ones_marked": sum(marked[::2]),
        "the_others_marked": sum(marked[1::2]),
        "within_the_limit": len(marks._uses) <= caching._KEPT,
    }


# Runs


def long_actor() -> cb.ActorConfiguration:
    return cb.ActorConfiguration(
        name="tests/long",
        provider="anthropic",
        model="claude-haiku-4-5",
        system_prompt=LONG,
        options={"metadata": {"user_id": Markup("u")}},
        batch_processing=True,
    )


@when("an actor with a long system prompt is asked {count:d} prompts in a run")
def _(context: Context, count: int) -> None:
    actor = cb.Actor(long_actor(), context.provider)
    prompts = [(str, Markup)[number % 2](f"ask {number}") for number in range(count)]
    run = actor.submit_sync(prompts)
    run.wait_sync()
    context.first, context.run = getattr(context, "run", None), run
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


@given("a command's actor with a long system prompt")
def _(context: Context) -> None:
    written = {"name": "a/long", "model": "claude-haiku-4-5", "system_prompt": LONG,
               "provider": "anthropic", "batch_processing": True}  # fmt: skip
    Path("long.yaml").write_text(json.dumps(written))


@rule("`cache` in YAML means")
def _(yaml: str) -> dict[str, object]:
    text = f"name: a/b\nmodel: claude-haiku-4-5\nbatch_processing:\n  cache: {yaml}\n"
    return {"means": cb.ActorLoader.loads(text).batch_processing.cache}
