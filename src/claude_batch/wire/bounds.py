"""Upper bounds on the tokens of Messages params, which a budget reserves for them.

No token is shorter than a byte, so text never has more tokens than bytes. A PDF is bounded by its
pages and their text (`wire.pdfs`), an image by its pixels, and an uploaded file by what was found
when it was uploaded. If nothing is known (a URL, an unreadable PDF, the input of a server tool),
the bound is the longest context window: the API refuses anything longer, and bills nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from claude_batch.wire.media import IMAGE_TYPES, media_of
from claude_batch.wire.pdfs import pdf_tokens

LONGEST_WINDOW: Final = 1_000_000
"""Tokens of the longest context window of any model ("Context windows")."""
IMAGE_TOKENS: Final = 5_000
"""Most tokens of one image of any size.

Models with high resolution use at most 4,784 tokens for an image, others at most 1,600 ("Vision").
The API shrinks larger images."""
_PATCH, _PIXELS_PER_TOKEN = 28, 750
"""An image has a token for each patch of 28 by 28 pixels.

By an older rule it has one for 750 pixels ("Vision"). The bound is the larger of both plus a tenth.
"""
_HEAD: Final = 1 << 18
"""Characters of an image's base64 that are searched for its size."""
REQUEST_TOKENS: Final = 50
"""Tokens that the API adds around a request's own text, beside the JSON that surrounds it here."""
TOOLS_TOKENS: Final = 1_500
"""Tokens of the system prompt that comes with tools: at most 804 ("Tool use", pricing)."""
OWN_TOOL_TOKENS: Final = 2_000
"""Tokens of a client tool of Anthropic's.

Here it is only a name; at the API it has a description of up to 1,234 tokens."""
FORMAT_TOKENS: Final = 1_500
"""Tokens of the API's instructions to the model about an output format."""
LOOP_STEPS: Final = 10
"""Number of times that a server tool may make the model read its whole context in one turn."""

_UNBOUNDED = ("mcp_servers", "container", "fallbacks", "compaction", "thread")
_OWN_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
_READERS = ("web_search_", "web_fetch_")


FileTokens: TypeAlias = Callable[[str], int | None]
"""Returns the most tokens that an uploaded file can come to, by its id; `None` if not known."""


class Unbounded(ValueError):
    """The cost of this request has no known bound; the message contains the reason."""


class TokenBound(NamedTuple):
    """Upper bounds on one request."""

    model: str
    input: int
    output: int
    cache: Literal["5m", "1h"] | None
    """Longest lifetime of its prompt cache writes, or `None` if it writes nothing."""
    searches: int
    """Number of web searches."""
    us_only: bool
    """Whether it may be charged as run in one country; true unless the params exclude it."""
    media: MediaBound
    """The part of the input that is images and PDFs with their own bounds."""


class MediaBound(NamedTuple):
    """The part of params that is images and PDFs."""

    size: int
    """Bytes of the params that are their base64."""
    tokens: int
    """Upper bound on their tokens."""
    unknown: bool
    """Whether nothing is known about one of them."""


_NO_MEDIA: Final = MediaBound(0, 0, False)


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
    """Return the model that encoded params name, and their ``max_tokens``."""
    try:
        read = _named.decode(params)
    except msgspec.ValidationError:
        return "", 0
    return read.model, max(read.max_tokens, 0)


def token_bound(params: bytes, files: FileTokens | None = None) -> TokenBound:
    """Return the bound of encoded Messages params. Raises `Unbounded`.

    ``files`` returns the tokens of uploaded files.
    """
    try:
        read = _params.decode(params)
    except msgspec.ValidationError as error:
        raise Unbounded(f"the params cannot be read: {error}") from None
    for name in _UNBOUNDED:
        if _has(getattr(read, name)):
            raise Unbounded(f"the tokens and cost of `{name}` have no known bound")
    tokens, searches, steps = len(params) + REQUEST_TOKENS, 0, 1
    if _has(read.tools):
        more, searches, loops = _tools_bound(read.tools)
        tokens += more
        steps = LOOP_STEPS if loops else 1
    if _has(read.output_config):
        tokens += FORMAT_TOKENS
    media = _NO_MEDIA
    # Quotes inside texts are escaped, so without such a name there is no such block.
    if b'"source"' in params or b'"file_id"' in params:
        media = _media_bound(msgspec.json.decode(params), files)
        tokens += media.tokens - media.size
    if steps > 1 or media.unknown:
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
        media,
    )


def _has(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null", b"[]", b"{}")


def _tools_bound(raw: msgspec.Raw) -> tuple[int, int, bool]:
    """Return the tokens that tools add to their bytes, the web searches, and whether tools loop.

    Tools that run at the API make the model read its context several times.
    """
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
                    raise Unbounded(f"the tool {kind} may search without limit; set its `max_uses`")
                searches += tool.max_uses
        else:
            raise Unbounded(f"the tokens and cost of the tool {kind} have no known bound")
    return tokens, searches, loops


def _media_bound(value: object, files: FileTokens | None) -> MediaBound:
    """Return what images and documents add beyond their bytes."""
    size = tokens = 0
    unknown = False
    waiting: list[object] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += cast("list[object]", found)
        if not isinstance(found, dict):
            continue
        block = cast("dict[str, object]", found)
        given = block.get("source")
        source = cast("dict[str, object]", given) if isinstance(given, dict) else {}
        kind, way = block.get("type"), source.get("type")
        if kind not in ("image", "document") or way in ("text", "content"):
            # The number of reads of a file in a container is unknown.
            unknown = unknown or "file_id" in block
            waiting += block.values()
            continue
        data = source.get("data")
        if way == "base64" and isinstance(data, str):
            # Its title and context are text, and stay counted as bytes.
            bound = _written_bound(str(source.get("media_type")), data)
            size += len(data)
        else:
            file_id = source.get("file_id")
            bound = files(file_id) if files is not None and isinstance(file_id, str) else None
        if bound is None and kind == "image":
            bound = IMAGE_TOKENS
        tokens += bound or 0
        unknown = unknown or bound is None
    return MediaBound(size, tokens, unknown)


_REMEMBERED: Final = 1024
_bounds: OrderedDict[bytes, int | None] = OrderedDict()
"""Bounds of the most recent PDFs by digest.

Many requests contain the same PDF, and each is reserved more than once. At worst, two threads
compute the same bound."""


def _written_bound(media_type: str, data: str) -> int | None:
    """Return the bound of an image or a PDF in base64."""
    try:
        if media_type != "application/pdf":
            return _image_bound(base64.b64decode(data[:_HEAD]))
        digest = sha256(data.encode("ascii")).digest()
        if digest in _bounds:
            return _bounds[digest]
        bound = pdf_tokens(base64.b64decode(data))
    except (binascii.Error, UnicodeEncodeError):
        return None
    _bounds[digest] = bound
    while len(_bounds) > _REMEMBERED:
        _bounds.popitem(last=False)
    return bound


def _image_bound(data: bytes) -> int:
    try:
        size = media_of(data).size if data else None
    except ValueError:
        size = None
    if size is None:
        return IMAGE_TOKENS
    width, height = size
    patches = -(-width // _PATCH) * -(-height // _PATCH)
    tokens = max(patches, -(-width * height // _PIXELS_PER_TOKEN))
    return min(tokens + tokens // 10 + 10, IMAGE_TOKENS)


def content_bound(media_type: str, data: bytes) -> int | None:
    """Return the most tokens that a file's content can have; `None` if that is not known."""
    if media_type == "application/pdf":
        return pdf_tokens(data)
    return _image_bound(data) if media_type in IMAGE_TYPES else len(data)
