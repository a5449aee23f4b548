"""Evidence of a storm, spoiled: each forgery breaks the promise in one way.

They are made of the evidence of a real storm, which the verdict has found in order. A forgery takes
one request that was processed once and answered, and changes what is told of it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def _plain(evidence: Json, route: str | None = None) -> tuple[str, int, Json]:
    """A role, the place of an answered line in its output, and its only record on the bill.

    ``route`` is that of the record, where it matters.
    """
    hashes = {row["prompt"]: row["sha256"] for row in evidence["requests"]}
    times = Counter(record["params_sha256"] for record in evidence["billing"])
    for role, asked in evidence["asked"].items():
        for at, line in enumerate(evidence["outputs"][role]):
            digest = hashes[asked[at]["prompt"]]
            for record in evidence["billing"]:
                paid = record["params_sha256"] == digest and record["outcome"] == "succeeded"
                paid = paid and record["route"] == (route or record["route"])
                if line["ok"] and paid and times[digest] == 1:
                    return role, at, record
    raise AssertionError("no request was processed once and answered; take another storm")


def _again(
    evidence: Json,
    outcome: str = "succeeded",
    *,
    error_type: str = "overloaded_error",
    early: bool = False,
) -> None:
    """The request of a line is processed once more, in a batch of its own."""
    _, _, record = _plain(evidence)
    record["outcome"] = outcome
    record["error_type"] = error_type if outcome == "errored" else None
    second = copy.deepcopy(record)
    request, incarnation, _ = record["custom_id"].split("-")
    second["custom_id"] = f"{request}-{incarnation}-0002"
    second["batch_id"] = "msgbatch_forged"
    after = record["processed_at"] + 1
    second["accepted_at"] = record["accepted_at"] + 0.001 if early else after
    second["processed_at"] = after + 1
    evidence["billing"].append(second)
    evidence["batches"].append({"remote_id": "msgbatch_forged"})


def pay_twice(evidence: Json) -> None:
    """A success is paid for a second time."""
    _again(evidence)


def send_twice_at_once(evidence: Json) -> None:
    """The second sending leaves before the first has come to its end."""
    _again(evidence, "errored", early=True)


def try_a_final_outcome_again(evidence: Json) -> None:
    """What the API has found invalid is processed once more."""
    _again(evidence, "errored", error_type="invalid_request_error")


def forget_why_it_was_sent_again(evidence: Json) -> None:
    """The first outcome is nowhere in the ledger."""
    _, _, record = _plain(evidence)
    request = record["custom_id"].split("-")[0]
    evidence["results"] = [row for row in evidence["results"] if row["request"] != request]
    _again(evidence, "expired")


def process_one_sending_twice(evidence: Json) -> None:
    """One `custom_id` is on the bill twice."""
    evidence["billing"].append(copy.deepcopy(_plain(evidence)[2]))


def _called(evidence: Json, route: str) -> None:
    """A request whose answer came by this route is asked live afterwards."""
    record = _plain(evidence, route)[2]
    after = record["processed_at"] + 1
    call = {"route": "live", "batch_id": None, "custom_id": None,
            "accepted_at": after, "processed_at": after}  # fmt: skip
    evidence["billing"].append({**record, **call})


def call_twice(evidence: Json) -> None:
    """What a live call has answered is asked live again."""
    _called(evidence, "live")


def ask_both_ways(evidence: Json) -> None:
    """What a batch has answered is asked live, too."""
    _called(evidence, "batch")


def lose_a_live_answer(evidence: Json) -> None:
    """A call that was answered ends as an error."""
    role, at, _ = _plain(evidence, "live")
    line = evidence["outputs"][role][at]
    line["ok"], line["error"] = False, {"type": "api_error", "message": "gone"}


def lose_an_answer(evidence: Json) -> None:
    """A request that was paid for ends as missing."""
    role, at, _ = _plain(evidence)
    line = evidence["outputs"][role][at]
    line["ok"], line["error"] = False, {"type": "missing_result", "message": "gone"}


def lose_what_was_missing_for_a_moment(evidence: Json) -> None:
    """A request that was paid for ends as missing, after three short fetches within a moment."""
    lose_an_answer(evidence)
    [*_, record] = _plain_lost(evidence)
    fetch = {"route": "results", "status": 200, "fault": "missing_lines", "headers": {},
             "path": f"/v1/messages/batches/{record['batch_id']}/results"}  # fmt: skip
    evidence["missing_after"] = 86400.0
    evidence["log"] += [{**fetch, "at": at} for at in (1.0, 2.0, 3.0)]


def _plain_lost(evidence: Json) -> list[Json]:
    """The bill of the request that `lose_an_answer` has lost."""
    hashes = {row["prompt"]: row["sha256"] for row in evidence["requests"]}
    for role, asked in evidence["asked"].items():
        for at, line in enumerate(evidence["outputs"][role]):
            if not line["ok"] and line["error"]["message"] == "gone":
                digest = hashes[asked[at]["prompt"]]
                return [each for each in evidence["billing"] if each["params_sha256"] == digest]
    raise AssertionError("nothing was lost")


def lose_a_line(evidence: Json) -> None:
    """The output has no line for a request."""
    role, at, _ = _plain(evidence)
    del evidence["outputs"][role][at]


def double_a_line(evidence: Json) -> None:
    """The output has two lines for a request."""
    role, at, _ = _plain(evidence)
    evidence["outputs"][role].insert(at, evidence["outputs"][role][at])


def mix_up_the_order(evidence: Json) -> None:
    """The output is in another order than the input."""
    role, _, _ = _plain(evidence)
    evidence["outputs"][role].reverse()


def give_another_answer(evidence: Json) -> None:
    """A line holds the answer to another prompt."""
    role, at, _ = _plain(evidence)
    evidence["outputs"][role][at]["text"] = "An answer to something else."


def give_up_early(evidence: Json) -> None:
    """A request ends with a passing failure after its first attempt."""
    role, at, record = _plain(evidence)
    record["outcome"], record["error_type"] = "errored", "overloaded_error"
    line = evidence["outputs"][role][at]
    line["ok"], line["error"] = False, {"type": "overloaded_error", "message": "too much"}


def leave_a_batch_behind(evidence: Json) -> None:
    """The API has taken a batch that the ledger does not know."""
    _, _, record = _plain(evidence)
    for row in evidence["batches"]:
        if row["remote_id"] == record["batch_id"]:
            row["remote_id"] = None


def cancel_a_foreign_batch(evidence: Json) -> None:
    """Somebody else's batch is cancelled."""
    evidence["foreign"].append("msgbatch_foreign")
    path = "/v1/messages/batches/msgbatch_foreign/cancel"
    call = {"route": "cancel", "path": path, "status": 200, "fault": None, "headers": {}}
    evidence["log"].append(call)


