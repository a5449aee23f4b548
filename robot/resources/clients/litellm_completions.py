"""LiteLLM as a client of the gateway."""

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be fetched from GitHub

import litellm
from client_calls import MODEL, OPTIONS, Call, report


def ask(call: Call) -> dict[str, Any]:
    answer = litellm.completion(
        f"anthropic/{MODEL}",
        messages=call.params["messages"],
        tools=[_function(tool) for tool in call.tools] or None,
        stream=call.stream,
        num_retries=2,
        **OPTIONS,
    )
    if call.stream:
        answer = litellm.stream_chunk_builder(list(answer))
    message = answer.choices[0].message
    tools = [each.function for each in message.tool_calls or []]
    return {
        "text": message.content or "",
        "tools": [{"name": each.name, "input": json.loads(each.arguments)} for each in tools],
    }


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool in the words of OpenAI's API, which are LiteLLM's."""
    parameters = {"name": tool["name"], "description": tool["description"]}
    return {"type": "function", "function": {**parameters, "parameters": tool["input_schema"]}}


report("litellm", ask)
