"""Token counts that the sandbox bills, with a prompt cache that hits when it can.

Rule: one token for each four bytes of the JSON of messages, system and tools, rounded up. The part
before a `cache_control` mark counts as written to or read from the cache, by the bytes of its
compact JSON. As in the API, a mark also reads what was written up to an earlier block, so each turn
of a conversation reads the turns before it. A prefix is cached at any length. Images and PDFs count
by their pixels and pages, and are never in the cache. An image has a token for each patch of 28 by
28 pixels, 1,568 at most. Each page of a PDF counts as such an image plus its text. The sandbox
reads the size of PNG and GIF images; others cost nothing here.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zlib
from dataclasses import dataclass
from typing import Any, cast

from .sandbox_settings import parse_duration

# Media tokens -------------------------------------------------------------------------------------

IMAGE_TOKENS = 1_568
_PATCH = 28
_UNREADABLE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError),
    *(OSError, RecursionError, TypeError, ValueError, zlib.error),
)
# Exceptions that pypdf's code raises for a damaged file.


def written_size(source: Any) -> int:
    """Return the characters of a source that are base64, and so not text."""
    if not isinstance(source, dict):
        return 0
    fields = cast(dict[str, Any], source)
    data = fields.get("data")
    return len(data) if fields.get("type") == "base64" and isinstance(data, str) else 0


def media_tokens(source: Any) -> int:
    """Return the tokens of an image, a PDF or an uploaded file, beyond its block's bytes."""
    if not isinstance(source, dict):
        return 0
    fields = cast(dict[str, Any], source)
    data: Any = fields.get("data")
    if fields.get("type") == "text":
        # Inline text is part of the messages, and was counted there.
        return -(-len(str(data).encode()) // 4) if "file_id" in fields else 0
    if isinstance(data, str):
        try:
            data = base64.b64decode(data)
        except ValueError:  # no base64, or no ASCII
            return 0
    if not isinstance(data, bytes):
        return 0
    if fields.get("media_type") == "application/pdf":
        return _pdf_tokens(data)
    return _image_tokens(data)


def _image_tokens(data: bytes) -> int:
    if data.startswith(b"\x89PNG"):
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    elif data.startswith(b"GIF8"):
        width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    else:
        return 0
    return min(-(-width // _PATCH) * -(-height // _PATCH), IMAGE_TOKENS)


def _pdf_tokens(data: bytes) -> int:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        pages = PdfReader(io.BytesIO(data)).pages
        texts = [page.extract_text().encode() for page in pages]
    except (PyPdfError, *_UNREADABLE):
        return 0  # no real PDF
    return sum(IMAGE_TOKENS + -(-len(text) // 4) for text in texts)


# Token usage --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `input_tokens` excludes cache reads and writes."""

    input_tokens: int
    output_tokens: int
    written_5m: int = 0
    written_1h: int = 0
    read: int = 0

    def as_json(self, tier: str) -> dict[str, Any]:
        """Return the `usage` object of a message, without what depends on its model."""
        return {
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": self.written_5m + self.written_1h,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written_5m,
                "ephemeral_1h_input_tokens": self.written_1h,
            },
            "output_tokens": self.output_tokens,
            "service_tier": tier,
        }


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Cache reads and writes of one request, in tokens."""

    written_5m: int
    written_1h: int
    read: int

    def of(self, input_tokens: int, output_tokens: int) -> Usage:
        """Return the usage of a request with these total tokens."""
        cached = self.written_5m + self.written_1h + self.read
        rest = max(input_tokens - cached, 0)
        return Usage(rest, output_tokens, self.written_5m, self.written_1h, self.read)


NO_CACHE = CacheUse(0, 0, 0)

CACHE_MARK = b'"cache_control"'


def cache_marks(params: dict[str, Any]) -> list[Any]:
    """Return the marks of a request in the order of its prefix.

    The mark of the params is the last one, unless the last block has one already.
    """
    parts = _parts(params)
    marked = [each for part in parts for each in (*_blocks(part.get("content") or []), part)]
    if not parts or parts[-1].get("cache_control") is None:
        marked.append(params)
    return [each["cache_control"] for each in marked if each.get("cache_control") is not None]


LOOKBACK = 20
"""Blocks, the marked one included, at whose ends the API looks for a prefix written before."""


class PromptCache:
    """Prefixes that were sent with `cache_control`, by workspace and model."""

    def __init__(self) -> None:
        self._expiry: dict[bytes, float] = {}

    def use(self, workspace: str, params: dict[str, Any], now: float) -> CacheUse:
        """Read and write the cache for one request."""
        digest = hashlib.sha256(f"{workspace}\n{params.get('model')}".encode())
        size = 0
        ends: list[tuple[bytes, int]] = []
        marks: list[tuple[int, str]] = []
        parts = _parts(params)
        for position, part in enumerate(parts):
            control = part.get("cache_control")
            if control is None and position == len(parts) - 1:
                control = params.get("cache_control")
            text = _compact({key: each for key, each in part.items() if key != "cache_control"})
            digest.update(text)
            size += len(text) - written_size(part.get("source"))
            ends.append((digest.copy().digest(), size // 4))
            if isinstance(control, dict):
                ttl = cast(dict[str, Any], control).get("ttl") or "5m"
                marks.append((position + 1, str(ttl)))
        if not marks:
            return NO_CACHE
        looked_at = [end for stop, _ in marks for end in ends[max(stop - LOOKBACK, 0) : stop]]
        read = max((size for key, size in looked_at if self._expiry.get(key, 0.0) > now), default=0)
        written = {"5m": 0, "1h": 0}
        known = read
        for stop, ttl in marks:
            key, tokens = ends[stop - 1]
            if tokens > known:
                written[ttl] += tokens - known
                known = tokens
            self._expiry[key] = now + parse_duration(ttl)
        return CacheUse(written["5m"], written["1h"], read)


def _parts(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return tools, system and content blocks, in the order in which they form the prefix."""
    parts: list[dict[str, Any]] = list(params.get("tools") or [])
    parts += _blocks(params.get("system") or [])
    for message in params["messages"]:
        role = {"role": message["role"]}
        parts += [{**role, **block} for block in _blocks(message["content"])]
    return parts


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks = cast(list[Any], content)
    return [cast(dict[str, Any], block) for block in blocks if isinstance(block, dict)]


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def params_sha256(raw: bytes) -> str:
    """Return the SHA-256 (hex) of the params as sorted compact JSON.

    That is `json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)` encoded
    as UTF-8, of what `json.loads` reads. Equal params give the same value, however they were
    written.
    """
    try:
        params = json.loads(raw)
        text = json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return hashlib.sha256(raw).hexdigest()
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