def make_a_run_twice(evidence: Json) -> None:
    """The same command made a second run."""
    evidence["runs"].append("run-forged")


def pass_the_budget(evidence: Json) -> None:
    """The bill comes to more than the budget was."""
    evidence["budgets"] = [[float("inf"), 1000]]


def forget_what_was_spent(evidence: Json) -> None:
    """The ledger has less on its account than the API has billed."""
    evidence["budgets"] = [[float("inf"), 10**12]]
    evidence["accounted"] = 1000


# Of conversations


def _talk(evidence: Json, tool: str = "record") -> tuple[Json, Json, Json]:
    """An answered line, the call of a tool before it, and the note of the tool's only run."""
    prompts = {row["id"]: row["prompt"] for row in evidence["requests"]}
    for role, asked in evidence["asked"].items():
        for line, each in zip(evidence["outputs"][role], asked, strict=True):
            for call in evidence["tool_calls"]:
                of_it = prompts[call["request"]] == each["prompt"] and call["name"] == tool
                runs = [run for run in evidence["notes"] if run["mark"] in (call["output"] or "")]
                if line["ok"] and of_it and len(runs) == 1:
                    return line, call, runs[0]
    raise AssertionError("no conversation was answered after a tool; take another storm")


def run_a_tool_again(evidence: Json) -> None:
    """A tool runs once more, in the same words and another process, which is killed."""
    _, _, run = _talk(evidence)
    evidence["processes"].append({"pid": 1, "killed": True, "began": 0.0, "ended": 9e9})
    evidence["notes"].insert(0, {**run, "mark": "forged", "pid": 1})


def run_a_recorded_tool_again(evidence: Json) -> None:
    """A tool that may be repeated runs again though its result was there."""
    _, _, run = _talk(evidence, "measure")
    evidence["processes"].append({"pid": run["pid"], "killed": True, "began": 0.0, "ended": 9e9})
    evidence["notes"].append({**run, "mark": "forged"})


def repeat_a_tool_for_nothing(evidence: Json) -> None:
    """A tool that may be repeated is, and nobody has died."""
    _, _, run = _talk(evidence, "measure")
    evidence["notes"].insert(0, {**run, "mark": "forged", "pid": 1})


def invent_a_result(evidence: Json) -> None:
    """The ledger has a result of a tool that never ran."""
    _, _, run = _talk(evidence)
    evidence["notes"].remove(run)


def forget_a_result(evidence: Json) -> None:
    """A call's result is nowhere in the ledger, and its conversation went on."""
    _, call, _ = _talk(evidence)
    call["finished"] = call["output"] = None


