"""Steps of what encoded params come to at most, are marked for, and hold."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import papers
import parse
from behave import register_type, then, use_step_matcher
from behave.runner import Context
from tables import rule

from claude_batch.wire import bounds, encoding
from claude_batch.wire.bounds import (
    TokenBound,
    content_bound,
    token_bound,
)
from claude_batch.wire.caching import marked_prefix
from claude_batch.wire.conversation import schema_problem
from claude_batch.wire.encoding import PromptParams, asked_of, encode_params
from claude_batch.wire.inbound import Redaction
from claude_batch.wire.media import media_of
from claude_batch.wire.messages import UnreadableLine, decode_line, error_of_line

use_step_matcher("parse")


@parse.with_pattern(r"\{.*\}")
def _object(text: str) -> Any:
    return json.loads(text)


register_type(Object=_object)

BASE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 10,
    "messages": [{"role": "user", "content": "hello"}],
}


def _encoded(more: dict[str, Any]) -> bytes:
    return msgspec.json.encode({**BASE, **more})


def _bound(more: dict[str, Any]) -> TokenBound:
    found = token_bound(_encoded(more))
    assert found.model == more.get("model", "m") and found.output >= 10, found
    return found


@rule("params come to more than their bytes, in tokens,")
def _(params: dict[str, Any]) -> dict[str, int]:
    found = _bound(params)
    assert found.searches == 0, found
    return {"more_tokens": found.input - len(_encoded(params))}


@rule("params come to tokens and searches")
def _(params: dict[str, Any]) -> dict[str, int]:
    found = _bound(params)
    return {"tokens": found.input, "searches": found.searches}


@rule("params of at most 10 tokens of an answer may write")
def _(params: dict[str, Any]) -> int:
    return _bound(params).output


def _document(kind: str) -> tuple[str, bytes]:
    """A document's type and bytes, by the words that describe it."""
    words = kind.split()
    if words[0] == "PDF":
        if kind == "PDF cut short":
            return "application/pdf", papers.pdf("hello")[:-100]
        if words[1] == "with":
            return "application/pdf", papers.elaborate_pdf(kind.removeprefix("PDF with "))
        text = "x" * int(words[6]) if "letters" in words else "hello"
        encrypted, packed = "encrypted" in words, "packed" in words
        made = papers.pdf(text, pages=int(words[2]), encrypted=encrypted, packed=packed)
        return "application/pdf", made
    width, height = int(words[2]), int(words[4])
    return f"image/{words[0]}", papers.image(words[0], width, height)


def _about(media_type: str, source: dict[str, Any]) -> dict[str, Any]:
    kind = "image" if media_type.startswith("image/") else "document"
    block = {"type": kind, "source": {"media_type": media_type, **source}}
    return {"messages": [{"role": "user", "content": [block]}]}


@rule("documents and images come to tokens")
def _(document: str) -> int | None:
    """The tokens, or `None` if it may fill a model's whole window."""
    media_type, data = _document(document)
    known = content_bound(media_type, data)
    written = base64.b64encode(data).decode()
    more = _about(media_type, {"type": "base64", "data": written})
    # The second time it is remembered.
    for _ in range(2):
        found = _bound(more)
        text = len(_encoded(more)) - len(written) + bounds.REQUEST_TOKENS
        assert found.input == (1_000_000 if known is None else text + known), (found, text)
    # What an uploaded file holds was found out before, and is asked for by the file's id.
    asked: list[str] = []
    named = _about(media_type, {"type": "file", "file_id": "file_1"})
    found = token_bound(_encoded(named), lambda name: asked.append(name) or known)
    expected = len(_encoded(named)) + bounds.REQUEST_TOKENS + (known or 0)
    assert asked == ["file_1"] and found.input == (expected if known else 1_000_000), found
    return known


@rule("bounds of PDFs are remembered")
def _(pdfs: int) -> int:
    bounds._bounds.clear()
    for pages in range(1, pdfs + 1):
        written = base64.b64encode(papers.pdf("one more", pages=pages)).decode()
        _bound(_about("application/pdf", {"type": "base64", "data": written}))
    return len(bounds._bounds)


@rule("params may be written to a cache, and be charged as run in one country,")
def _(params: dict[str, Any]) -> TokenBound:
    return _bound(params)


@rule("the model and the longest answer are read")
def _(params: dict[str, Any]) -> dict[str, object]:
    model, longest = asked_of(_encoded(params), unchecked=True)
    return {"model": model, "longest": longest}


