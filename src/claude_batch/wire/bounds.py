"""How many tokens Messages params can come to at most: what a budget has to set aside for them.

No token is shorter than a byte, so text never has more tokens than bytes. What is more than its
bytes (a page of a PDF, a picture, what a server tool reads) has a bound of its own, and nothing is
longer than the longest context window: the API refuses it, and bills nothing.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, cast

import msgspec

__all__ = ["TokenBound", "Unbounded", "named_and_longest", "token_bound"]

LONGEST_WINDOW: Final = 1_000_000
"""Tokens of the longest context window that a model has ("Context windows")."""
IMAGE_TOKENS: Final = 5_000
"""One picture, of any size: the largest have 4,784 tokens ("Vision")."""
REQUEST_TOKENS: Final = 50
"""What the API writes around a request's own text, beside the JSON that stands around it here."""
TOOLS_TOKENS: Final = 1_500
"""The system prompt that goes with tools has at most 804 tokens ("Tool use", pricing)."""
OWN_TOOL_TOKENS: Final = 2_000
"""A client tool of Anthropic's is a name here, and a description of up to 1,234 tokens there."""
FORMAT_TOKENS: Final = 1_500
"""What the API says to the model about an output format."""
LOOP_STEPS: Final = 10
"""How often a server tool may have the model read its whole context in one turn."""

_UNBOUNDED = ("mcp_servers", "container", "fallbacks", "compaction", "thread")
_OWN_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
_READERS = ("web_search_", "web_fetch_")


class Unbounded(ValueError):
    """Nothing tells what this request may cost at most; the message says why."""


class TokenBound(NamedTuple):
    """What one request can come to at most."""

    model: str
    input: int
    output: int
    cache: Literal["5m", "1h"] | None
    """The longest life of what it may write to the prompt cache; None where it writes nothing."""
    searches: int
    """Web searches."""
    us_only: bool
    """Whether it may be charged as run in one country: unless the params say otherwise."""


_NONE: Final = msgspec.Raw(b"")


class _Params(msgspec.Struct, gc=False):
    model: str
    max_tokens: int
    tools: msgspec.Raw = _NONE
    mcp_servers: msgspec.Raw = _NONE
    container: msgspec.Raw = _NONE
    fallbacks: msgspec.Raw = _NONE
    compaction: msgspec.Raw = _NONE
    thread: msgspec.Raw = _NONE
    output_config: msgspec.Raw = _NONE
    inference_geo: str | None = None


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None
    max_uses: int | None = None


_params = msgspec.json.Decoder(_Params)
_tools = msgspec.json.Decoder(list[_Tool])


class _Named(msgspec.Struct, gc=False):
    model: str = ""
    max_tokens: int = 0


_named = msgspec.json.Decoder(_Named)


def named_and_longest(params: bytes) -> tuple[str, int]:
    """The model that encoded params ask, and their ``max_tokens``."""
    try:
        read = _named.decode(params)
    except msgspec.ValidationError:
        return "", 0
    return read.model, max(read.max_tokens, 0)


def token_bound(params: bytes) -> TokenBound:
    """The bound of encoded Messages params. Raises `Unbounded`."""
    try:
        read = _params.decode(params)
    except msgspec.ValidationError as error:
        raise Unbounded(f"the params cannot be read: {error}") from None
    for name in _UNBOUNDED:
        if _has(getattr(read, name)):
            raise Unbounded(f"what `{name}` reads and costs has no known bound")
    tokens, searches, steps = len(params) + REQUEST_TOKENS, 0, 1
    if _has(read.tools):
        more, searches, loops = _tools_bound(read.tools)
        tokens += more
        steps = LOOP_STEPS if loops else 1
    if _has(read.output_config):
        tokens += FORMAT_TOKENS
    # Inside of texts quotes are escaped: where there is no such name, there is no such block.
    if b'"source"' in params or b'"file_id"' in params:
        tokens += _media_bound(msgspec.json.decode(params))
    if steps > 1:
        tokens = LONGEST_WINDOW
    cache: Literal["5m", "1h"] | None = None
    if b'"cache_control"' in params:
        cache = "1h" if b'"1h"' in params else "5m"
    return TokenBound(
        read.model,
        min(tokens, LONGEST_WINDOW) * steps,
        max(read.max_tokens, 0),
        cache,
        searches,
        read.inference_geo in (None, "us"),
    )


def _has(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null", b"[]", b"{}")


def _tools_bound(raw: msgspec.Raw) -> tuple[int, int, bool]:
    """Tokens that tools add to their bytes, web searches, and whether they run at the API."""
    try:
        tools = _tools.decode(raw)
    except msgspec.ValidationError as error:
        raise Unbounded(f"its tools cannot be read: {error}") from None
    tokens, searches, loops = TOOLS_TOKENS, 0, False
    for tool in tools:
        kind = tool.type or "custom"
        if kind == "custom":
            continue
        if kind.startswith(_OWN_TOOLS):
            tokens += OWN_TOOL_TOKENS
        elif kind.startswith(_READERS):
            loops = True
            if kind.startswith("web_search_"):
                if tool.max_uses is None:
                    raise Unbounded(
                        f"the tool {kind} may search as often as it likes; give it `max_uses`"
                    )
                searches += tool.max_uses
        else:
            raise Unbounded(f"what the tool {kind} reads and costs has no known bound")
    return tokens, searches, loops


def _media_bound(value: object) -> int:
    """Tokens that pictures and documents have beyond their bytes."""
    if isinstance(value, list):
        return sum(map(_media_bound, cast("list[object]", value)))
    if not isinstance(value, dict):
        return 0
    block = cast("dict[str, object]", value)
    given = block.get("source")
    source = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    if block.get("type") == "image":
        # Its bytes say nothing of its tokens, and are no text.
        data = source.get("data")
        return IMAGE_TOKENS - (len(data) if isinstance(data, str) else 0)
    # A document that is no text, or a file that nobody here knows.
    unread = block.get("type") == "document" and source.get("type") not in ("text", "content")
    if unread or "file_id" in block:
        return LONGEST_WINDOW
    return sum(map(_media_bound, block.values()))
