"""The calls that each client in Python makes, and how it reports their ends.

A program gives `report` a function that makes one call. The calls run side by side, and each prints
one line of JSON: `{"call": "json", "text": …, "tools": …}`, or `{"call": …, "error": …}`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

MODEL = "claude-haiku-4-5"
TIMEOUT = float(os.environ.get("CLIENT_TIMEOUT", "0"))
"""The client's own time-out in seconds, which is shorter than a batch takes; 0 is its default."""

OPTIONS: dict[str, Any] = {"timeout": TIMEOUT} if TIMEOUT else {}
"""The time-out as an argument, which most libraries call the same."""

TOOLS: list[dict[str, Any]] = [
    {
        "name": "look_up",
        "description": "Look a harbour up.",
        "input_schema": {
            "type": "object",
            "properties": {"harbour": {"type": "string", "enum": ["Oban"]}},
            "required": ["harbour"],
        },
    },
    {
        "name": "tides",
        "description": "Return today's tides.",
        "input_schema": {"type": "object", "properties": {}},
    },
]


class Call(NamedTuple):
    """One call of a client."""

    name: str
    prompt: str
    stream: bool
    tools: list[dict[str, Any]]

    @property
    def params(self) -> dict[str, Any]:
        """Arguments of `messages.create`."""
        message = {"role": "user", "content": self.prompt}
        params: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "messages": [message]}
        return {**params, "tools": self.tools} if self.tools else params


def calls(client: str) -> list[Call]:
    """Return the calls of a client; no two of them, and no two clients', are equal."""
    found: list[Call] = []
    for how in ("json", "stream"):
        for what, directive in (
            ("answer", ""),
            ("tools", "[[sandbox:tools:all]]"),
            ("late-error", "[[sandbox:errored:invalid_request_error]]"),
        ):
            name = f"{how} {what}"
            tools = TOOLS if what == "tools" else []
            found.append(Call(name, f"{client} {name} {directive}", how == "stream", tools))
    return found


def report(client: str, ask: Callable[[Call], dict[str, Any]]) -> None:
    """Make all calls of a client at once, and print how each ended."""

    def attempt(call: Call) -> dict[str, Any]:
        try:
            return ask(call)
        except Exception as error:
            status = getattr(error, "status_code", None)
            return {"error": type(error).__name__, "status": status, "message": str(error)}

    made = calls(client)
    with ThreadPoolExecutor(len(made)) as threads:
        for call, ended in zip(made, threads.map(attempt, made), strict=True):
            print(json.dumps({"call": call.name, **ended}), flush=True)