@rule("of system, tools and three blocks of a message so many are marked,")
def _(params: dict[str, Any]) -> dict[str, object]:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": each} for each in "abc"]}
    ]
    found = marked_prefix(_encoded({**params, "messages": messages}))
    if found is None:
        return {"blocks": 0, "hour": False}
    system = params.get("system")
    parts = [
        *params.get("tools", []),
        *(each for each in (system if isinstance(system, list) else []) if isinstance(each, dict)),
        *({"role": "user", **each} for each in messages[0]["content"]),
    ]
    sizes = [len(msgspec.json.encode(["m", parts[:count]])) for count in range(len(parts) + 1)]
    return {"blocks": sizes.index(found.size), "hour": found.hour}


# Answers in JSON


@rule("an answer in JSON is wrong")
def _(text: str, reason: str, schema: dict[str, Any]) -> str | None:
    params = _encoded({"output_config": {"format": {"type": "json_schema", "schema": schema}}})
    block = {"type": "text", "text": text}
    return schema_problem(params, msgspec.json.encode({"stop_reason": reason, "content": [block]}))


@rule("result lines are read")
def _(result: str) -> dict[str, Any]:
    # In cells, USAGE is a plausible usage, and TEXT the rest of an answer.
    usage = '"usage": {"input_tokens": 1, "output_tokens": 2}'
    body = result.replace("USAGE", usage).replace(
        "TEXT", '"content": [{"type": "text", "text": ""}]'
    )
    body = body.replace("BROKEN", '"\udcff"').replace("DEEP", "[" * 101 + "]" * 101)
    line = b'{"custom_id": "a", "result": %b}' % body.encode(errors="surrogateescape")
    try:
        found = decode_line(line)
    except UnreadableLine:
        return {"outcome": "unreadable", "asks_for": None, "error_type": None, "tokens": None}
    if found.error is not None:
        sent = json.loads(error_of_line(line))["error"]
        assert sent["type"] == found.error.type, sent
        assert (sent["message"] or "") == found.error.message, sent
    return {
        "outcome": found.outcome,
        "asks_for": str(found.disposition),
        "error_type": found.error.type if found.error else None,
        "tokens": f"{found.usage.input_tokens}+{found.usage.output_tokens}"
        if found.usage
        else None,
    }


# Images and PDFs


@rule("bytes are recognised")
def _(hex: str) -> dict[str, object]:
    found = media_of(bytes.fromhex(hex))
    return {"type": found.type, "size": found.size or "unknown"}


@rule("the pages of a PDF are counted")
def _(pdf: str) -> int | None:
    return media_of(f"%PDF-1.7\n{pdf}\n%%EOF".encode()).pages


# The prompt cache, and encoding


@rule("prompts are encoded as an actor's others are,")
def _(bytes: int) -> dict[str, int]:
    prompts = PromptParams(
        lambda text: {
            **BASE,
            "model": "claude-haiku-4-5",
            "messages": [{"role": "user", "content": text}],
        }
    )
    return {"params": len(prompts.encode("x" * bytes).params)}


@rule("headers of user profiles are kept")
def _(profiles: int) -> dict[str, object]:
    params = {**BASE, "model": "claude-haiku-4-5"}
    names = [f"profile_{number}" for number in range(profiles)]
    found = [encode_params(params, user_profile=name).headers.user_profile for name in names]
    return {
        "with_their_own_headers": sum(map(str.__eq__, found, names)),
        "within_the_limit": encoding._headers.cache_info().currsize <= 1000,
    }


@rule("a body that comes in pieces is masked")
def _(body: str, bytes_a_piece: int) -> dict[str, str]:
    """KEY in a body is a key."""
    key = "sk-ant-" + "0123456789" * 4
    whole = body.replace("KEY", key).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), bytes_a_piece):
            yield whole[start : start + bytes_a_piece]

    async def masked() -> bytes:
        return b"".join([piece async for piece in Redaction([key]).answers(pieces())])

    return {"arrives": asyncio.run(masked()).decode()}


@then("the first words of a body that is cut within a key hold no part of the key")
def _(_: Context) -> None:
    key = "sk-ant-" + "0123456789" * 4
    blanks = " " * (2000 + 4 * len(key) - 20)
    words = Redaction([key]).first_words(f"{blanks}x {key}{key}".encode())
    assert words.strip() == "x", words
