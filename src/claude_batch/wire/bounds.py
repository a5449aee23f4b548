"""Upper bounds on the tokens of Messages params, which a budget reserves for them.

No token is shorter than a byte, so text never has more tokens than bytes. A PDF is bounded by its
pages and their text, an image by its pixels, and an uploaded file by what was found when it was
uploaded. If nothing is known (a URL, an unreadable PDF, the input of a server tool), the bound is
the model's context window: the API refuses anything longer, and bills nothing.

The API gives the model each page of a PDF twice: as an image, and as its extracted text
(https://platform.claude.com/docs/en/build-with-claude/pdf-support: "1,500 to 3,000 tokens per page
depending on content density", and the image on top of it). The documented figure is typical, not a
limit, so here it is only the minimum. The text itself is bounded by what the page shows. Text is
shown by the strings of its content streams, a code in them is a byte or more, and no token is
shorter than a byte of the text's UTF-8.

pypdf finds the pages, because their content depends on the whole file (inherited resources, object
streams, shared forms). It runs in a process of its own (`claude_batch.core.limited`), which the
first PDF starts. Streams are unpacked one by one and within limits. A file that exceeds a limit, or
cannot be read, has no known bound.
"""

from __future__ import annotations

import base64
import io
import logging
import math
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from claude_batch.core.limited import NotStarted, run_limited
from claude_batch.wire.inbound import mapping_or_none
from claude_batch.wire.limits import longest_window
from claude_batch.wire.media import IMAGE_TYPES, media_of

# PDFs ---------------------------------------------------------------------------------------------

PAGE_IMAGE_TOKENS: Final = 5_000
"""Most tokens of the image of one page.

Models with high resolution use at most 4,784 tokens for an image, others at most 1,600
(https://platform.claude.com/docs/en/build-with-claude/vision)."""
PAGE_TEXT_TOKENS: Final = 4_500
"""Fewest tokens that are reserved for the text of a page.

This is the documented 3,000, and half as much again for text outside of content streams (labels of
images, comments)."""

MOST_UNPACKED: Final = 64_000_000
"""Most bytes of all unpacked streams together."""
MOST_OF_A_STREAM: Final = 16_000_000
"""Most bytes of one unpacked stream."""
SECONDS: Final = 10.0
"""Most seconds of processor time for a PDF."""
_DEEPEST: Final = 20
"""Deepest nesting of forms."""

_BYTES_PER_UNIT: Final = 3
"""Most UTF-8 bytes of a UTF-16 unit of text."""
_BETWEEN: Final = 2
"""Bytes that an extractor may put between two strings: a space, or a line break."""

_SPECIAL: Final = re.compile(rb"[()]|<(?!<)[^<>()]*>")
_ESCAPED: Final = re.compile(rb"\\[\s\S]")
_HEX: Final = re.compile(rb"[0-9A-Fa-f\s]*")
_DRAWN: Final = re.compile(rb"/([^\s()<>\[\]{}/%]*)\s*Do\b")
_MARKED: Final = re.compile(rb"/([^\s()<>\[\]{}/%]*)\s*BDC\b")
_HEX_IN_NAME: Final = re.compile(rb"#([0-9A-Fa-f]{2})")
_MAPPED: Final = re.compile(rb"<([0-9A-Fa-f\s]+)>")
_REPLACED: Final = re.compile(rb"/ActualText\s*(?:\((?:[^()\\]|\\[\s\S])*\)|<[0-9A-Fa-f\s]*>)")
_GLYPH: Final = re.compile(r"/uni((?:[0-9A-Fa-f]{4})+)")

# Any part of a PDF may be invalid, and pypdf then raises whatever its code runs into.
_UNREADABLE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError),
    *(OSError, RecursionError, TypeError, ValueError, zlib.error),
)


class _TooMuch(Exception):
    """The PDF has more content than is examined."""


