"""The API's rules for the format of an answer, and for tools and the choice among them."""

from __future__ import annotations

import re
from typing import Any, cast

from .api_errors import invalid
from .instances import SchemaError, instance, unsupported_part
from .model_profiles import Model

_NO_SCHEMAS = re.compile(r"claude-(?:[123]\b|instant|(?:opus|sonnet)-4-(?:0\b|20\d{6}))")
"""Models from before structured outputs, which Anthropic's page of them does not list."""


def check_format(output: Any, model: str, *, cited: bool) -> None:
    """Raise `ApiError` (400) for an `output_config` that is not allowed.

    ``cited``: the request has citations, too.
    """
    if not isinstance(output, dict):
        raise invalid("output_config: Input should be a valid dictionary")
    wanted = cast(dict[str, Any], output).get("format")
    if wanted is None:
        return
    if _NO_SCHEMAS.match(model):
        raise invalid(f"output_config.format: '{model}' does not support output format.")
    fields = cast(dict[str, Any], wanted) if isinstance(wanted, dict) else {}
    if fields.get("type") != "json_schema":
        raise invalid("output_config.format.type: Input should be 'json_schema'")
    _check_schema(fields.get("schema"), "output_config.format.schema")
    if (fault := unsupported_part(fields["schema"])) is not None:
        raise invalid(f"output_config.format.schema: {fault}")
    if cited:
        raise invalid(
            "output_config.format: cannot be combined with citations: disable one of them"
        )


def check_tools(
    tools: list[dict[str, Any]], choice: Any, asked: str, model: Model, *, thinks: bool
) -> None:
    """Raise `ApiError` (400) for tools, or a `tool_choice`, that the model does not take.

    ``asked``: the name of the model in the params. ``thinks``: it is given a thinking budget.
    """
    names = _tool_names(tools, asked)
    if choice is not None:
        if not isinstance(choice, dict):
            raise invalid("tool_choice: Input should be a valid dictionary")
        choice = cast(dict[str, Any], choice)
        kind = choice.get("type")
        if kind not in ("auto", "any", "tool", "none"):
            raise invalid("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
        if kind not in ("any", "tool"):
            return
        if not tools:
            raise invalid("tool_choice: tool_choice may only be specified while providing tools")
        if thinks:
            raise invalid("Thinking may not be enabled when tool_choice forces tool use.")
        if not model.takes_forced_tool:
            raise invalid(f"tool_choice.type: '{kind}' is not supported for {model.id}")
        name = choice.get("name")
        known = isinstance(name, str) and (name in names or len(names) < len(tools))
        if kind == "tool" and not known:
            raise invalid(f"tool_choice.name: tool {name!r} not found in tools")


def _check_schema(schema: Any, path: str) -> None:
    if not isinstance(schema, dict):
        raise invalid(f"{path}: Input should be a valid dictionary")
    try:
        instance(cast(dict[str, Any], schema))
    except SchemaError as error:
        raise invalid(f"{path}: {error}") from None


_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def _tool_names(tools: list[dict[str, Any]], model: str) -> set[str]:
    """Return the names of the tools; those of a server's toolset have their own."""
    names: set[str] = set()
    for position, tool in enumerate(tools):
        name, kind = tool.get("name"), tool.get("type")
        if name is None and kind not in (None, "custom"):
            continue
        if not isinstance(name, str) or not name:
            raise invalid(f"tools.{position}.name: Field required")
        if _TOOL_NAME.fullmatch(name) is None:
            raise invalid(
                f"tools.{position}.custom.name: String should match pattern "
                f"'^{_TOOL_NAME.pattern}$'"
            )
        if name in names:
            raise invalid(f"tools: Tool names must be unique, and {name!r} came before")
        if tool.get("strict") is True and _NO_SCHEMAS.match(model):
            raise invalid(f"tools.{position}.strict: '{model}' does not support strict tools.")
        if kind in (None, "custom") and "input_schema" not in tool:
            raise invalid(f"tools.{position}.custom.input_schema: Field required")
        schema: Any = tool.get("input_schema", {})
        _check_schema(schema, f"tools.{position}.input_schema")
        if schema.get("type", "object") != "object":
            raise invalid(f"tools.{position}.custom.input_schema.type: Input should be 'object'")
        names.add(name)
    return names
