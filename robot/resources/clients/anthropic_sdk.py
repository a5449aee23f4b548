"""The Python SDK as a client of the gateway: version 2, and 0.27, the first that takes tools."""

from typing import Any

import anthropic
from client_calls import OPTIONS, Call, report

client = anthropic.Anthropic(**OPTIONS)


def ask(call: Call) -> dict[str, Any]:
    if call.stream:
        with client.messages.stream(**call.params) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**call.params)
    return {
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "tools": [
            {"name": block.name, "input": block.input}
            for block in message.content
            if block.type == "tool_use"
        ],
    }


report(f"anthropic {anthropic.__version__}", ask)