def pdf_tokens(data: bytes) -> int | None:
    """Return the most input tokens that a PDF can have; `None` if that is not known.

    It is unknown for a file that is encrypted or unreadable, or has more content than is examined.
    The file is read in a process with bounded time and memory, because a small file can keep a
    parser busy for hours. Raises `NotStarted` if there is no process now.
    """
    try:
        count = run_limited(f"{__name__}:count_tokens", data, seconds=SECONDS)
    except NotStarted:
        raise
    except ValueError:
        return None
    return int(count) if count else None


def count_tokens(data: bytes) -> bytes:
    """Return `pdf_tokens` as digits, without process limits; empty for `None`."""
    from pypdf import apply_configuration
    from pypdf.errors import DependencyError, PyPdfError

    # Its warnings are about repairs, which are irrelevant here.
    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    limits = dict.fromkeys(
        (
            "zlib_maximum_output_length",
            "lzw_maximum_output_length",
            "run_length_maximum_output_length",
            "brotli_maximum_output_length",
            "array_based_stream_maximum_output_length",
        ),
        MOST_OF_A_STREAM,
    )
    try:
        with apply_configuration(**limits, stream_decoding_work_maximum_length=MOST_UNPACKED):
            found = _Document(data).tokens()
    except (PyPdfError, DependencyError, _TooMuch, *_UNREADABLE):
        return b""
    return b"" if found is None else b"%d" % found


