"""Steps about judging answers by the shapes that were asked for."""

from __future__ import annotations

import json
from typing import Any

import shapes
from behave import then
from behave.runner import Context
from output_steps import answer_of
from pydantic import create_model
from tables import rule

import claude_batch as cb
from claude_batch.actor.output import output_format_of
from claude_batch.actor.response import OutputJudge


@rule("answers asked for as a Flat are judged")
def _(text: str, stop_reason: str) -> dict[str, str]:
    flat = output_format_of(shapes.Flat)
    response = answer_of([text], stop_reason).with_output(flat)
    try:
        response.validate()
    except cb.OutputValidationError:
        validation = "refused"
    else:
        validation = "put off"
    return {"validation": validation, "problem": OutputJudge(flat)(response.raw) or ""}


@then("it can be asked for {count:d} shapes, each with its own schema")
def _(context: Context, count: int) -> None:
    for number in range(count):
        fields: dict[str, Any] = {f"field_{number}": (int, ...)}
        kind = create_model(f"Shape{number}", __module__=shapes.__name__, **fields)
        configuration, output = context.actor._shaped(kind)
        assert output is not None and output.kind is kind
        assert f"field_{number}" in json.dumps(configuration.response_format), configuration
