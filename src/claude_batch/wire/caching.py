"""The prompt cache: find the prefixes that requests of a run share, and mark them if that pays.

The API caches the content before a mark: tools, then the system prompt, then the messages. A write
that lives for an hour costs twice the price of the tokens, and a read a tenth. Within batches 30 to
98 % of the reads hit; each miss writes again. So n uses of a prefix cost n unmarked, and marked 2 +
(n - 1) x (0.1 x hits + 2 x misses). In the middle, at 64 % of hits, marks pay from 6 uses on. Below
53 % they never pay, so nothing is marked unless the run asks for it.

Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching and …/batch-processing

Two requests of one shape differ only in their texts. So if the API accepts one of them, it accepts
the model, the tools and the schema of all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from claude_batch.wire.encoding import ITEM_OVERHEAD, EncodedRequest, asked_of, plain_text
from claude_batch.wire.inbound import mappings
from claude_batch.wire.limits import MAX_BODY_BYTES, MAX_CACHE_POINTS, least_cached_tokens

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode

# Shapes of requests -------------------------------------------------------------------------------

_OF_ONE = frozenset(
    ("messages", "system", "max_tokens", "metadata", "stop_sequences", "user_profile_id")
)
"""Fields that belong to one request: texts and numbers, of which the API accepts any."""

_COUNTED = frozenset(
    (
        "billing_policy",
        "cache_control",
        "compaction",
        "context_management",
        "mcp_servers",
        "messages",
        "model",
        "output_config",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    )
)
"""Fields of ``count_tokens``: `MessageCountTokensParams` and its beta twin in anthropic 2.11."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def decode_fields(params: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of encoded params, with their values as bytes."""
    return _decode(params)


def shape_digest(request: EncodedRequest, fields: dict[str, msgspec.Raw]) -> bytes:
    """Return 16 bytes that are equal for all requests of a shape.

    ``fields`` are those of the request's params. The digest covers the headers, the model, the
    tools, the output format and every other field that is not the request's own text.
    """
    digest = hashlib.blake2b(repr(request.headers).encode(), digest_size=16)
    for name, value in fields.items():
        if name not in _OF_ONE:
            digest.update(b"\0%b\0" % name.encode("utf-8", "surrogatepass"))
            digest.update(value)
    return digest.digest()


def counted_params(params: bytes) -> bytes:
    """Return the fields of the params that ``count_tokens`` accepts."""
    fields = decode_fields(params)
    return msgspec.json.encode({name: fields[name] for name in fields if name in _COUNTED})


# Marked prefixes ----------------------------------------------------------------------------------

_MARK = "cache_control"


class MarkedPrefix(NamedTuple):
    """The longest marked prefix."""

    digest: bytes
    """Equal for equal prefixes."""
    size: int
    """Bytes of its JSON."""
    hour: bool
    """Whether any mark asks for an hour instead of five minutes."""


def marked_prefix(params: bytes) -> MarkedPrefix | None:
    """Return the longest prefix of encoded params with a ``cache_control`` mark, or `None`."""
    if b'"cache_control"' not in params:
        return None  # quotes inside texts are escaped
    read = cast("dict[str, Any]", msgspec.json.decode(params))
    parts = list(_parts(read))
    marks = [(at, part[_MARK]) for at, part in enumerate(parts) if part.get(_MARK)]
    if read.get(_MARK):
        marks.append((len(parts) - 1, read[_MARK]))
    if not marks:
        return None
    last = max(at for at, _ in marks)
    encoded = msgspec.json.encode([read.get("model"), parts[: last + 1]])
    hour = any(isinstance(mark, dict) and "1h" in mark.values() for _, mark in marks)
    return MarkedPrefix(hashlib.blake2b(encoded, digest_size=16).digest(), len(encoded), hour)