class _Document:
    """One PDF, unpacked as far as needed."""

    def __init__(self, data: bytes) -> None:
        from pypdf import PdfReader

        self._data = data
        self._reader = PdfReader(io.BytesIO(data))
        self._unpacked = 0
        # With the objects themselves, so that their `id()` values are not reused.
        self._forms: dict[tuple[int, int, float], tuple[Any, Any, int]] = {}
        self._fonts: dict[int, tuple[Any, float]] = {}

    def tokens(self) -> int | None:
        reader = self._reader
        if reader.is_encrypted:
            return None
        pages = [_dictionary(page) for page in reader.pages]
        declared = _resolved(_dictionary(reader.root_object.get("/Pages")).get("/Count"))
        count = max(len(pages), declared if isinstance(declared, int) else 0)
        if not count:
            return None
        texts = (max(PAGE_TEXT_TOKENS, self._page(page)) for page in pages)
        unseen = count - len(pages)
        images = count * PAGE_IMAGE_TOKENS
        return images + sum(texts) + unseen * PAGE_TEXT_TOKENS + self._replacements()

    def _replacements(self) -> int:
        """Return the UTF-8 bytes of the document structure's replacement texts."""
        from pypdf.generic import IndirectObject

        reader, total = self._reader, 0
        holders = sorted({holder for holder, _ in reader.xref_objStm.values()})
        objects = (_resolved(IndirectObject(holder, 0, reader)) for holder in holders)
        for source in (self._data, *map(self._unpack, objects)):
            marks = source.count(b"/ActualText")
            for found in _REPLACED.finditer(source):
                total += len(found[0]) * _BYTES_PER_UNIT
                marks -= 1
            if marks > 0:
                raise _TooMuch  # it is in another place
        return total

    def _page(self, page: dict[str, Any]) -> int:
        """Return the most UTF-8 bytes of the text that a page shows."""
        resources = _dictionary(_inherited(page, "/Resources"))
        contents = _resolved(page.get("/Contents"))
        parts = _items(contents) or [contents]
        # The streams of a page are one text: a string may begin in one and end in the next.
        content = b"\n".join(self._unpack(part) for part in parts if hasattr(part, "get_data"))
        total = self._shown(content, resources, 3.0, 0)
        for annotation in _items(page.get("/Annots")):
            total += self._annotation(_dictionary(annotation))
        return total

    def _annotation(self, annotation: dict[str, Any]) -> int:
        """Return the text bytes of a comment or form field: its own texts and its appearance."""
        total = 0
        for holder in (annotation, _dictionary(annotation.get("/Parent"))):
            for name in ("/Contents", "/V", "/RC", "/DV"):
                total += _length(_resolved(holder.get(name)))
        for look in _values(annotation.get("/AP")):
            for appearance in [look] if hasattr(look, "get_data") else _values(look):
                if hasattr(appearance, "get_data"):
                    total += self._form(appearance, {}, 3.0, 1)
        return total

    def _form(self, form: Any, outer: dict[str, Any], factor: float, depth: int) -> int:
        """Return the text bytes that a form shows each time that it is drawn."""
        if depth > _DEEPEST:
            raise _TooMuch
        resources = _dictionary(form.get("/Resources")) or outer
        key = (id(form), id(resources), factor)
        known = self._forms.get(key)
        if known is None:
            total = self._shown(self._unpack(form), resources, factor, depth)
            known = self._forms[key] = (form, resources, total)
        return known[2]

    def _shown(self, content: bytes, resources: dict[str, Any], factor: float, depth: int) -> int:
        """Return the text bytes of a content stream; ``factor`` as `_font`, if it names no font."""
        fonts = [_dictionary(font) for font in _values(resources.get("/Font"))]
        factor = max([factor if not fonts else 0.0, *(self._font(font) for font in fonts)])
        codes, strings = _strings(content)
        total = math.ceil(codes * factor) + strings * _BETWEEN
        forms = _dictionary(resources.get("/XObject"))
        for name in _names(_DRAWN, content):
            form = _resolved(forms.get(name))
            if hasattr(form, "get_data") and form.get("/Subtype") == "/Form":
                total += self._form(form, resources, factor, depth + 1)
        properties = _dictionary(resources.get("/Properties"))
        for name in _names(_MARKED, content):
            total += _length(_resolved(_dictionary(properties.get(name)).get("/ActualText")))
        return total

    def _font(self, font: dict[str, Any]) -> float:
        """Return the most UTF-8 bytes of text for each byte of a string in this font."""
        known = self._fonts.get(id(font))
        if known is None:
            known = self._fonts[id(font)] = (font, self._look_at_font(font))
        return known[1]

    def _look_at_font(self, font: dict[str, Any]) -> float:
        for glyph in _values(font.get("/CharProcs")):
            if _strings(self._unpack(glyph))[1]:
                raise _TooMuch  # a glyph that contains text itself
        encoding = _resolved(font.get("/Encoding"))
        wide = font.get("/Subtype") == "/Type0" and encoding in ("/Identity-H", "/Identity-V")
        units = 1
        to_unicode = _resolved(font.get("/ToUnicode"))
        if hasattr(to_unicode, "get_data"):
            # A ligature is one code, and several letters.
            for mapped in _MAPPED.finditer(self._unpack(to_unicode)):
                units = max(units, -(-len(mapped[1].strip()) // 4))
        for glyph in _items(_dictionary(encoding).get("/Differences")):
            if isinstance(glyph, str):
                named = _GLYPH.match(glyph)
                units = max(units, len(named[1]) // 4 if named else glyph.count("_") + 1)
        return _BYTES_PER_UNIT * units / (2 if wide else 1)

    def _unpack(self, stream: Any) -> bytes:
        data: bytes = _resolved(stream).get_data()
        self._unpacked += len(data)
        if self._unpacked > MOST_UNPACKED:
            raise _TooMuch
        return data


def _strings(content: bytes) -> tuple[int, int]:
    """Return the most bytes of the strings in a content stream, and the number of strings.

    Other content that looks like a string (the data of an inline image) is counted too; a string is
    never left out.
    """
    text = _ESCAPED.sub(b"..", content)
    codes = strings = depth = start = 0
    for found in _SPECIAL.finditer(text):
        at, mark = found.start(), found[0]
        if mark == b"(":
            if not depth:
                start = at
                strings += 1
            depth += 1
        elif mark == b")":
            if depth == 1:
                codes += at - start - 1
            depth = max(depth - 1, 0)
        elif not depth:
            held = mark[1:-1]
            strings += 1
            codes += -(-len(held) // 2) if _HEX.fullmatch(held) else len(held)
    if depth:
        codes += len(text) - start
    return codes, strings


def _names(pattern: re.Pattern[bytes], content: bytes) -> Iterator[str]:
    for found in pattern.finditer(content):
        name = _HEX_IN_NAME.sub(lambda code: bytes([int(code[1], 16)]), found[1])
        yield "/" + name.decode("utf-8", "replace")


def _resolved(given: Any) -> Any:
    """Return the object of a reference, or the value itself if it is no reference."""
    return given.get_object() if hasattr(given, "get_object") else given


def _dictionary(given: Any) -> dict[str, Any]:
    """Return a dictionary, or a stream's; empty if there is none."""
    found = _resolved(given)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _items(given: Any) -> list[Any]:
    found = _resolved(given)
    return [_resolved(each) for each in cast("list[Any]", found)] if isinstance(found, list) else []


def _values(given: Any) -> list[Any]:
    return [_resolved(each) for each in _dictionary(given).values()]


def _inherited(page: dict[str, Any], name: str) -> Any:
    """Return an attribute of a page, or of the nearest node above it."""
    for _ in range(_DEEPEST):
        if name in page:
            return page[name]
        page = _dictionary(page.get("/Parent"))
    return None


def _length(text: object) -> int:
    """Return the UTF-8 bytes of a text; 0 for other values."""
    if isinstance(text, bytes):
        return len(text) * _BYTES_PER_UNIT
    return len(text.encode("utf-8", "replace")) if isinstance(text, str) else 0


# Bounds -------------------------------------------------------------------------------------------

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
TOOLSET_TOKENS: Final = 10_000
"""Tokens of a client toolset of Anthropic's, a name for several tools; without a documented figure.
"""
FORMAT_TOKENS: Final = 1_500
"""Tokens of the API's instructions to the model about an output format."""
CITING_TOKENS: Final = 1_000
"""Tokens of the API's instructions to the model about citations."""
CHUNK_TOKENS: Final = 16
"""Tokens that mark a chunk of a cited text.

The API splits it into sentences ("Citations": a slight increase in input tokens "due to system
prompt additions and document chunking"; the documentation has no figures)."""
_CHUNK_END: Final = re.compile(r"[.!?;:\n\r\u2028\u2029\u3002\uff01\uff1f]+")
LOOP_STEPS: Final = 10
"""Number of times that a server tool may make the model read its whole context in one turn.

Each time it may also write an answer of its own (`BetaUsage.iterations` in anthropic 2.14)."""

_UNBOUNDED = ("mcp_servers", "fallbacks", "compaction", "thread")
_OWN_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
_READERS = ("web_search_", "web_fetch_")
# To the API, JSON in these places is text, even if it looks like an image or names a file.
_WITHOUT_BLOCKS = ("metadata", "output_config", "output_format", "tools")
_WITHOUT_INNER_BLOCKS = ("tool_use", "server_tool_use", "mcp_tool_use", "tool_definition")


FileTokens: TypeAlias = Callable[[str], int | None]
"""Returns the most tokens that an uploaded file can come to, by its id; `None` if not known."""


class Unbounded(ValueError):
    """The cost of this request has no known bound; the message contains the reason.

    ``model`` is the request's model if that has no price.
    """

    def __init__(self, message: str, *, model: str | None = None) -> None:
        super().__init__(message)
        self.model = model


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


class _Thinking(msgspec.Struct, gc=False):
    budget_tokens: int | None = None


class _Params(msgspec.Struct, gc=False):
    model: str
    max_tokens: int
    tools: msgspec.Raw = _NONE
    mcp_servers: msgspec.Raw = _NONE
    container: msgspec.Raw = _NONE
    fallbacks: msgspec.Raw = _NONE
    compaction: msgspec.Raw = _NONE
    context_management: msgspec.Raw = _NONE
    thread: msgspec.Raw = _NONE
    output_config: msgspec.Raw = _NONE
    output_format: msgspec.Raw = _NONE
    thinking: _Thinking | None = None
    inference_geo: str | None = None


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None
    max_uses: int | None = None


_params = msgspec.json.Decoder(_Params)
_tools = msgspec.json.Decoder(list[_Tool])


def may_hold_documents(params: bytes) -> bool:
    """Return whether the bound of encoded params may take seconds, because of a PDF in them."""
    # Quotes inside texts are escaped, so without such a name there is no such block.
    return b'"source"' in params


def token_bound(params: bytes, files: FileTokens | None = None) -> TokenBound:
    """Return the bound of encoded Messages params. Raises `Unbounded`.

    ``files`` returns the tokens of uploaded files.
    """
    try:
        read = _params.decode(params)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unbounded(f"the params cannot be read: {error}") from None
    if b"compact" in bytes(read.context_management):
        raise Unbounded("the tokens and cost of compaction have no known bound")
    for name in _UNBOUNDED:
        if _has(getattr(read, name)):
            raise Unbounded(f"the tokens and cost of `{name}` have no known bound")
    if not _is_known_container(read.container):
        raise Unbounded("the tokens and cost of `container` have no known bound")
    tokens, searches, steps = len(params) + REQUEST_TOKENS, 0, 1
    if tools := _tools_of(params, read.tools):
        more, searches, loops = _tools_bound(tools)
        tokens += more
        steps = LOOP_STEPS if loops else 1
    if _has(read.output_config) or _has(read.output_format):
        tokens += FORMAT_TOKENS
    media = _NO_MEDIA
    if may_hold_documents(params) or b'"file_id"' in params:
        content = _content_of(params)
        media = _media_bound(content, files)
        tokens += media.tokens - media.size
        if b'"citations"' in params:
            tokens += _citing_tokens(content)
    window = longest_window(read.model)
    if steps > 1 or media.unknown:
        tokens = window
    cache: Literal["5m", "1h"] | None = None
    if b'"cache_control"' in params:
        # The API writes an hour's entries for this name; a name of tomorrow may be dearer.
        is_short = params.count(b'"ttl":') == params.count(b'"ttl":"5m"')
        cache = "5m" if is_short else "1h"
    output = max(read.max_tokens, 0)
    # Interleaved thinking: one request may use the budget of its whole turn.
    thinks = (read.thinking.budget_tokens or 0) if read.thinking is not None else 0
    beside = thinks if thinks >= output else 0
    return TokenBound(
        read.model,
        min(tokens, window) * steps,
        output * steps + beside,
        cache,
        searches,
        read.inference_geo != "global",
        media,
    )


def _has(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null", b"[]", b"{}")


def _is_known_container(raw: msgspec.Raw) -> bool:
    """Return whether a container is only named, without skills.

    The next turn names the container of an answer, which web searches have too. It costs nothing
    beside the tools that use it.
    """
    if not _has(raw):
        return True
    given: object = msgspec.json.decode(raw)
    if (fields := mapping_or_none(given)) is not None:
        return not any(value for name, value in fields.items() if name != "id")
    return isinstance(given, str)


def _tools_of(params: bytes, raw: msgspec.Raw) -> list[_Tool]:
    """Return the tools that params define: those of ``tools``, and those inside of messages."""
    try:
        tools = _tools.decode(raw) if _has(raw) else []
        if b'"tool_definition"' in params:
            # A block `tool_addition` offers a tool from its place on, with the beta inline-tools.
            blocks = _mappings_in(_content_of(params))
            inline = [b.get("definition") for b in blocks if b.get("type") == "tool_definition"]
            tools += msgspec.convert(inline, list[_Tool])
    except msgspec.ValidationError as error:
        raise Unbounded(f"its tools cannot be read: {error}") from None
    return tools


def _content_of(params: bytes) -> list[object]:
    """Return the values of the params that may hold content blocks."""
    read = msgspec.json.decode(params, type=dict[str, object])
    return [value for name, value in read.items() if name not in _WITHOUT_BLOCKS]


def _mappings_in(value: object) -> Iterator[dict[str, object]]:
    """Yield each mapping inside of a value that may be a content block, the outer ones first."""
    waiting: list[object] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += cast("list[object]", found)
        elif isinstance(found, dict):
            block = cast("dict[str, object]", found)
            yield block
            if block.get("type") not in _WITHOUT_INNER_BLOCKS:
                waiting += block.values()


def _tools_bound(tools: list[_Tool]) -> tuple[int, int, bool]:
    """Return the tokens that tools add to their bytes, the web searches, and whether tools loop.

    Tools that run at the API make the model read its context several times.
    """
    tokens, searches, loops = TOOLS_TOKENS, 0, False
    for tool in tools:
        kind = tool.type or "custom"
        if kind == "custom":
            continue
        if kind.startswith(_OWN_TOOLS):
            tokens += TOOLSET_TOKENS if "_toolset_" in kind else OWN_TOOL_TOKENS
        elif kind.startswith(_READERS):
            loops = True
            if kind.startswith("web_search_"):
                if tool.max_uses is None:
                    raise Unbounded(f"the tool {kind} may search without limit; set its `max_uses`")
                searches += max(tool.max_uses, 0)
        else:
            raise Unbounded(f"the tokens and cost of the tool {kind} have no known bound")
    return tokens, searches, loops


def _citing_tokens(value: object) -> int:
    """Return what citations add to the tokens of cited documents and search results.

    Blocks inside of them are not split; the JSON of each has more bytes than its mark has tokens.
    """
    tokens = 0
    for block in _mappings_in(value):
        given = block.get("source")  # in a search result the name of its source, a text
        source = mapping_or_none(given)
        if block.get("citations") is None or (source is None and not isinstance(given, str)):
            continue
        source = source or {}
        data, is_text = source.get("data"), source.get("type") == "text"
        tokens = tokens or CITING_TOKENS
        tokens += _chunk_tokens(data) if is_text and isinstance(data, str) else 0
    return tokens


def _chunk_tokens(text: str) -> int:
    """Return the tokens of all marks between the sentences of a cited text."""
    return (sum(1 for _ in _CHUNK_END.finditer(text)) + 1) * CHUNK_TOKENS


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
        source = mapping_or_none(block.get("source")) or {}
        kind, way = block.get("type"), source.get("type")
        if kind in _WITHOUT_INNER_BLOCKS:
            continue
        if kind not in ("image", "document") or way in ("text", "content"):
            # The number of reads of a file in a container is unknown.
            unknown = unknown or "file_id" in block
            waiting += block.values()
            continue
        data = source.get("data")
        if way == "base64" and isinstance(data, str):
            # Its title and context are text, and stay counted as bytes.
            bound = _written_bound(str(kind), str(source.get("media_type")), data)
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


def _written_bound(kind: str, media_type: str, data: str) -> int | None:
    """Return the bound of an image or a PDF in base64; `None` for a document of another type."""
    try:
        if media_type != "application/pdf":
            if kind == "document":
                return None  # a gateway may accept what the API refuses
            return _image_bound(base64.b64decode(data[:_HEAD]))
        digest = sha256(data.encode("ascii")).digest()
        if digest in _bounds:
            return _bounds[digest]
        bound = pdf_tokens(base64.b64decode(data))
    # It is not base64 (`binascii.Error` is one, too), or no process can be started now.
    except ValueError:
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
        try:
            return pdf_tokens(data)
        except NotStarted:
            return None
    if media_type in IMAGE_TYPES:
        return _image_bound(data)
    # A request that names the file may cite it.
    return len(data) + _chunk_tokens(data.decode(errors="replace"))
