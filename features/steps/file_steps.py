"""Steps of uploaded files: the sandbox's, and those of runs."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from behave import given, then, use_step_matcher, when
from behave.runner import Context
from sandbox_steps import HOUR, MODEL, call, create, end, results, sdk, start

use_step_matcher("parse")


@given("a running sandbox of files")
def _(context: Context) -> None:
    start(context, workspaces={"sk-other": "wrkspc_other"}, latency=HOUR)


@when('the SDK uploads "{name}" of type "{kind}" with "{text}"')
def _(context: Context, name: str, kind: str, text: str) -> None:
    context.file = sdk(context).files.upload(file=(name, text.encode(), kind))


@when("the SDK uploads {count:d} files")
def _(context: Context, count: int) -> None:
    for number in range(count):
        sdk(context).files.upload(file=(f"{number}.txt", b"x", "text/plain"))


@then('the SDK retrieves it as "{name}" of type "{kind}" and {size:d} bytes')
def _(context: Context, name: str, kind: str, size: int) -> None:
    found = sdk(context).files.retrieve_metadata(context.file.id)
    assert (found.filename, found.mime_type, found.size_bytes) == (name, kind, size), found


@then("the SDK lists it, by its id too")
def _(context: Context) -> None:
    client = sdk(context)
    assert [each.id for each in client.files.list()] == [context.file.id]
    found = client.files.list(ids=["file_none", context.file.id])
    assert [each.id for each in found] == [context.file.id]


@then("another key's workspace does not find it")
def _(context: Context) -> None:
    client = sdk(context, key="sk-other")
    assert not list(client.files.list())
    try:
        client.files.retrieve_metadata(context.file.id)
    except anthropic.NotFoundError:
        return
    raise AssertionError("another workspace sees the file")


@when("the SDK deletes the file")
def _(context: Context) -> None:
    assert sdk(context).files.delete(context.file.id).id == context.file.id


@then("the SDK does not find it any more")
def _(context: Context) -> None:
    client = sdk(context)
    assert not list(client.files.list())
    for again in (client.files.retrieve_metadata, client.files.delete):
        try:
            again(context.file.id)
        except anthropic.NotFoundError as error:
            assert "File not found" in str(error), error
        else:
            raise AssertionError("a deleted file is found")


@then("the SDK lists {count:d} files by pages of {limit:d}, newest first")
def _(context: Context, count: int, limit: int) -> None:
    names = [each.filename for each in sdk(context).files.list(limit=limit)]
    assert names == [f"{number}.txt" for number in reversed(range(count))], names


def about(file_id: str, kind: str = "document", *, cited: bool = False) -> dict[str, Any]:
    block: dict[str, Any] = {"type": kind, "source": {"type": "file", "file_id": file_id}}
    if cited:
        block |= {"title": "Notes", "citations": {"enabled": True}}
    content = [block, {"type": "text", "text": "How is it?"}]
    return {
        "model": MODEL,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": content}],
    }


@when("a batch about the file is processed, cited")
def _(context: Context) -> None:
    create(context, [{"custom_id": "a", "params": about(context.file.id, cited=True)}])
    end(context)
    call(context, "GET", "/v1/messages/batches")  # whoever looks first has it processed


@when("a batch about {which} is processed as {kind}")
def _(context: Context, which: str, kind: str) -> None:
    file_id = context.file.id if which == "the file" else which.strip('"')
    create(context, [{"custom_id": "a", "params": about(file_id, kind)}])
    end(context)


@then('its answer cites "{text}" of the file')
def _(context: Context, text: str) -> None:
    message = results(context)["a"]["message"]
    [citation] = [c for block in message["content"] for c in block.get("citations") or []]
    assert (citation["cited_text"], citation["file_id"]) == (text, context.file.id), citation


@then('its line is an error "{kind}" that says "{text}"')
def _(context: Context, kind: str, text: str) -> None:
    error = results(context)["a"]["error"]["error"]
    assert error["type"] == kind and text in error["message"], error


@when('a form of "{kind}" with "{body}" is posted to the files')
def _(context: Context, kind: str, body: str) -> None:
    sent = body.replace("~", "\r\n").encode()
    call(context, "POST", "/v1/files", sent, headers={"content-type": kind})


@then('the files answer {status:d} and "{text}"')
def _(context: Context, status: int, text: str) -> None:
    answer = context.sandbox_answer
    assert answer.status_code == status and text in answer.text, answer.text


@then('version "{version}" without the beta is refused, and with it is not')
def _(context: Context, version: str) -> None:
    headers = {"anthropic-version": version}
    call(context, "GET", "/v1/files", headers=headers)
    assert context.sandbox_answer.status_code == 400, context.sandbox_answer.text
    assert "files-api-2025-04-14" in context.sandbox_answer.text
    headers["anthropic-beta"] = "files-api-2025-04-14"
    call(context, "GET", "/v1/files", headers=headers)
    assert json.loads(context.sandbox_answer.text)["data"] == []


@then("a list of {count:d} ids is refused, and so is a limit of {limit:d}")
def _(context: Context, count: int, limit: int) -> None:
    asked = "&".join(f"ids={number}" for number in range(count))
    for query in (asked, f"limit={limit}"):
        call(context, "GET", f"/v1/files?{query}")
        assert context.sandbox_answer.status_code == 400, context.sandbox_answer.text
