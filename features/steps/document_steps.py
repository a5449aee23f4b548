"""Steps of documents: what they become, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tracemalloc
from typing import Any
from unittest import mock

import papers
from behave import given, then, use_step_matcher
from behave.runner import Context
from sqlalchemy import select
from staging import ledger_values, until
from tables import rule

import claude_batch as cb
from claude_batch.actor import documents as document_module
from claude_batch.actor.docx import markdown_of
from claude_batch.actor.inputs import Inputs
from claude_batch.actor.loader import ActorLoader
from claude_batch.actor.request import RequestEncoder
from claude_batch.ledger.schema import params

use_step_matcher("parse")


_DRAWN = (
    ("a", "http://schemas.openxmlformats.org/drawingml/2006/main"),
    ("pic", "http://schemas.openxmlformats.org/drawingml/2006/picture"),
    ("r", "http://schemas.openxmlformats.org/officeDocument/2006/relationships"),
    ("w", "http://schemas.openxmlformats.org/wordprocessingml/2006/main"),
    ("wp", "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"),
)
PICTURED = (
    "<w:document "
    + " ".join(f'xmlns:{name}="{uri}"' for name, uri in _DRAWN)
    + "><w:body><w:p><w:r><w:t>Before</w:t><w:drawing><wp:inline><a:graphic><a:graphicData>"
    "<pic:pic><pic:blipFill>"
    '<a:blip r:embed="r1"/></pic:blipFill></pic:pic></a:graphicData></a:graphic></wp:inline>'
    "</w:drawing><w:t>after</w:t></w:r></w:p></w:body></w:document>"
)
_W = _DRAWN[3][1]


def _paragraph(text: str, style: str = "", level: int | None = None) -> str:
    about = f'<w:pStyle w:val="{style}"/>' if style else ""
    if level is not None:
        about += f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="1"/></w:numPr>'
    return f"<w:p><w:pPr>{about}</w:pPr><w:r><w:rPr><w:b/></w:rPr><w:t>{text}</w:t></w:r></w:p>"


def _row(*cells: str) -> str:
    return "<w:tr>" + "".join(f"<w:tc>{_paragraph(each)}</w:tc>" for each in cells) + "</w:tr>"


REPORT = (
    f'<w:document xmlns:w="{_W}"><w:body>'
    + _paragraph("Invoice 17", "Heading1")
    + _paragraph("Billed to ACME &lt;Ltd&gt; &amp; Sons.")
    + _paragraph("Positions", "Heading2")
    + f"<w:tbl>{_row('Item', 'Price')}{_row('Rope | 10 m', '86.20')}</w:tbl>"
    + _paragraph("Paid", level=0)
    + _paragraph("In cash", level=1)
    + _paragraph("Shipped", level=0)
    + "</w:body></w:document>"
)
DOCX: dict[str, tuple[str, tuple[str, ...], str | None]] = {
    "hello": ("Hello", ("Total", "86.20"), None),
    "empty": ("", (), None),
    "cut short": ("Hello", (), None),
    "broken": ("", (), "<w:document>"),
    "pictured": ("", (), PICTURED),
    "report": ("", (), REPORT),
}


def made(content: str) -> bytes:
    kind, _, rest = content.partition(" ")
    if kind == "text":
        return rest.encode()
    if kind == "hex":
        return bytes.fromhex(rest)
    if kind == "xlsx":
        return papers.packed_files({"xl/workbook.xml": "<workbook/>"})
    if kind == "password":
        return papers.with_password()
    if kind == "docx":
        whole = papers.docx(*DOCX[rest][:2], body=DOCX[rest][2])
        return whole[: len(whole) // 2] if rest == "cut short" else whole
    words = {word.strip() for word in content.split(",")}
    if kind.startswith("pdf"):
        pages = re.search(r"of (\d+) pages", content)
        whole = papers.pdf(
            "Hello",
            pages=int(pages[1]) if pages else 1,
            encrypted="encrypted" in words,
            packed="packed" in words,
        )
        front = {"pdf behind a line": b"From: a\r\n", "pdf behind a byte": b"\0"}.get(content, b"")
        return whole[: len(whole) // 2] if "cut short" in words else front + whole
    width, height = re.findall(r"\d+", rest)
    return papers.image(kind, int(width), int(height))


@given("the documents")
def _(context: Context) -> None:
    for row in context.table:
        path = context.tmp / row["file"].replace("\\udcff", "\udcff")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made(row["content"]))


@then("the API was asked about these documents")
def _(context: Context) -> None:
    # All were sent: what the ledger holds of them is what left, byte for byte.
    until(lambda: context.api.billing_summary()["requests"])
    found: list[tuple[str, str, str]] = []
    for body in ledger_values(select(params.c.body).order_by(params.c.request_seq)):
        block, *texts = json.loads(body)["messages"][0]["content"]
        prompt = "".join(text["text"] for text in texts)
        found.append((block["type"], block["source"]["media_type"], prompt))
    assert found == [tuple(row) for row in context.table], found


@then("the command line holds no more than {most:d} MB while it reads {count:d} documents of 1 MB")
def _(context: Context, most: int, count: int) -> None:
    for number in range(count):
        path = context.tmp / f"long-{number:03}.pdf"
        path.write_bytes(papers.pdf(f"Page {number}", ballast=1_000_000))
    encoder = RequestEncoder(cb.ActorConfiguration(model="claude-haiku-4-5"))
    tracemalloc.start()
    try:
        read = sum(
            len(encoder.encode(request).params) > 1_000_000
            for request in Inputs(["long-*.pdf"], prompt="What is due?")
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == count and peak < most * 1_000_000, (read, peak)


def encoded(context: Context, request: cb.ActorRequest) -> list[dict[str, Any]]:
    with contextlib.chdir(context.tmp):
        return json.loads(RequestEncoder(context.actor).encode(request).params)["messages"]


@then('the document "{name}" becomes a text')
def _(context: Context, name: str) -> None:
    [message] = encoded(context, cb.ActorRequest("What is it?", documents=[name]))
    assert message["content"][0] == {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": context.text},
        "title": name,
    }


@rule("documents become blocks")
def _(context: Context, document: str) -> dict[str, Any]:
    """Data in base64 is written as `base64`."""
    given_as = json.loads(document) if document.startswith("{") else document
    [message] = encoded(context, cb.ActorRequest("What is it?", documents=[given_as]))
    block, text = message["content"]
    assert text == {"type": "text", "text": "What is it?"}, text
    if block["source"]["type"] == "base64":
        assert len(block["source"].pop("data")) > 20, block
    return {name: block.get(name) for name in ("type", "source", "title", "context")}


@then('the document "{name}" is refused with "{text}"')
def _(context: Context, name: str, text: str) -> None:
    try:
        encoded(context, cb.ActorRequest("a", documents=[name], key="k"))
    except cb.InvalidRequestError as error:
        assert text in str(error) and error.key == "k", error
    else:
        raise AssertionError("it was encoded")


def _documents(words: str) -> Any:
    """Documents as JSON, in which {"bytes": …} are bytes, or such as `2 PDFs of 51 pages`."""
    if words[0] in '["':
        hook = lambda each: each["bytes"].encode() if "bytes" in each else each  # noqa: E731
        return json.loads(words, object_hook=hook)
    count, *numbers = map(int, re.findall(r"\d+", words))
    if "PDFs" in words:
        return [papers.pdf("Hello", pages=numbers[0])] * count
    return [papers.image("png", *numbers)] * count


@rule("requests about documents are encoded")
def _(context: Context, documents: str, model: str = "m") -> list[str]:
    context.actor = context.actor.model_copy(update={"model": model})
    try:
        request = cb.ActorRequest("a", documents=_documents(documents), key="k")
        [message] = encoded(context, request)
    except cb.InvalidRequestError as error:
        assert error.key == "k", error
        raise
    *blocks, prompt = message["content"]
    assert prompt == {"type": "text", "text": "a"}, prompt
    return [block["source"]["type"] for block in blocks]


@then('the document "{name}" is read once for {count:d} requests, and again when it has changed')
def _(context: Context, name: str, count: int) -> None:
    document_module._read.cache_clear()
    path = context.tmp / name
    for number in range(count):
        encoded(context, cb.ActorRequest(f"{number}", documents=[path]))
    assert document_module._read.cache_info().misses == 1
    path.write_text("# Other notes")
    os.utime(path, ns=(1, 1))
    [message] = encoded(context, cb.ActorRequest("a", documents=[path]))
    assert message["content"][0]["source"]["data"] == "# Other notes"


@then(
    'two documents "{name}" of equal size and time, in two folders, are not mistaken for each other'
)
def _(context: Context, name: str) -> None:
    for words in ("one", "two"):
        folder = context.tmp / words
        folder.mkdir()
        (folder / name).write_text(words)
        os.utime(folder / name, ns=(1, 1))
        with contextlib.chdir(folder):
            request = cb.ActorRequest("a", documents=[name])
            params = json.loads(RequestEncoder(context.actor).encode(request).params)
        block = params["messages"][0]["content"][0]
        assert block["source"]["data"] == words, block


@rule("HTML becomes Markdown")
def _(html: str) -> str:
    return json.dumps(markdown_of(json.loads(html)))


@given('a file "{name}" of {size:d} bytes, which must not be read')
def _(context: Context, name: str, size: int) -> None:
    with (context.tmp / name).open("wb") as stream:
        stream.truncate(size)
    unread = mock.patch.object(document_module, "_read", side_effect=AssertionError("it was read"))
    unread.start()
    context.add_cleanup(unread.stop)


@then("a request of {request} to that actor is about")
def _(context: Context, request: str) -> None:
    actor = ActorLoader.load(context.actor_file)
    asked = json.loads(request)
    with contextlib.chdir(context.tmp):
        body = json.loads(RequestEncoder(actor).encode(asked).params)
    content = body["messages"][0]["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    found = [
        {
            "title": block.get("title") or block.get("text", ""),
            "cited": str(block.get("citations", {}).get("enabled", False)).lower(),
        }
        for block in blocks
    ]
    assert found == [row.as_dict() for row in context.table], found
