"""Steps for the pace of live calls: no server and no clock, but a simulated one."""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import os
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

from behave import given, then, use_step_matcher, when
from behave.runner import Context
from tables import rule

from claude_batch.wire.connection import Connection
from claude_batch.wire.live_client import LiveClient, pace_of
from claude_batch.wire.pace import Pace, Turn

NOW = 1_900_000_000.0

use_step_matcher("parse")


@given("a pace, and callers that have at most {most:d} calls under way")
def _(context: Context, most: int) -> None:
    context.pace, context.pace_most = Pace(), most
    context.pace_turns = deque()


def _ask(context: Context, count: int, second: float, size: int = 0) -> None:
    context.pace_left, context.pace_waits = 0, []
    for _ in range(count):
        cost = context.pace.cost_of(size)
        found = context.pace.ask(second, cost, context.pace_most)
        if isinstance(found, Turn):
            context.pace_left += 1
            context.pace_turns.append(found)
        else:
            context.pace_waits.append(found)


@when("{count:d} calls ask to leave at second {second:g}")
@when("{count:d} call asks to leave at second {second:g}")
def _(context: Context, count: int, second: float) -> None:
    _ask(context, count, second)


@when("{count:d} calls of {size:d} bytes ask to leave at second {second:g}")
@when("{count:d} call of {size:d} bytes asks to leave at second {second:g}")
def _(context: Context, count: int, size: int, second: float) -> None:
    _ask(context, count, second, size)


@then("{count:d} of them left")
def _(context: Context, count: int) -> None:
    assert context.pace_left == count, (context.pace_left, context.pace_waits)


@then("{count:d} of them left, and the others wait for a call to end")
def _(context: Context, count: int) -> None:
    assert context.pace_left == count, (context.pace_left, context.pace_waits)
    assert context.pace_waits and set(context.pace_waits) == {math.inf}, context.pace_waits


@then("{count:d} of them left, and the others wait {seconds:g} seconds")
def _(context: Context, count: int, seconds: float) -> None:
    assert context.pace_left == count, (context.pace_left, context.pace_waits)
    assert context.pace_waits, "nobody waits"
    for wait in context.pace_waits:
        assert abs(wait - seconds) < 0.01, context.pace_waits


def _answer(context: Context, second: float, headers: Any = None, **tokens: int) -> None:
    turn = context.pace_turns.popleft()
    context.pace.answered(second, turn, headers or {}, **tokens)


@when("a call is answered at second {second:g}")
@when("a call is answered at second {second:g} with {given:d} input and {told:d} output tokens")
def _(context: Context, second: float, given: int | None = None, told: int | None = None) -> None:
    _answer(context, second, input_tokens=given, output_tokens=told)


@when("{count:d} calls are answered at second {second:g}")
@when("{count:d} call is answered at second {second:g}")
def _(context: Context, count: int, second: float) -> None:
    for _ in range(count):
        _answer(context, second)


def _headers(rows: Iterable[Any]) -> dict[str, str]:
    headers = {"date": formatdate(NOW, usegmt=True)}
    for row in rows:
        for what in ("limit", "remaining"):
            if row[what] != "none":
                headers[f"anthropic-ratelimit-{row['name']}-{what}"] = row[what]
        if row.get("reset in"):
            at = datetime.fromtimestamp(NOW + float(row["reset in"]), UTC)
            reset = at.strftime("%Y-%m-%dT%H:%M:%SZ")
            headers[f"anthropic-ratelimit-{row['name']}-reset"] = reset
    return headers


@when("a call leaves at second {left:g}, and is answered at second {second:g} with the limits")
@when(
    "a call leaves at second {left:g}, and is answered at second {second:g} with {told:d} output "
    "tokens and the limits"
)
def _(context: Context, left: float, second: float, **told: int) -> None:
    _leave_and_answer(context, left, second, **({"output_tokens": told["told"]} if told else {}))


def _leave_and_answer(context: Context, left: float, second: float, **tokens: int) -> None:
    turn = context.pace.ask(left, context.pace.cost_of(0), context.pace_most)
    context.pace_turns.append(turn)
    if isinstance(turn, Turn):
        _answer(context, second, _headers(context.table), **tokens)
    else:
        # Nothing is left to leave with: what others were answered is told to a call of before.
        context.pace_turns.pop()
        raise AssertionError(f"it had to wait {turn} s")


@when("{count:d} calls are refused at second {second:g} with retry-after {seconds}")
@when("{count:d} call is refused at second {second:g} with retry-after {seconds}")
def _(context: Context, count: int, second: float, seconds: str) -> None:
    wait = None if seconds == "none" else float(seconds)
    for _ in range(count):
        context.pace.refused(second, context.pace_turns.popleft(), {}, wait)