def _parts(params: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield tools, system and content blocks in the order of the prefix."""
    yield from params.get("tools") or ()
    yield from _blocks(params.get("system"))
    for message in params.get("messages") or ():
        yield from ({"role": message.get("role"), **each} for each in _blocks(message["content"]))


def _blocks(content: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    yield from mappings(content)


# Caching plan -------------------------------------------------------------------------------------

PAYS_AFTER = 6
"""Number of uses of a prefix after which the next ones are marked."""

PRIMED_PAYS_AFTER = 2
"""The same number if one request is sent ahead, so that nearly all others hit.

At 98 % of hits, marks pay from 3 uses on."""

_POINT = b'"cache_control":{"type":"ephemeral","ttl":"1h"}'
_OWN = b'"cache_control"'
"""Matches a key only, because quotes inside a text are escaped."""

_KEPT = 50_000
"""Most prefixes that are counted at a time."""

_LOOKED_AT = 20
"""Leading blocks of a message that are examined; the API itself looks back as many."""

_LARGEST = MAX_BODY_BYTES - ITEM_OVERHEAD - 64

_BYTES_A_TOKEN = 4
"""Bytes of text in a token.

Other scripts have fewer bytes in a token, so their prefixes count as shorter than they are."""

_BYTES_A_TOKEN_ENCODED = 100
"""Bytes of base64 in a token of a PDF or an image.

A scanned page of 200 kB has some 2,000 tokens."""

_LEADING = ("document", "image", "search_result")


_NONE = msgspec.Raw(b"null")


class _Source(msgspec.Struct):
    type: Any = ""


class _Block(msgspec.Struct):
    # Anything, because the API decides about blocks of tomorrow.
    type: Any = ""
    text: msgspec.Raw = _NONE
    source: msgspec.Raw = _NONE
    """A mapping; of a search result, a text."""


class _Message(msgspec.Struct):
    role: str
    content: msgspec.Raw


_decode_blocks = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_block = msgspec.json.Decoder(_Block).decode
_decode_source = msgspec.json.Decoder(_Source).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_encode = msgspec.json.Encoder(enc_hook=plain_text).encode


class _Level(NamedTuple):
    """A prefix of a request, up to the end of a place that can have a mark."""

    place: str | int
    """``tools``, ``system``, or the index of a block of the first message."""
    digest: bytes
    long_enough: bool


class _Head(NamedTuple):
    """The bytes before the text of an actor's prompts, without and with marks."""

    plain: bytes
    marked: bytes
    digests: tuple[bytes, ...]


class CacheMarks:
    """Marks for the shared prefixes of one run's requests, in order. Not thread-safe."""

    def __init__(self, pays_after: int = PAYS_AFTER) -> None:
        """Set up the marks; the first ``pays_after`` uses of a prefix stay unmarked."""
        self._pays_after = pays_after
        self._uses: dict[bytes, int] = {}
        self._head: _Head | None = None

    @classmethod
    def of(cls, mode: BatchProcessingMode) -> CacheMarks | None:
        """Return the marks of a new run, or `None` if its mode does not ask for any."""
        if mode.cache != "auto":
            return None
        return cls(PRIMED_PAYS_AFTER if mode.prime else PAYS_AFTER)

    def mark(
        self, request: EncodedRequest, prompt: str | None = None
    ) -> tuple[EncodedRequest, int | None]:
        """Return the request, marked if its prefixes have enough uses, and the number of its marks.

        Requests with the same marks share that number; it is `None` for a request without marks.
        ``prompt`` is the request's only own text, if the rest is an actor's. A request that has
        marks already is left unchanged.
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
        # All of an actor's prompts share all of these prefixes.
        counts = [self._count(digest) for digest in head.digests]
        if counts[-1] <= self._pays_after:
            return request, None
        params = head.marked + request.params[len(head.plain) :]
        if len(params) > _LARGEST:
            return request, None
        return EncodedRequest(params, request.headers), _number(head.digests[-1])

    def _chosen(self, levels: list[_Level]) -> list[_Level]:
        """Return the levels to mark: the longest that pays, and shorter ones with more uses."""
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
            # Frequently used prefixes stay; prefixes with one use are dropped.
            self._uses = uses = {each: count - 1 for each, count in uses.items() if count > 1}
        count = uses[digest] = uses.get(digest, 0) + 1
        return count


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 1


def _levels(request: EncodedRequest, fields: dict[str, msgspec.Raw]) -> list[_Level]:
    """Return every prefix of a request that could be marked, shortest first."""
    least = least_cached_tokens(asked_of(request.params)[0])
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
    if not messages:  # of a thread
        return levels
    first = _decode_message(messages[0])
    content = bytes(first.content)
    if first.role != "user" or not content.startswith(b"["):
        return levels
    for number, raw in enumerate(_decode_blocks(content)[:_LOOKED_AT]):
        # The API decides about a block that is no mapping.
        block = _decode_block(raw) if bytes(raw).startswith(b"{") else _Block()
        if block.type not in _LEADING:
            break
        digest.update(b"\0block\0")
        digest.update(raw)
        tokens += _tokens(block, len(memoryview(raw)), least)
        levels.append(_Level(number, digest.digest(), tokens >= least))
    return levels


def _tokens(block: _Block, size: int, least: int) -> int:
    source = bytes(block.source)
    kind = _decode_source(source).type if source.startswith(b"{") else ""
    if kind in ("url", "file"):
        return least  # unknown here; the API ignores a mark on too little
    return size // (_BYTES_A_TOKEN_ENCODED if kind == "base64" else _BYTES_A_TOKEN)


def _bears(part: bytes) -> bool:
    """Return whether a system prompt or the last item of a list can have a mark."""
    if part.startswith(b'"'):
        return len(part) > 2
    blocks = _decode_blocks(part)
    if not blocks:
        return False
    last = bytes(blocks[-1])
    if last == b"{}" or not last.startswith(b"{"):
        return False
    # A deferred tool is not part of the prefix; empty texts cannot have a mark.
    return b'"defer_loading":true' not in last and bytes(_decode_block(last).text) != b'""'


def _head_of(
    params: bytes, prompt: str, fields: dict[str, msgspec.Raw], levels: list[_Level]
) -> _Head | None:
    """Return the bytes that an actor's prompts share, so that one comparison marks the next one."""
    end = _encode(prompt) + b"}]}"
    if not params.endswith(end):
        return None  # the messages are not the last field of the params
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
    """Return a system prompt or a list of tools with its last block marked."""
    if part.startswith(b'"'):
        return msgspec.Raw(b'[{"type":"text","text":%b,%b}]' % (part, _POINT))
    blocks = _decode_blocks(part)
    blocks[-1] = _mark(bytes(blocks[-1]))
    return msgspec.Raw(_encode(blocks))


def _mark(block: bytes) -> msgspec.Raw:
    return msgspec.Raw(b"%b,%b}" % (block[:-1], _POINT))
