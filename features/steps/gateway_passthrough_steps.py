"""Steps for what the gateway passes to the API, with the official SDK as its client."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import anthropic
from behave import then, when
from behave.runner import Context
from gateway_steps import connect
from sdk_calls import field_of, make
from staging import KEY
from tables import rule


@rule("the official SDK's calls of the gateway return")
def _(context: Context, call: str, arguments: str, field: str) -> Any:
    """A field of what a call with ann's token returns.

    `{file}` and `{batch}` are the last ones, and `{first batch}` is the first.
    """
    if "gateway_names" not in context:
        context.gateway_names = {"{gateway}": context.gateway.url}
    names: dict[str, str] = context.gateway_names
    for name, value in names.items():
        arguments = arguments.replace(name, value)
    token = context.gateway_tokens["ann"]
    with anthropic.Anthropic(base_url=context.gateway.url, api_key=token, max_retries=0) as client:
        returned = make(client, call, arguments)
        found = field_of(returned, field)
    for ending, name in (("files.upload", "{file}"), ("batches.create", "{batch}")):
        if call.endswith(ending) and hasattr(returned, "id"):
            names[name] = returned.id
            names.setdefault(name.replace("{", "{first "), returned.id)
    for name, value in names.items():
        found = found.replace(value, name) if isinstance(found, str) else found
    return found


@then("the API has seen no call")
def _(context: Context) -> None:
    # But the gateway's own look at its workspace, when it starts.
    seen = [each for each in context.api.log() if each["query"] != "limit=1"]
    assert not seen, seen


@when('the gateway gets "{method} {path}" as written')
def _(context: Context, method: str, path: str) -> None:
    """By a socket, because clients normalise paths."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: {urlsplit(context.gateway.url).netloc}",
        f"x-api-key: {context.gateway_tokens['ann']}",
        "content-length: 2",
        "connection: close",
    ]
    with connect(context) as connection:
        connection.sendall("\r\n".join([*lines, "", "{}"]).encode())
        context.gateway_answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@then("the gateway's response is {status:d}, and contains no key")
def _(context: Context, status: int) -> None:
    line = context.gateway_answer.partition("\r\n")[0]
    assert line.split()[1] == str(status), context.gateway_answer
    assert KEY not in context.gateway_answer and "sk-ant" not in context.gateway_answer
