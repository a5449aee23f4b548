"""Claude Code as a client of the gateway: its request bodies, and its watchdog.

Claude Code streams. Its watchdog starts again at each ping, 30 times. Then it closes the connection
and sends the same bytes again. This program does the same without the hours.

Prints one line of JSON: the pings of each connection, and the text of the answer.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

PINGS = 30
"""How many pings start the watchdog again."""

CONNECTIONS = 5

HEADERS = {
    "accept": "application/json",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-version": "2023-06-01",
    "authorization": f"Bearer {os.environ['ANTHROPIC_API_KEY']}",
    "content-type": "application/json",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}


def tool(number: int) -> dict[str, Any]:
    """One of many tools, with a schema as large as Claude Code's own."""
    properties = {
        "file_path": {"type": "string", "description": "The absolute path of the file."},
        "limit": {"type": "number", "description": "The number of lines to read."},
        "mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
        "edits": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"old_string": {"type": "string"}, "new_string": {"type": "string"}},
                "required": ["old_string", "new_string"],
                "additionalProperties": False,
            },
        },
    }
    return {
        "name": "Read" if number == 0 else f"mcp__server__tool_{number}",
        "description": "Reads or changes a file of the project.\n" * 40,
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": properties,
            "required": ["file_path"],
            "additionalProperties": False,
        },
    }


def body() -> bytes:
    """A request as Claude Code makes it."""
    cached = {"cache_control": {"type": "ephemeral"}}
    system = "You are Claude Code, Anthropic's official CLI for Claude."
    reminder = "<system-reminder>\nThe user opened a file.\n</system-reminder>"
    request = {
        "model": "claude-sonnet-4-5",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": reminder},
                    {"type": "text", "text": "Explain this repository.", **cached},
                ],
            }
        ],
        "system": [
            {"type": "text", "text": system, **cached},
            {"type": "text", "text": "You are an interactive agent.\n" * 200, **cached},
        ],
        "tools": [tool(number) for number in range(40)],
        "metadata": {"user_id": "user_0f_account_1e_session_2d"},
        "max_tokens": 32000,
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "stream": True,
    }
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode()


def events(sent: bytes) -> Iterator[dict[str, Any]]:
    """Send the request, and yield the events of its answer; closes the connection at the end."""
    address = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    connection = http.client.HTTPConnection(address.netloc, timeout=30)
    try:
        connection.request("POST", "/v1/messages?beta=true", sent, HEADERS)
        response = connection.getresponse()
        assert response.status == 200, (response.status, response.read())
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()


def main() -> None:
    """Ask until there is an answer, as the watchdog does."""
    sent = body()
    connections: list[int] = []
    while len(connections) < CONNECTIONS:
        pings, text, ended = 0, "", False
        for event in events(sent):
            if event["type"] == "ping":
                pings += 1
                if not text and pings > PINGS:
                    break
            elif event["type"] == "error":
                raise SystemExit(json.dumps(event))
            elif event["type"] == "content_block_delta":
                text += event["delta"].get("text", "")
            ended = ended or event["type"] == "message_stop"
        connections.append(pings)
        if ended:
            print(json.dumps({"pings": connections, "text": text}))
            return
    raise SystemExit(f"no answer: {connections}")


main()
