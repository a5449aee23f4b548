"""Steps of events: observers that remember, raise, block or wait, and the log."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from ledgers_on_postgres import shown
from staging import listen, make_provider, until
from tables import rule

import claude_batch as cb
from claude_batch.core import events
from claude_batch.core.events import Event
from claude_batch.lifecycle import observers as observers_module
from claude_batch.lifecycle.observers import Observers, message_of_event


def keep_log(context: Context, level: int = logging.INFO) -> None:
    logger = logging.getLogger("claude_batch")
    context.add_cleanup(logger.setLevel, logger.level)
    logger.setLevel(level)
    context.kept = listen(context, logger.name).records


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


class _Exits(_Everything):
    def wants(self, kind: type[Event]) -> bool:
        raise SystemExit("no such exporter")


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
    "exits in wants": lambda _: _Exits(),
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
@when("{count:d} requests are submitted, waited for, and the provider is closed within {most:d} s")
def _(context: Context, count: int, most: int = 60) -> None:
    run = context.run = context.actor.submit_sync([f"prompt {n}" for n in range(count)])
    context.status = run.wait_sync()
    context.results = list(run.results_sync())
    begun = time.monotonic()
    context.provider.close()
    assert time.monotonic() - begun < most


@then("the observer was told")
def _(context: Context) -> None:
    expected = [context.table.headings[0], *(row[0] for row in context.table)]

    def names() -> list[str]:
        return [type(event).__name__ for event in context.told]

    # Events are told on a thread of their own, so a run that goes on may have told less by now.
    until(lambda: len(context.told) >= len(expected))
    assert names() == expected, names()


@then("the observer was told nothing of {name}")
def _(context: Context, name: str) -> None:
    assert context.told
    assert name not in {type(event).__name__ for event in context.told}, context.told


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


@given("commands use another ledger by default")
@when("commands use another ledger by default")
def _(context: Context) -> None:
    context.own_ledger = os.environ["CLAUDE_BATCH_LEDGER"]
    os.environ["CLAUDE_BATCH_LEDGER"] = "another.db"


@then("the event {name} names the ledger in its reason")
def _(context: Context, name: str) -> None:
    assert f" --ledger {context.own_ledger}`" in _one(context, name).reason, _one(context, name)


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


class _Busy:
    """An observer that is busy with its first event until all are reported."""

    def __init__(self) -> None:
        self.end, self.begun = threading.Event(), threading.Event()
        self.taken: list[int] = []
        self.observers = Observers("a ledger", log=False)
        self.observers.attach([self.take])

    def take(self, event: events.RequestsQueued) -> None:
        self.begun.set()
        self.end.wait(30)
        self.taken.append(event.requests)

    def tell(self, told: int) -> list[int]:
        for event in (self.end, self.begun):
            event.clear()
        self.taken.clear()
        for number in range(told):
            self.observers.report(
                events.RequestsQueued(
                    ledger="a ledger", run_id="run", actor="a", requests=number, kind="run"
                )
            )
            assert self.begun.wait(30)
        self.end.set()
        until(lambda: self.taken and self.taken[-1] == told - 1)
        return self.taken


@rule("an observer that is busy with its first event takes")
def _(context: Context, told: int) -> dict[str, int]:
    keep_log(context, logging.WARNING)
    busy = _Busy()
    taken = busy.tell(told)
    busy.observers.close()
    assert taken[1:] == list(range(taken[1], told)), taken
    return {"first": taken[0], "second": taken[1], "last": taken[-1]}


@rule("the log says how many events such an observer has lost")
def _(rounds: str) -> str:
    """Each round has its second and its events, and ends when the observer has caught up."""
    busy = _Busy()
    with (
        mock.patch.object(observers_module, "_log") as log,
        mock.patch.object(observers_module, "time") as clock,
    ):
        for each in rounds.split(", "):
            second, told = map(int, each.split(" "))
            clock.monotonic.return_value = 1000.0 + second
            busy.tell(told)
    busy.observers.close()
    lines = [call.args[0] % call.args[1:] for call in log.warning.call_args_list]
    return ", ".join(re.sub(r".* dropped \((.*) so far\)", r"\1", line) for line in lines)


@then("it was told how much waits")
def _(context: Context) -> None:
    measured = _one(context, "QueueMeasured")
    assert measured.queued + measured.at_api <= 5
    assert measured.oldest_batch >= 0


@then("each kind of event has words of its own, and no field that logging takes for its own")
def _(context: Context) -> None:
    reserved = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}
    kinds = [kind for kind in vars(events).values() if _is_told(kind)]
    assert len(kinds) >= 12
    for kind in kinds:
        assert not reserved & {field.name for field in dataclasses.fields(kind)}, kind
        event = kind(**{field.name: _value(field) for field in dataclasses.fields(kind)})
        words = message_of_event(event)
        assert words and words != kind.__name__, kind
    decided = [
        message_of_event(events.UnknownDecided(ledger="l", batch=1, requests=2, outcome=outcome))
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
