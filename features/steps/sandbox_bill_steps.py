"""Steps of the sandbox's bill and log."""

from __future__ import annotations

import json

from behave import then
from behave.runner import Context
from sandbox_steps import call, equal, params, results


@then("the sandbox's bill sums up as")
def _(context: Context) -> None:
    summary = context.sandbox.billing_summary()
    flat = {**summary, **summary["outcomes"]}
    wanted = {row["what"]: int(row["count"]) for row in context.table}
    equal({what: flat[what] for what in wanted}, wanted)


@then("the sandbox's bill has {count:d} records")
def _(context: Context, count: int) -> None:
    equal(len(context.sandbox.billing()), count)


@then("the sandbox's bill of the last batch has {count:d} records, live none")
def _(context: Context, count: int) -> None:
    path = f"/sandbox/billing?batch_id={context.sandbox_batches[-1]}"
    call(context, "GET", path)
    records = context.sandbox_answer.json()
    equal(len(records), count)
    equal({record["route"] for record in records}, {"batch"})
    call(context, "GET", path + "&summary=true")
    equal(context.sandbox_answer.json()["requests"], count)


@then("the sandbox's bill tells of each request")
def _(context: Context) -> None:
    bill = {record["custom_id"]: record for record in context.sandbox.billing()}
    equal(list(bill), [row["custom_id"] for row in context.table])
    for row in context.table:
        record = bill[row["custom_id"]]
        equal((record["outcome"], str(record["error_type"])), (row["outcome"], row["error_type"]))
        taken = record["processed_at"] - record["accepted_at"]
        equal(round(taken), int(row["seconds"]))


@then("the sandbox's bill names the params by their sorted compact JSON")
def _(context: Context) -> None:
    import hashlib

    records = context.sandbox.billing()
    wanted = {}
    for each in range(len(records)):
        text = json.dumps(
            params(f"Prompt {each}"), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        wanted[f"r{each}"] = hashlib.sha256(text.encode()).hexdigest()
    equal({record["custom_id"]: record["params_sha256"] for record in records}, wanted)


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


@then('the sandbox\'s log tells the header "{name}" as "{value}" and never the key')
def _(context: Context, name: str, value: str) -> None:
    log = context.sandbox.log()
    equal(log[-1]["headers"][name], value)
    assert "sk-test" not in json.dumps(log)


@then("the sandbox's rules have fired")
def _(context: Context) -> None:
    call(context, "GET", "/sandbox/faults/counters")
    counters = context.sandbox_answer.json()["rules"]
    found = [(str(each["seen"]), str(each["fired"])) for each in counters]
    equal(found, [(row["seen"], row["fired"]) for row in context.table])
