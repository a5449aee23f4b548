"""Steps about prices and costs: an API that bills what its prompts say."""

from __future__ import annotations

import ast
import copy
import json
import math
import os
import re
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import genai_prices
import msgspec
from behave import given, then
from behave.runner import Context
from genai_prices.types import ConditionalPrice, StartDateConstraint
from staging import QUICK, start_api, until
from tables import rule

import claude_batch as cb
from claude_batch.core.answer_parts import Usage
from claude_batch.lifecycle.budget_room import bound_cost
from claude_batch.money import prices as prices_module
from claude_batch.money.prices import Prices, prices_of
from claude_batch.wire.bounds import MediaBound, TokenBound
from claude_batch.wire.messages import decode_line, decode_message

SHORT = {
    "cache_read": "cache_read_input_tokens",
    "cache_5m": "cache_creation_5m_input_tokens",
    "cache_1h": "cache_creation_1h_input_tokens",
}
NOW = datetime(2026, 11, 21, tzinfo=UTC).timestamp()


def usage_of(words: str) -> Usage:
    given: dict[str, Any] = json.loads(words)
    return Usage(**{SHORT.get(name, name): value for name, value in given.items()})


def api_usage(given: dict[str, Any]) -> dict[str, Any]:
    """Short words as the API's own `usage` object has them."""
    five, hour = given.pop("cache_5m", 0), given.pop("cache_1h", 0)
    searches = given.pop("web_search_requests", None)
    made = {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_input_tokens": given.pop("cache_read", 0),
        "cache_creation_input_tokens": five + hour,
        "cache_creation": {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour},
        **given,
    }
    if searches is not None:
        made["server_tool_use"] = {"web_search_requests": searches, "web_fetch_requests": 0}
    return made


def bill_as_told(params: dict[str, Any]) -> Any:
    """The sandbox's mind: a prompt that is a JSON object is the usage of its answer."""
    content = params["messages"][-1]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    if not text.startswith("{"):
        return None
    return {"content": "done", "usage": api_usage(json.loads(text))}


@given("an API that bills what its prompts say")
@given("an API that bills what its prompts say, with {settings}")
def _(context: Context, settings: str = "{}") -> None:
    context.execute_steps("Given a command's folder")
    start_api(context, responder=bill_as_told, **json.loads(settings))
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "50ms"
    os.environ["CLAUDE_BATCH_LINGER"] = "50ms"


@given('a file of prices "{name}"')
def _(context: Context, name: str) -> None:
    write_prices(context, name, context.text.encode())


def write_prices(context: Context, name: str, held: bytes) -> None:
    context.prices = context.tmp / name
    context.prices.write_bytes(held)


@rule("answers of the API are billed for")
def _(usage: dict[str, Any]) -> dict[str, int]:
    result = {"type": "succeeded", "message": {"content": [], "usage": usage}}
    found = decode_line(json.dumps({"custom_id": "a", "result": result}).encode()).usage
    assert found is not None
    return {
        "input": found.input_tokens,
        "output": found.output_tokens,
        "read": found.cache_read_input_tokens,
        "written": found.cache_creation_input_tokens,
    }


@rule("answers cost")
def _(
    context: Context, model: str, usage: str, what: str = "", day: str = "2026-11-21"
) -> dict[str, Any]:
    """What an answer costs at the beginning and at the end of a day."""
    prices = prices_of(getattr(context, "prices", None))
    at = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    live, late, batch = (
        prices.charge(model, usage_of(usage), batch=batch, at=moment)
        for batch, moment in ((False, at), (False, at + 86399), (True, at))
    )
    assert live == late, (live, late)
    assert live is None or live.cost == live.live, live
    assert live is None or batch is None or batch.live == live.live, (live, batch)
    return {
        "batch": str(batch.cost) if batch else "unpriced",
        "live": str(live.cost) if live else "unpriced",
        "batch_without_cache": batch and batch.uncached,
    }


@rule("requests of 1,000 tokens, whose model becomes twice as dear on 2026-11-22, reserve")
def _(sent_on: str) -> int:
    """The most that one costs in a batch, if it may be answered days after it was sent."""
    counted = genai_prices.Usage(input_tokens=0, output_tokens=0)
    known = genai_prices.calc_price(counted, "claude-haiku-4-5", provider_id="anthropic")
    usual: Any = known.model.prices
    dearer = copy.copy(usual)
    dearer.input_mtok, dearer.output_mtok = 2 * usual.input_mtok, 2 * usual.output_mtok
    begins = StartDateConstraint(date(2026, 11, 22))
    changed = [ConditionalPrice(prices=usual), ConditionalPrice(begins, prices=dearer)]
    at = datetime.fromisoformat(sent_on).replace(tzinfo=UTC).timestamp()
    bound = TokenBound("claude-haiku-4-5", 1000, 0, None, 0, False, MediaBound(0, 0, False))
    prices_module._listed_changes.cache_clear()
    try:
        with mock.patch.object(known.model, "prices", changed):
            most = bound_cost(Prices(), bound, at)
            answered = Prices().charge(
                "claude-haiku-4-5", Usage(input_tokens=1000), batch=True, at=at + 2 * 86400
            )
    finally:
        prices_module._listed_changes.cache_clear()
    assert answered is not None and answered.cost <= most, (answered, most)
    return most