def run_a_tool_unnoted(evidence: Json) -> None:
    """A tool ran of which the ledger has no call."""
    evidence["tool_calls"].remove(_talk(evidence)[1])


def answer_without_a_result(evidence: Json) -> None:
    """The model was not shown what the tool gave."""
    line, _, run = _talk(evidence)
    line["text"] = line["text"].replace(run["mark"], "")


def _interrupt(evidence: Json, tool: str) -> Json:
    line, call, _ = _talk(evidence, tool)
    # The conversation stops at the answer that calls the tool.
    request = next(row for row in evidence["requests"] if row["id"] == call["request"])
    shown = {record["params_sha256"]: record for record in evidence["billing"]}
    sending = next(
        digest
        for digest in request["turns"]
        if int(shown[digest]["custom_id"][-4:]) == call["sending"]
    )
    dropped = request["turns"][request["turns"].index(sending) + 1 :]
    request["turns"] = [digest for digest in request["turns"] if digest not in dropped]
    evidence["billing"] = [
        record for record in evidence["billing"] if record["params_sha256"] not in dropped
    ]
    line["ok"], line["batch_id"] = False, shown[sending]["batch_id"]
    line["error"] = {"type": "tool_interrupted", "message": "it had started"}
    return call


def interrupt_without_a_death(evidence: Json) -> None:
    """A conversation ends since its tool was interrupted, and every process lived."""
    call = _interrupt(evidence, "record")
    call["finished"] = call["output"] = None
    evidence["processes"] = [{**each, "killed": False} for each in evidence["processes"]]


def blame_the_death_of_another(evidence: Json) -> None:
    """A conversation ends since its tool was interrupted, and another process has died."""
    interrupt_without_a_death(evidence)
    evidence["processes"].append({"pid": 1, "killed": True, "began": 0.0, "ended": 9e9})


def interrupt_without_need(evidence: Json) -> None:
    """A conversation ends since its tool was interrupted, whose result was recorded."""
    _interrupt(evidence, "record")


def give_up_what_may_be_repeated(evidence: Json) -> None:
    """A conversation ends since a tool was interrupted that may be run again."""
    call = _interrupt(evidence, "measure")
    call["finished"] = call["output"] = None
    evidence["processes"].append({"pid": 1, "killed": True, "began": 0.0, "ended": 9e9})


def _turns(evidence: Json) -> list[Json]:
    """The records of a conversation's turns, each of which was sent once."""
    for request in evidence["requests"]:
        found = [
            record
            for digest in request["turns"]
            for record in evidence["billing"]
            if record["params_sha256"] == digest
        ]
        if len(found) == len(request["turns"]) > 1:
            return found
    raise AssertionError("no conversation had each turn once; take another storm")


def pay_a_turn_twice(evidence: Json) -> None:
    """A later turn that succeeded is processed once more."""
    record = copy.deepcopy(_turns(evidence)[-1])
    record["custom_id"] = record["custom_id"][:-4] + "0099"
    record["accepted_at"] = record["processed_at"] + 1
    record["processed_at"] += 2
    evidence["billing"].append(record)


def go_on_before_the_answer(evidence: Json) -> None:
    """A turn is sent before the one before it was answered."""
    first, second = _turns(evidence)[:2]
    second["accepted_at"] = first["accepted_at"]


def go_on_from_nothing(evidence: Json) -> None:
    """A turn follows one that has failed."""
    first, *_ = _turns(evidence)
    first["outcome"], first["error_type"] = "errored", "overloaded_error"


def stop_between_two_turns(evidence: Json) -> None:
    """A conversation stands still, though all has ended."""
    evidence["requests"][0]["state"] = "continuing"


FORGERIES: dict[str, Callable[[Json], None]] = {
    made.__name__.replace("_", " "): made
    for made in (
        pay_twice, send_twice_at_once, try_a_final_outcome_again, forget_why_it_was_sent_again,
        process_one_sending_twice, lose_an_answer, lose_what_was_missing_for_a_moment,
        lose_a_line, double_a_line, mix_up_the_order,
        give_another_answer, give_up_early, leave_a_batch_behind, cancel_a_foreign_batch,
        make_a_run_twice, pass_the_budget, forget_what_was_spent, run_a_tool_again,
        run_a_recorded_tool_again, repeat_a_tool_for_nothing, invent_a_result, forget_a_result,
        run_a_tool_unnoted, answer_without_a_result, interrupt_without_a_death,
        blame_the_death_of_another, interrupt_without_need, give_up_what_may_be_repeated,
        pay_a_turn_twice, go_on_before_the_answer, go_on_from_nothing, stop_between_two_turns,
        ask_both_ways, call_twice, lose_a_live_answer,
    )
}  # fmt: skip
