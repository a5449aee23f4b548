"""Steps of events: observers that remember, raise, block or wait, and the log."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from behave import given, then, when
from behave.runner import Context
from ledgers_on_postgres import shown
from staging import make_provider, until

import claude_batch as cb
from claude_batch.core import events
from claude_batch.core.events import Event
from claude_batch.lifecycle.observers import LOGGER, Observers, words_of


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def keep_log(context: Context, level: int = logging.INFO) -> None:
    handler, logger = _Kept(), logging.getLogger("claude_batch")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    context.add_cleanup(logger.removeHandler, handler)
    context.add_cleanup(logger.setLevel, before)
    context.kept = handler.records


def _observe(context: Context, observer: object) -> None:
    context.observers = [*getattr(context, "observers", []), observer]
    if "kept" not in context:
        keep_log(context, logging.WARNING)


class _Everything:
    def __init__(self) -> None:
        self.told: list[Event] = []

    def wants(self, kind: type[Event]) -> bool:
        return True

    def on_event(self, event: Event) -> None:
        self.told.append(event)


def _remembers(context: Context) -> object:
    context.told = []
    return context.told.append


def _raises(_: Context) -> object:
    def fail(event: Event) -> None:
        raise ValueError("I cannot take it")

    return fail


def _never_returns(context: Context) -> object:
    end = threading.Event()
    context.add_cleanup(end.set)
    return lambda event: end.wait()


def _wants_everything(context: Context) -> object:
    observer = _Everything()
    context.told = observer.told
    return observer


OBSERVERS: dict[str, Callable[[Context], object]] = {
    "remembers": _remembers,
    "raises": _raises,
    "never returns": _never_returns,
    "wants everything": _wants_everything,
}


@given("an observer that {what}")
def _(context: Context, what: str) -> None:
    _observe(context, OBSERVERS[what](context))


@given("a batch provider that is observed")
def _(context: Context) -> None:
    make_provider(context, observers=context.observers)


@given("a batch provider that is observed with {settings}")
def _(context: Context, settings: str) -> None:
    make_provider(context, observers=context.observers, **json.loads(settings))


@given("a second provider with the same observer, which is closed again")
def _(context: Context) -> None:
    context.provider.resume()
    second = cb.ClaudeBatchProvider(observers=context.observers)
    second.resume()
    second.close()


@given("a program that logs")
def _(context: Context) -> None:
    keep_log(context)


@when("{count:d} requests are submitted, waited for, and the provider is closed")
def _(context: Context, count: int) -> None:
    _submit(context, [f"prompt {n}" for n in range(count)])


def _submit(context: Context, prompts: list[str]) -> None:
    run = context.run = context.actor.submit_sync(prompts)
    context.status = run.wait_sync()
    context.results = list(run.results_sync())
    begun = time.monotonic()
    context.provider.close()
    context.closing = time.monotonic() - begun


@when("its budget is raised to ${sum}, which holds it again")
def _(context: Context, sum: str) -> None:
    context.run.set_budget_sync(sum)
    _held(context, 2)


def _held(context: Context, times: int) -> None:
    until(lambda: [type(event) for event in context.told].count(events.RunHeld) == times)


@when("its budget is raised to ${sum}, the run is waited for, and the provider is closed")
def _(context: Context, sum: str) -> None:
    context.run.set_budget_sync(sum)
    context.run.wait_sync()
    context.provider.close()


@then("the observer was told")
def _(context: Context) -> None:
    expected = [context.table.headings[0], *(row[0] for row in context.table)]
    names = [type(event).__name__ for event in context.told]
    assert names == expected, names


@then("the observer was told nothing of {name}")
def _(context: Context, name: str) -> None:
    assert context.told
    assert name not in {type(event).__name__ for event in context.told}, context.told


@then("the observer was told, in as many steps as they came")
def _(context: Context) -> None:
    # Calls that are made at once are mostly stored at once; a busy machine takes them one by one.
    expected = [context.table.headings[0], *(row[0] for row in context.table)]
    names = [type(event).__name__ for event in context.told]
    assert sorted(set(names), key=names.index) == expected, names


@then("the events {name} have {count:d} requests in all")
def _(context: Context, name: str, count: int) -> None:
    told = [event for event in context.told if type(event).__name__ == name]
    assert sum(event.requests for event in told) == count, told


@then("the results collected were {count:d}, with their tokens and their cost")
def _(context: Context, count: int) -> None:
    collected = _one(context, "ResultsCollected")
    assert collected.outcomes == {"succeeded": count}, collected
    assert collected.final == collected.requests == count
    assert collected.input_tokens > 0 and collected.output_tokens > 0
    assert collected.cost == sum(result.response.cost for result in context.results) > 0
    assert collected.models == {"claude-haiku-4-5-20251001": count}, collected.models
    assert collected.run_ids == (context.run.id,)


@then("each event names the ledger and what it is about")
def _(context: Context) -> None:
    for event in context.told:
        assert event.ledger == shown(os.environ["CLAUDE_BATCH_LEDGER"]), event
        assert abs(event.at - time.time()) < 600
        about = event.to_dict()
        assert about.get("run_id", context.run.id) == context.run.id, event
        assert "run_id" in about or about["batch_id"].startswith("msgbatch_"), event


def _one(context: Context, name: str) -> Any:
    # Events are told on a thread of their own.
    return until(lambda: [event for event in context.told if type(event).__name__ == name])[0]


@then("the event {name} has {field} {value}")
def _(context: Context, name: str, field: str, value: str) -> None:
    assert getattr(_one(context, name), field) == json.loads(value), _one(context, name)


@then("the event {name} names the run")
def _(context: Context, name: str) -> None:
    assert _one(context, name).run_id == context.run.id


@then("the run is finished with {count:d} answers")
def _(context: Context, count: int) -> None:
    assert context.status.finished
    assert [result.ok for result in context.results] == [True] * count


def _lines(context: Context, words: str) -> list[str]:
    return [record.getMessage() for record in context.kept if words in record.getMessage()]


@then('the log has {count:d} line that says "{words}"')
def _(context: Context, count: int, words: str) -> None:
    assert len(_lines(context, words)) == count, [each.getMessage() for each in context.kept]


@then("closing took less than {seconds:d} seconds")
def _(context: Context, seconds: int) -> None:
    assert context.closing < seconds, context.closing


@given("{count:d} events told to an observer that waits for our word")
def _(context: Context, count: int) -> None:
    keep_log(context, logging.WARNING)
    context.word, busy = threading.Event(), threading.Event()
    context.took: list[int] = []

    def take(event: events.RequestsQueued) -> None:
        busy.set()
        context.word.wait(30)
        context.took.append(event.requests)

    context.all = Observers("a ledger", log=False)
    context.all.attach([take])
    for number in range(count):
        context.all.report(
            events.RequestsQueued(
                ledger="a ledger", run_id="run", actor="a", requests=number, kind="run"
            )
        )
        assert busy.wait(30)


@when("it gets the word")
def _(context: Context) -> None:
    context.word.set()
    until(lambda: context.took and context.took[-1] == 1499)
    context.all.close()


@then("it has taken the first and the newest {count:d}")
def _(context: Context, count: int) -> None:
    assert context.took == [0, *range(1500 - count, 1500)], (context.took[:3], len(context.took))


@then("it was told of {count:d} answers one by one, with what was asked and what answered")
def _(context: Context, count: int) -> None:
    [answered] = [event for event in context.told if isinstance(event, events.RequestsAnswered)]
    answers = answered.answers
    assert [answer.position for answer in answers] == list(range(count))
    for answer, result in zip(answers, context.results, strict=True):
        assert answer.run_id == context.run.id
        assert answer.outcome == "succeeded" and answer.attempt == 1
        assert answer.request_model == "claude-haiku-4-5"
        assert answer.model == "claude-haiku-4-5-20251001"
        assert answer.cost == result.response.cost
        assert answer.output_tokens == result.response.usage.output_tokens
        assert answer.asked <= answered.submitted and answered.ended is not None


@then("it was told of the live calls, of the {count:d} answers and of the one that failed")
def _(context: Context, count: int) -> None:
    sums = [event for event in context.told if isinstance(event, events.CallsAnswered)]
    assert sum(event.requests for event in sums) == count + 1
    assert sum(event.outcomes.get("succeeded", 0) for event in sums) == count
    assert [event.errors for event in sums if event.errors] == [{"api_error": 1}]
    assert sum(event.models.get("claude-haiku-4-5-20251001", 0) for event in sums) == count
    cost = sum(result.response.cost for result in context.results)
    assert sum(event.cost for event in sums) == cost > 0
    assert all(event.run_ids == (context.run.id,) and not event.unpriced for event in sums)
    told = [event for event in context.told if isinstance(event, events.RequestsAnswered)]
    assert {event.batch_id for event in told} == {None}
    answers = [answer for event in told for answer in event.answers]
    good = sorted(answer.position for answer in answers if answer.outcome == "succeeded")
    assert good == list(range(count)), answers
    assert sum(answer.output_tokens for answer in answers) == sum(
        result.response.usage.output_tokens for result in context.results
    )
    [bad] = [answer for answer in answers if answer.outcome != "succeeded"]
    assert bad.error_type == "api_error" and bad.cost is None, bad


@then("it was told how much waits")
def _(context: Context) -> None:
    measured = _one(context, "QueueMeasured")
    assert measured.queued + measured.at_api <= 5
    assert measured.oldest_batch >= 0


@then("the log has lines of the events, each with its fields")
def _(context: Context) -> None:
    expected = [context.table.headings[0], *(row[0] for row in context.table)]
    told = [record for record in context.kept if record.name == LOGGER]
    assert [record.__dict__["event"] for record in told] == expected
    for record in told:
        assert "\n" not in record.getMessage()
        assert record.__dict__["ledger"] == shown(os.environ["CLAUDE_BATCH_LEDGER"])
    assert told[0].__dict__["run_id"] == context.run.id
    assert told[1].__dict__["requests"] == 5
    assert told[1].getMessage().endswith(": 5 requests submitted")


@then("each kind of event has words of its own, and no field that logging takes for its own")
def _(context: Context) -> None:
    reserved = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}
    kinds = [kind for kind in vars(events).values() if _is_told(kind)]
    assert len(kinds) >= 12
    for kind in kinds:
        assert not reserved & {field.name for field in dataclasses.fields(kind)}, kind
        event = kind(**{field.name: _value(field) for field in dataclasses.fields(kind)})
        words = words_of(event)
        assert words and words != kind.__name__, kind
    decided = [
        words_of(events.UnknownDecided(ledger="l", batch=1, requests=2, outcome=outcome))
        for outcome in ("found", "assumed", "not_accepted", "unresolved", "resubmitted")
    ]
    assert len(set(decided)) == 5


def _is_told(kind: object) -> bool:
    if not isinstance(kind, type) or not issubclass(kind, Event) or kind is Event:
        return False
    return not kind.__name__.startswith("_") and not kind.on_request


def _value(field: dataclasses.Field[Any]) -> Any:
    kind = str(field.type)
    if "Mapping" in kind:
        return {"succeeded": 1}
    if "tuple" in kind:
        return ()
    if "int" in kind or "float" in kind:
        return 1
    return "found" if "Outcome" in kind else "words"