@rule("answers of the API cost")
def _(usage: dict[str, Any], what: str, model: str = "claude-haiku-4-5") -> dict[str, str]:
    """What an answer of a model costs in a batch."""
    result = {"type": "succeeded", "message": {"content": [], "usage": usage}}
    found = decode_line(json.dumps({"custom_id": "a", "result": result}).encode()).usage
    if found is None:
        return {"batch": "unread"}
    charge = prices_of().charge(model, found, batch=True, at=NOW)
    return {"batch": str(charge.cost) if charge else "unpriced"}


@rule("prices of models are remembered")
def _(models: int, letters_in_a_name: int) -> int:
    prices = Prices()
    for number in range(models):
        name = f"{number}".ljust(letters_in_a_name, "x")
        assert prices.tariff(name, at=NOW) is None and prices.possible(name, at=NOW) == []
    return prices._known.cache_info().currsize


@rule("our prices equal those that genai-prices lists")
def _(model: str) -> dict[str, bool]:
    """Compare prompts below and above the limits of prices."""
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    at = datetime.fromtimestamp(NOW, UTC)
    equal = {"batch": True, "live": True}
    for prompt in (1000, 150_000, 450_000):
        usage = Counted(
            input_tokens=prompt,
            cache_read_tokens=100,
            cache_write_tokens=500,
            cache_write_1h_tokens=200,
            output_tokens=1000,
            web_searches=2,
        )
        own = Usage(
            input_tokens=prompt - 600,
            cache_read_input_tokens=100,
            cache_creation_5m_input_tokens=300,
            cache_creation_1h_input_tokens=200,
            output_tokens=1000,
            web_search_requests=2,
        )
        for way, words in (("batch", {"processing": "batch"}), ("live", None)):
            listed = calc_price(
                usage,
                model,
                provider_id="anthropic",
                genai_request_timestamp=at,
                price_context=words,
            ).total_price
            found = prices_of().charge(model, own, batch=way == "batch", at=NOW)
            assert found is not None
            equal[way] &= abs(Decimal(found.cost) - listed * 10**9) <= Decimal("0.5")
    return equal


@rule("answers of one model are priced")
def _(answers: int, cpu_seconds_below: float) -> dict[str, int]:
    prices = prices_module.Prices()
    usages = [Usage(input_tokens=n, output_tokens=n % 90) for n in range(answers)]
    with mock.patch.object(prices_module, "_listed", wraps=prices_module._listed) as looks:
        begun = time.process_time()
        for usage in usages:
            prices.charge("claude-haiku-5-5", usage, batch=True, at=NOW)
        spent = time.process_time() - begun
    assert spent < cpu_seconds_below, spent
    return {"looks_for_the_price": looks.call_count}


