"""Steps of the sandbox's bill and log."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from behave import then
from behave.runner import Context
from sandbox_steps import call, equal, results
from tables import rule


@then("the sandbox's bill sums up as")
def _(context: Context) -> None:
    summary = context.sandbox.billing_summary()
    flat = {**summary, **summary["outcomes"]}
    wanted = {row["what"]: int(row["count"]) for row in context.table}
    equal({what: flat[what] for what in wanted}, wanted)


@then("the sandbox's bill has {count:d} records")
def _(context: Context, count: int) -> None:
    equal(len(context.sandbox.billing()), count)


@rule("the sandbox's bill tells of a request")
def _(context: Context, custom_id: str) -> dict[str, Any]:
    (record,) = (each for each in context.sandbox.billing() if each["custom_id"] == custom_id)
    return {**record, "seconds": round(record["processed_at"] - record["accepted_at"])}


@rule("the sandbox's bill names params by the SHA-256 of their sorted compact JSON")
def _(context: Context, text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    records = {each["params_sha256"]: each["custom_id"] for each in context.sandbox.billing()}
    return records[digest]


@then("the sandbox's bill agrees with the usage of its results")
def _(context: Context) -> None:
    told = results(context)
    bill = {record["custom_id"]: record for record in context.sandbox.billing()}
    equal(bill.keys(), told.keys())
    for custom_id, result in told.items():
        usage = result["message"]["usage"] if result["type"] == "succeeded" else None
        equal((bill[custom_id]["outcome"], bill[custom_id]["usage"]), (result["type"], usage))


@then("the sandbox's log has the calls")
def _(context: Context) -> None:
    found = [
        (call["route"], str(call["status"]), str(call["fault"])) for call in context.sandbox.log()
    ]
    equal(found, [(row["route"], row["status"], row["fault"]) for row in context.table])


@then("the sandbox's rules have fired")
def _(context: Context) -> None:
    wanted = [(row["seen"], row["fired"]) for row in context.table]
    deadline = time.monotonic() + 10
    while True:  # a call that hangs may still be on its way
        call(context, "GET", "/sandbox/faults/counters")
        counters = context.sandbox_answer.json()["rules"]
        found = [(str(each["seen"]), str(each["fired"])) for each in counters]
        if found == wanted or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    equal(found, wanted)
