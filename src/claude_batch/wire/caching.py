"""The prompt cache: prefixes that requests of a run share are found, and marked where that pays.

The API caches what stands before a mark: tools, then the system prompt, then the messages. A write
that lives for an hour costs twice what the tokens cost, a read a tenth. Within batches 30 to 98 %
of the reads hit; whoever misses writes again. So n uses of a prefix cost n unmarked, and marked
2 + (n - 1) x (0.1 x hits + 2 x misses): in the middle, at 64 % of hits, marks pay from 6 uses on.
At fewer than 53 % they never do, which is why nothing is marked unless it is asked for.

Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching and …/batch-processing
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from claude_batch.core.settings import BatchProcessingMode
from claude_batch.wire.encoding import ITEM_OVERHEAD, EncodedRequest
from claude_batch.wire.limits import MAX_BODY_BYTES, MAX_CACHE_POINTS, least_cached_tokens
from claude_batch.wire.shapes import decode_fields, model_of, shape_digest

__all__ = ["PAYS_AFTER", "PRIMED_PAYS_AFTER", "CacheMarks"]

PAYS_AFTER = 6
"""Uses of a prefix after which the next ones are marked."""

PRIMED_PAYS_AFTER = 2
"""The same where one request goes ahead, so that nearly all others hit: at 98 % marks pay from 3
uses on."""

_POINT = b'"cache_control":{"type":"ephemeral","ttl":"1h"}'
_OWN = b'"cache_control"'
"""As a key only: inside a text its quotes would be escaped."""

_KEPT = 50_000
"""Prefixes that are counted at a time."""

_LOOKED_AT = 20
"""Leading blocks of a message that are looked at, as many as the API itself looks back."""

_LARGEST = MAX_BODY_BYTES - ITEM_OVERHEAD - 64

_BYTES_A_TOKEN = 4
"""Of text; of other scripts fewer bytes make a token, so too few are found rather than too many."""

_BYTES_A_TOKEN_ENCODED = 100
"""Of a PDF or an image in base64: a scanned page of 200 kB comes to some 2,000 tokens."""

_LEADING = ("document", "image", "search_result")


class _Source(msgspec.Struct):
    type: str = ""


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    source: _Source | None = None


class _Message(msgspec.Struct):
    role: str
    content: msgspec.Raw


_decode_blocks = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_block = msgspec.json.Decoder(_Block).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_encode = msgspec.json.Encoder().encode


class _Level(NamedTuple):
    """A prefix of a request, up to the end of a place that can bear a mark."""

    place: str | int
    """``tools``, ``system``, or the number of a block of the first message."""
    digest: bytes
    long_enough: bool


class _Head(NamedTuple):
    """What stands before the text of an actor's prompts, without and with marks."""

    plain: bytes
    marked: bytes
    digests: tuple[bytes, ...]


class CacheMarks:
    """Marks the shared prefixes of one run's requests, as they come. Not thread-safe."""

    def __init__(self, pays_after: int = PAYS_AFTER) -> None:
        """The first ``pays_after`` uses of a prefix stay unmarked."""
        self._pays_after = pays_after
        self._uses: dict[bytes, int] = {}
        self._head: _Head | None = None

    @classmethod
    def of(cls, mode: BatchProcessingMode) -> CacheMarks | None:
        """Those of a new run; None where it asks for none."""
        if mode.cache != "auto":
            return None
        return cls(PRIMED_PAYS_AFTER if mode.prime else PAYS_AFTER)

    def mark(
        self, request: EncodedRequest, prompt: str | None = None
    ) -> tuple[EncodedRequest, int | None]:
        """The request, with marks where its prefixes have been used often enough; and a number
        that it shares with all that bear the same ones (None: it bears none).

        ``prompt`` is its only text of its own, where the rest is an actor's. A request that has
        marks of its own is left as it is.
        """
        params = request.params
        head = self._head
        if prompt is not None and head is not None and params.startswith(head.plain):
            return self._with_head(request, head)
        if _OWN in params:
            return request, None
        fields = decode_fields(params)
        levels = _levels(request, fields)
        chosen = self._chosen(levels)
        if prompt is not None and (head := _head_of(params, prompt, fields, levels)) is not None:
            self._head = head
        if not chosen:
            return request, None
        marked = _marked(fields, [level.place for level in chosen])
        if len(marked) > _LARGEST:
            return request, None
        return EncodedRequest(marked, request.headers), _number(chosen[-1].digest)

    def _with_head(self, request: EncodedRequest, head: _Head) -> tuple[EncodedRequest, int | None]:
        if not head.digests:
            return request, None
        # All of an actor's prompts share all of these.
        counts = [self._count(digest) for digest in head.digests]
        if counts[-1] <= self._pays_after:
            return request, None
        params = head.marked + request.params[len(head.plain) :]
        if len(params) > _LARGEST:
            return request, None
        return EncodedRequest(params, request.headers), _number(head.digests[-1])

    def _chosen(self, levels: list[_Level]) -> list[_Level]:
        """The levels that are marked: the longest that pays, and shorter ones that are shared by
        more."""
        chosen: list[_Level] = []
        widest = 0
        counts = [self._count(level.digest) if level.long_enough else 0 for level in levels]
        for level, count in zip(reversed(levels), reversed(counts), strict=True):
            if count > self._pays_after and count > widest and len(chosen) < MAX_CACHE_POINTS:
                chosen.append(level)
                widest = count
        return chosen[::-1]

    def _count(self, digest: bytes) -> int:
        uses = self._uses
        if len(uses) >= _KEPT and digest not in uses:
            # What is used again and again stays, what was used once makes room.
            self._uses = uses = {each: count - 1 for each, count in uses.items() if count > 1}
        count = uses[digest] = uses.get(digest, 0) + 1
        return count


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 1


