"""curl as a client of the gateway; its time-out is one without a byte."""

import json
import os
import subprocess
from typing import Any

from client_calls import TIMEOUT, Call, report


class CurlError(Exception):
    """curl has ended with this exit code, or with an error of the API."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


def ask(call: Call) -> dict[str, Any]:
    body = json.dumps({**call.params, "stream": call.stream})
    command = ["curl", "--silent", "--show-error", "--no-buffer"]
    if TIMEOUT:
        command += ["--speed-limit", "1", "--speed-time", f"{TIMEOUT:.0f}"]
    # An aborted answer is asked for again, as the SDKs do.
    command += ["--retry", "2", "--retry-all-errors", "--retry-delay", "1"]
    command += ["--header", "content-type: application/json", "--data-binary", "@-"]
    command += ["--header", "x-api-key: any", "--header", "anthropic-version: 2023-06-01"]
    command += ["--write-out", "\n%{http_code}", f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages"]
    done = subprocess.run(command, input=body, capture_output=True, text=True)
    text, _, status = done.stdout.rpartition("\n")
    if done.returncode:
        raise CurlError(f"curl {done.returncode}: {done.stderr}", int(status))
    is_streamed = call.stream and status == "200"
    blocks = _streamed(text) if is_streamed else _whole(text, int(status))
    return {
        "text": "".join(block["text"] for block in blocks if block["type"] == "text"),
        "tools": [
            {"name": block["name"], "input": block["input"]}
            for block in blocks
            if block["type"] == "tool_use"
        ],
    }


def _whole(text: str, status: int) -> list[dict[str, Any]]:
    # What came before a retry is printed too; the last answer counts.
    message = json.loads(text.strip().rpartition("\n")[2])
    if message["type"] == "error":
        raise CurlError(text, status)
    return message["content"]


def _streamed(text: str) -> list[dict[str, Any]]:
    """The blocks of a message that came as events."""
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    for line in text.splitlines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        match event["type"]:
            case "error":
                raise CurlError(line, 200)
            case "content_block_start":
                blocks.append(event["content_block"])
                arguments[event["index"]] = ""
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                blocks[event["index"]]["text"] += event["delta"]["text"]
            case "content_block_delta" if event["delta"]["type"] == "input_json_delta":
                arguments[event["index"]] += event["delta"]["partial_json"]
            case "content_block_stop" if arguments[event["index"]]:
                blocks[event["index"]]["input"] = json.loads(arguments[event["index"]])
            case _:
                pass
    return blocks


report("curl", ask)
