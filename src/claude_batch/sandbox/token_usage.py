"""Token counts that the sandbox bills, with a prompt cache that hits when it can.

Rule: one token for each four bytes of the JSON of messages, system and tools, rounded up. The part
before a `cache_control` mark counts as written to or read from the cache, by the bytes of its
compact JSON. Images and PDFs count by their pixels and pages, and are never in the cache.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from .media_tokens import written_size
from .sandbox_settings import parse_duration


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `input_tokens` excludes cache reads and writes."""

    input_tokens: int
    output_tokens: int
    written_5m: int = 0
    written_1h: int = 0
    read: int = 0

    def as_json(self, tier: str) -> dict[str, Any]:
        """Return the `usage` object of a message."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_creation_input_tokens": self.written_5m + self.written_1h,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written_5m,
                "ephemeral_1h_input_tokens": self.written_1h,
            },
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


class PromptCache:
    """Prefixes that were sent with `cache_control`, by workspace and model."""

    def __init__(self) -> None:
        self._expiry: dict[bytes, float] = {}

    def use(self, workspace: str, raw: bytes, now: float) -> CacheUse | None:
        """Read and write the cache for one request; `None` if it has no cache mark."""
        params: dict[str, Any] = msgspec.json.decode(raw)
        digest = hashlib.sha256(f"{workspace}\n{params.get('model')}".encode())
        size = 0
        marks: list[tuple[bytes, int, str]] = []
        parts = _parts(params)
        for position, part in enumerate(parts):
            control = part.get("cache_control")
            if control is None and position == len(parts) - 1:
                control = params.get("cache_control")
            text = _compact({key: each for key, each in part.items() if key != "cache_control"})
            digest.update(text)
            size += len(text) - written_size(part.get("source"))
            if isinstance(control, dict):
                ttl = cast(dict[str, Any], control).get("ttl") or "5m"
                marks.append((digest.copy().digest(), size // 4, str(ttl)))
        if not marks:
            return None
        hits = [tokens for key, tokens, _ in marks if self._expiry.get(key, 0.0) > now]
        read = max(hits, default=0)
        written = {"5m": 0, "1h": 0}
        known = read
        for key, tokens, ttl in marks:
            ttl = ttl if ttl in written else "5m"
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