@when("a call is refused at second {second:g}, and a function ends the pause at second {end:g}")
def _(context: Context, second: float, end: float) -> None:
    turn = context.pace_turns.popleft()
    context.pace.refused(second, turn, {}, 60.0)
    context.pace.change_pause(turn, end)


def _left(pace: Pace, now: float) -> Turn:
    turn = pace.ask(now, pace.cost_of(0), 1)
    assert isinstance(turn, Turn), turn
    return turn


@rule("after each of these calls the next one waits")
def _(calls: str, left_of_60_a_minute: str = "") -> dict[str, str]:
    """Calls one after the other, each after the wait of the one before."""
    pace, now = Pace(), 0.0
    waits: list[str] = []
    if left_of_60_a_minute:
        row = {"name": "requests", "limit": "60", "remaining": left_of_60_a_minute}
        pace.answered(now, _left(pace, now), _headers([row]))
    for call in calls.split():
        turn = _left(pace, now)
        if call == "answered":
            pace.answered(now, turn, {})
        elif call == "refused":
            pace.refused(now, turn, {}, None)
        elif call == "unused":
            pace.unused(turn)
        else:
            assert call == "failed", call
            pace.failed()
        wait = pace.ask(now, pace.cost_of(0), 1)
        waits.append("0" if isinstance(wait, Turn) else f"{wait:g}")
        now += float(waits[-1])
        if isinstance(wait, Turn):
            pace.unused(wait)
    return {"seconds": " ".join(waits)}


# --- a simulated server ---------------------------------------------------------------------------


class _Server:
    """Allows so many calls a minute; others may take some of them. Answers after 2 seconds."""

    def __init__(self, limit: float, left: float, others: float = 0.0) -> None:
        self.limit, self.left, self.others, self.at = limit, left, others, 0.0

    def call(self, now: float) -> tuple[int, dict[str, str], float | None]:
        rate = self.limit * (1 - self.others) / 60
        self.left = min(self.limit, self.left + (now - self.at) * rate)
        self.at = now
        refused = self.left < 1
        if not refused:
            self.left -= 1
        headers = {
            "anthropic-ratelimit-requests-limit": f"{self.limit:g}",
            "anthropic-ratelimit-requests-remaining": str(math.floor(self.left)),
        }
        wait = (1 - self.left) / rate if refused else None
        return (429 if refused else 200), headers, wait


@rule("calls of a pace, at most 50 under way, are answered")
def _(calls: int, a_minute: int, left: int, for_others: float) -> dict[str, float]:
    pace, server = Pace(), _Server(a_minute, left, for_others)
    now, answered, refused = 0.0, 0, 0
    ends: list[tuple[float, int, Any]] = []
    after_refusal: list[int] = []
    waiting = calls
    while answered < calls:
        came, wait = 0, math.inf
        while waiting:
            found = pace.ask(now, pace.cost_of(400), 50)
            if not isinstance(found, Turn):
                wait = found
                break
            waiting -= 1
            came += 1
            heapq.heappush(ends, (now + 2.0, len(ends) + answered * 1000 + came, (found, now)))
        if came and refused and pace.refusals:
            after_refusal.append(came)
        step = min(now + wait, ends[0][0] if ends else math.inf)
        assert step < math.inf, "it stands still"
        now = step
        while ends and ends[0][0] <= now:
            _, _, (turn, _) = heapq.heappop(ends)
            status, headers, retry = server.call(now)
            if status == 200:
                answered += 1
                pace.answered(now, turn, headers)
            else:
                refused += 1
                waiting += 1
                pace.refused(now, turn, headers, retry)
    most = max(after_refusal, default=0)
    return {"seconds": round(now), "refused": refused, "at_once_after_a_refusal": most}


# --- whose a pace is ------------------------------------------------------------------------------


@rule("a client has paces of models")
def _(calls: str, under_way: str) -> str:
    async def call() -> str:
        client = LiveClient(Connection(base_url="http://a", api_key="k"), concurrency=9)
        for model in calls.split():
            turn = await client.turn(model, 1, 1)
            if model not in under_way.split():
                client.unused(turn, model)
        assert not client._queues
        kept = " ".join(client._paces)
        await client.aclose()
        return kept

    return asyncio.run(call())


@rule("a call has the pace of one to http://a with the key k and the model m")
def _(server: str, key: str, model: str, when: str) -> bool:
    mine = pace_of("http://a", "k", "m")
    mine.refusals = 7
    if when == "in a forked child":
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            os._exit(pace_of(server, key, model) is mine)
        return os.waitpid(child, 0)[1] != 0
    if when == "once nobody has it any more":
        del mine
        gc.collect()
    return pace_of(server, key, model).refusals == 7
