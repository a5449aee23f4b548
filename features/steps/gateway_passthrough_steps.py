"""Steps for what the gateway passes to the API, with the official SDK as its client."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import anthropic
from behave import given, then, when
from behave.runner import Context
from integration_steps import MODEL
from staging import KEY, until

SIZE = 1 << 20
"""Bytes of the file, more than the server passes on at once."""


@given("the official SDK as a client of the gateway, with {name}'s token")
def _(context: Context, name: str) -> None:
    token = context.gateway_tokens[name]
    context.gateway_token = token
    context.sdk = anthropic.Anthropic(base_url=context.gateway.url, api_key=token, max_retries=0)
    context.add_cleanup(context.sdk.close)


@given("the API does not listen any more")
def _(context: Context) -> None:
    context.api.stop()


def _request(name: str) -> Any:
    message = {"role": "user", "content": name}
    return {"custom_id": name, "params": {"model": MODEL, "max_tokens": 9, "messages": [message]}}


@when("the SDK uses each passed route of the gateway")
def _(context: Context) -> None:
    sdk: anthropic.Anthropic = context.sdk
    found: dict[str, Any] = {}
    messages: list[Any] = [{"role": "user", "content": "How many?"}]
    found["messages.count_tokens"] = sdk.messages.count_tokens(model=MODEL, messages=messages)
    found["models.list"] = next(iter(sdk.models.list(limit=1)))
    found["models.retrieve"] = sdk.models.retrieve(MODEL)
    content = bytes(range(256)) * (SIZE // 256)
    uploaded = sdk.beta.files.upload(file=("data.bin", content, "application/octet-stream"))
    found["files.upload"] = uploaded
    found["files.list"] = [each.id for each in sdk.beta.files.list()]
    context.gateway_file = uploaded.id
    try:
        sdk.beta.files.download(uploaded.id).read()
    except anthropic.BadRequestError as error:
        found["files.download"] = error
    found["files.delete"] = sdk.beta.files.delete(uploaded.id).id
    batch = sdk.messages.batches.create(requests=[_request("one"), _request("two")])
    ended = until(lambda: _ended(sdk, batch.id))
    found["batches.create"] = ended
    found["batches.list"] = next(iter(sdk.messages.batches.list()))
    found["batches.results"] = list(sdk.messages.batches.results(batch.id))
    context.gateway_found = found


def _ended(sdk: anthropic.Anthropic, batch_id: str) -> Any:
    batch = sdk.messages.batches.retrieve(batch_id)
    return batch if batch.processing_status == "ended" else None


@then("the SDK's calls of these routes have returned")
def _(context: Context) -> None:
    found = context.gateway_found
    file_id = context.gateway_file
    address = f"{context.gateway.url}/v1/messages/batches/"
    checks: dict[str, Any] = {
        "at least 1 token": lambda value: value.input_tokens >= 1,
        "a model with the name asked for": lambda value: value.id.startswith("claude-"),
        f"a file of {SIZE} bytes": lambda value: value.size_bytes == SIZE,
        "the file": lambda value: value == [file_id],
        "the API's refusal": lambda value: "not downloadable" in str(value),
        "the file's id": lambda value: value == file_id,
        "results at the gateway": lambda value: value.results_url.startswith(address),
        "results at the gateway once it ends": lambda value: value.results_url.startswith(address),
        "2 succeeded": lambda value: [each.result.type for each in value] == ["succeeded"] * 2,
    }
    for row in context.table:
        value = found[row["route"]]
        assert checks[row["result"]](value), (row["route"], value)
    assert {row["route"] for row in context.table} == found.keys()


@then("the API has seen the gateway's key alone")
def _(context: Context) -> None:
    calls = context.api.log()
    assert calls, "no call"
    # The caller's token came as x-api-key.
    assert {each["auth"] for each in calls} == {"bearer"}, calls
    assert len({each["workspace"] for each in calls}) == 1, calls
    assert context.gateway_token not in str(calls)


@then("the API has seen no call")
def _(context: Context) -> None:
    # But the gateway's own look at its workspace, when it starts.
    seen = [each for each in context.api.log() if each["query"] != "limit=1"]
    assert not seen, seen


@when('the gateway gets "{method} {path}" as written')
def _(context: Context, method: str, path: str) -> None:
    """By a socket, because clients normalise paths."""
    url = urlsplit(context.gateway.url)
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: {url.netloc}",
        f"x-api-key: {context.gateway_token}",
        "content-length: 2",
        "connection: close",
    ]
    with socket.create_connection((str(url.hostname), url.port or 80), 20) as connection:
        connection.sendall("\r\n".join([*lines, "", "{}"]).encode())
        context.gateway_answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@then("the gateway's response is {status:d}")
def _(context: Context, status: int) -> None:
    line = context.gateway_answer.partition("\r\n")[0]
    assert line.split()[1] == str(status), context.gateway_answer


@then("its body and headers contain no key")
def _(context: Context) -> None:
    assert KEY not in context.gateway_answer and "sk-ant" not in context.gateway_answer