def _levels(request: EncodedRequest, fields: dict[str, msgspec.Raw]) -> list[_Level]:
    """Every prefix of a request that could be marked, the shortest first."""
    least = least_cached_tokens(model_of(request.params))
    digest = hashlib.blake2b(shape_digest(request, fields), digest_size=16)
    tokens = 0
    levels: list[_Level] = []
    for place in ("tools", "system"):
        part = bytes(fields.get(place, b"null"))
        if part == b"null":
            continue
        digest.update(b"\0%b\0" % place.encode())
        digest.update(part)
        tokens += len(part) // _BYTES_A_TOKEN
        if _bears(part):
            levels.append(_Level(place, digest.digest(), tokens >= least))
    messages = _decode_blocks(fields["messages"])
    first = _decode_message(messages[0])
    content = bytes(first.content)
    if first.role != "user" or not content.startswith(b"["):
        return levels
    for number, raw in enumerate(_decode_blocks(content)[:_LOOKED_AT]):
        block = _decode_block(raw)
        if block.type not in _LEADING:
            break
        digest.update(b"\0block\0")
        digest.update(raw)
        tokens += _tokens(block, len(memoryview(raw)), least)
        levels.append(_Level(number, digest.digest(), tokens >= least))
    return levels


def _tokens(block: _Block, size: int, least: int) -> int:
    kind = "" if block.source is None else block.source.type
    if kind in ("url", "file"):
        return least  # nobody here knows; the API does, and ignores a mark on too little
    return size // (_BYTES_A_TOKEN_ENCODED if kind == "base64" else _BYTES_A_TOKEN)


def _bears(part: bytes) -> bool:
    """Whether a system prompt or the last of a list can bear a mark."""
    if part.startswith(b'"'):
        return len(part) > 2
    blocks = _decode_blocks(part)
    if not blocks:
        return False
    last = bytes(blocks[-1])
    # A tool that is loaded when it is needed is no part of the prefix; empty texts bear none.
    return b'"defer_loading":true' not in last and _decode_block(last).text != ""


def _head_of(
    params: bytes, prompt: str, fields: dict[str, msgspec.Raw], levels: list[_Level]
) -> _Head | None:
    """What an actor's prompts share as bytes, so that the next one is marked by one comparison."""
    end = _encode(prompt) + b"}]}"
    if not params.endswith(end):
        return None  # the messages are not the last of the params
    plain = params[: -len(end)]
    able = [level for level in levels if level.long_enough]
    marked = _marked(fields, [level.place for level in able[-1:]])
    return _Head(plain, marked[: -len(end)], tuple(level.digest for level in able))


def _marked(fields: dict[str, msgspec.Raw], places: list[str | int]) -> bytes:
    marked = dict(fields)
    blocks = [place for place in places if isinstance(place, int)]
    for place in places:
        if isinstance(place, str):
            marked[place] = _mark_last(bytes(fields[place]))
    if blocks:
        messages = _decode_blocks(fields["messages"])
        first = decode_fields(bytes(messages[0]))
        content = _decode_blocks(first["content"])
        for number in blocks:
            content[number] = _mark(bytes(content[number]))
        first["content"] = msgspec.Raw(_encode(content))
        messages[0] = msgspec.Raw(_encode(first))
        marked["messages"] = msgspec.Raw(_encode(messages))
    return _encode(marked)


def _mark_last(part: bytes) -> msgspec.Raw:
    """A system prompt or a list of tools, the last block of it marked."""
    if part.startswith(b'"'):
        return msgspec.Raw(b'[{"type":"text","text":%b,%b}]' % (part, _POINT))
    blocks = _decode_blocks(part)
    blocks[-1] = _mark(bytes(blocks[-1]))
    return msgspec.Raw(_encode(blocks))


def _mark(block: bytes) -> msgspec.Raw:
    return msgspec.Raw(b"%b,%b}" % (block[:-1], _POINT))