@then("the command line's help and the package itself load no prices")
def _(context: Context) -> None:
    program = (
        "import sys, claude_batch as cb\n"
        "from click.testing import CliRunner\n"
        "from claude_batch.cli.app import group\n"
        "assert CliRunner().invoke(group, ['run', '--help']).exit_code == 0\n"
        "cb.ClaudeBatchProvider(api_key='k'), cb.ClaudeProvider(api_key='k')\n"
        "print('genai_prices' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", (done.stdout, done.stderr)


def answer(usage: str, *, live: bool, model: str, **settings: Any) -> cb.ActorResponse:
    made: Any = cb.ClaudeProvider(**settings)
    if not live:
        made.close()
        made = cb.ClaudeBatchProvider(**QUICK, **settings)
    actor = cb.ActorConfiguration(name="tests/asker", provider="anthropic", model=model)
    with made as provider:
        response: cb.ActorResponse = provider.respond_sync(actor, usage)
    return response


@rule("an answer of the API is priced")
def _(context: Context, way: str, model: str, used: str, own_prices: str = "") -> dict[str, object]:
    settings: dict[str, Any] = {}
    if own_prices == "as a keyword":
        settings["prices"] = context.prices
    elif own_prices:
        os.environ[own_prices] = str(context.prices)
    found = answer(used, live=way == "live", model=model, **settings)
    assert found.usage.input_tokens == json.loads(used)["input_tokens"]
    dollars = None if found.cost_usd is None else str(found.cost_usd)
    assert found.to_dict()["cost_usd"] == (None if dollars is None else float(dollars))
    return {"cost": found.cost, "cost_usd": dollars}


@then('the output lines in "{name}" say they cost {words}')
def _(context: Context, name: str, words: str) -> None:
    lines = Path(name).read_text("utf-8").splitlines()
    shown = [re.search(r'"cost_usd":([\d.]+)', line) for line in lines]
    assert [found[1] if found else "nothing" for found in shown] == re.split(", | and ", words)
    for line in lines:
        cost = msgspec.json.decode(line).get("cost_usd")
        assert cost is None or isinstance(cost, float)


# Reports

BY_HAND = {
    # Dollars a million tokens: input, output, cache read, writes of 5 minutes and of 1 hour.
    "claude-haiku-4-5": ("1", "5", "0.1", "1.25", "2"),
    "claude-haiku-5-5": ("0.1", "0.5", "0.01", "0.125", "0.2"),
}
LONG = {"claude-haiku-5-5": (100_000, 5)}
"""Tokens of a prompt above which everything costs so many times as much."""


def billed(record: dict[str, Any]) -> Fraction | None:
    """What a record of the bill comes to, in nano-dollars; None without a price."""
    prices = BY_HAND.get(record["model"])
    if prices is None:
        return None
    usage = record["usage"]
    written = usage["cache_creation"]
    counts = (
        usage["input_tokens"],
        usage["output_tokens"],
        usage["cache_read_input_tokens"],
        written["ephemeral_5m_input_tokens"],
        written["ephemeral_1h_input_tokens"],
    )
    tokens = sum(Fraction(price) * 1000 * n for price, n in zip(prices, counts, strict=True))
    limit, factor = LONG.get(record["model"], (0, 1))
    if sum(counts) - counts[1] > limit:
        tokens *= factor
    if usage.get("inference_geo") == "us":
        tokens *= Fraction(11, 10)
    searches = (usage.get("server_tool_use") or {}).get("web_search_requests", 0)
    return tokens / (2 if record["route"] == "batch" else 1) + searches * 10_000_000


def bill(context: Context) -> tuple[int, int]:
    """The bill in nano-dollars, each answer rounded halves up, and how many answers it has."""
    paid = [record for record in context.api.billing() if record["outcome"] == "succeeded"]
    sums = [found for record in paid if (found := billed(record)) is not None]
    return sum(math.floor(each + Fraction(1, 2)) for each in sums), len(paid)


def as_request(model: str, content: str, **others: Any) -> str:
    messages = [{"role": "user", "content": content}]
    params = {"model": model, "max_tokens": 100, "messages": messages, **others}
    return json.dumps({"params": params}) + "\n"


@given('a command\'s file "{name}" of requests that use')
def _(context: Context, name: str) -> None:
    rows = list(context.table)
    Path(name).write_text("".join(as_request(row["model"], row["usage"]) for row in rows))


@given('a command\'s file "{name}" of {count:d} lines like')
def _(context: Context, name: str, count: int) -> None:
    """Write a line again and again: `N` is its number, and `(9 letters)` a text so long."""
    line = re.sub(r"\((\d+) letters\)", lambda found: "x" * int(found[1]), context.text)
    Path(name).write_text("".join(f"{line.replace('N', str(n))}\n" for n in range(count)))


def report(context: Context) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(context.ended.stdout)
    return found


@then("the costs by group are of this day")
def _(context: Context) -> None:
    told = report(context)
    days = {(datetime.now(UTC) - timedelta(seconds=ago)).date().isoformat() for ago in (0, 60)}
    assert {share["group"] for share in told["shares"]} <= days, told["shares"]
    assert sum(share["cost"] for share in told["shares"]) == told["cost"] > 0


@then("the cost is what the API's bill comes to")
def _(context: Context) -> None:
    comes_to, answers = bill(context)
    told = report(context)
    assert (told["cost"], told["results"]["succeeded"]) == (comes_to, answers), (comes_to, told)


@then("the answers came within the time that the cost report says")
def _(context: Context) -> None:
    told = report(context)
    first = told["cost"]["seconds_to_first_answer"]
    last = told["cost"]["seconds_to_last_answer"]
    assert 0.1 <= first <= last <= time.time() - told["created"], (first, last)


@then("the run's cost becomes what the API's bill of {count:d} answers comes to")
def _(context: Context, count: int) -> None:
    def whole() -> bool:
        return bool(context.run.cost().total.results["succeeded"] == count)

    until(whole)
    assert bill(context) == (context.run.cost().total.cost, count), bill(context)
    assert context.run.cost().total.cost_usd == Decimal(bill(context)[0]).scaleb(-9)


@rule("files of prices are read")
def _(context: Context, name: str, text: str) -> dict[str, Any]:
    held = ast.literal_eval(text)
    write_prices(context, name, held if isinstance(held, bytes) else held.encode())
    prices_of(context.prices)
    return {}


@rule("cache writes are counted")
def _(usage: str) -> dict[str, int]:
    found = decode_message(b'{"content": [], "usage": %b}' % usage.encode()).usage
    five, hour = found.cache_creation_5m_input_tokens, found.cache_creation_1h_input_tokens
    assert found.cache_creation_input_tokens == five + hour, found
    return {"5m": five, "1h": hour}
