"""Mutations of JSON values, headers and bytes; each draws from the `random.Random` it is given.

A JSON value is mutated as a tree of encoded leaves, so that a mutation can write what no encoder
writes: a key twice, a number of 5,000 digits, a lone surrogate, or no JSON at all.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from random import Random
from typing import Any

__all__ = ["encoded", "mutated_body", "mutated_bytes", "mutated_headers", "mutated_json", "packed"]

NUMBERS = (
    *("-1", "-0", "0.5", "12.0", "1e400", "-1e400", "1e-400", "1E5", "01", "+1", ".5", "1."),
    *("9007199254740991", "9007199254740992", "9223372036854775807", "9223372036854775808"),
    *("100000000", "100000001", "18446744073709551616", "NaN", "Infinity", "-Infinity", "0x10"),
    "9" * 400,
    "1" * 5000,
)

WORDS = (
    *("", "x", "\\u0000", "\\ud800", "\\udc00\\ud800", "\\ud83d", "\\uD83D\\uDE00", "\\x", "\\u12"),
    *("\\u001b[2J", "\\u001b]52;c;eA==\\u0007", "\\u202e", "\\r\\n", "\\n{}", "\\/", '\\"'),
    *("../../v1/models?x=", "msgbatch_01/results", "null", "succeeded", "errored", "text"),
    *("tool_use", "pause_turn", "refusal", "document", "claude-opus-5-5", "=1+1", "[bold]", "'"),
    *("2026-13-45T99:99:99Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0"),
    *("2026-W01-1", "20260814T091233", "2026-08-14 09:12", "٣", "1_000", " 5 "),
)

DEPTHS = (2, 50, 90, 130, 200, 400, 900, 1100, 5000, 200_000)

HEADER_VALUES = (
    *("", " ", "0", "-1", "-1e300", "1e-320", "1e308", "1e400", "nan", "inf", "-inf", "1_0", "0x5"),
    *("٣", "9" * 400, "x" * 300, "\x01", "caf\xe9", "\xff", "a b", "true", "10, 20", "1;2"),
    *("Fri, 31 Dec 99999 23:59:59 GMT", "Fri, 14 Aug 2026 09:12:33 +9999", "31 Dec 0000 00:00:00"),
    *("Fri, 14 Aug 2026 09:12:60 GMT", "14 Aug 26", "Fri, 14 Aug 2026", "GMT", "2026-08-14T09:12Z"),
    *("9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2026-08-14T09:12:33.1234567Z"),
    *("Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 14 Aug 2026 09:12:33", "Mon, 99 Foo 2026 aa:bb:cc"),
)

FRAMING = {
    "content-length": ("0", "1", "-1", "1e3", "99999999999999999999", "5, 5", "5, 6", "x", "+3"),
    "transfer-encoding": ("chunked", "gzip", "identity", "chunked, chunked", "xchunked"),
    "content-encoding": ("gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "x", "gzip,br"),
    "content-type": ("text/html", "application/x-jsonl", "text/event-stream", "x", "a; charset=x"),
    "connection": ("close", "keep-alive", "upgrade"),
    "location": ("/", "//other.example/", "http://[", "http://x:99999/", "\x01", "http://é/"),
    "set-cookie": ("a=b; expires=x", "=", "a" * 5000),
}

_BYTES = (
    *(
        b"",
        b"\x00",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\n",
        b"\r\n",
        b"\\",
        b'"',
    ),
    *(b"{", b"}", b"[", b"]", b",", b":", b"0", b"-", b"\x1b", b"\x80", b"\xf4\x90\x80\x80", b" "),
    *(b"NaN", b"null", b'"type":"succeeded"', b'"custom_id":"x"', b"\xfe\xff", b"\x1f\x8b"),
)


class _Leaf:
    """Encoded JSON, or what stands where JSON should stand."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


_Node = Any  # a _Leaf, a list of nodes, or a list of pairs in a _Pairs


class _Pairs(list[tuple[bytes, _Node]]):
    """A JSON object, whose keys are encoded and may come twice."""


def encoded(value: Any) -> bytes:
    """JSON as the API writes it: compact, and not escaped beyond need."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _tree(value: Any) -> _Node:
    if isinstance(value, dict):
        return _Pairs((encoded(key), _tree(each)) for key, each in value.items())
    if isinstance(value, list):
        return [_tree(each) for each in value]
    return _Leaf(encoded(value))


def _written(node: _Node) -> bytes:
    if isinstance(node, _Leaf):
        return node.raw
    if isinstance(node, _Pairs):
        return b"{%b}" % b",".join(b"%b:%b" % (key, _written(each)) for key, each in node)
    return b"[%b]" % b",".join(map(_written, node))


def _containers(node: _Node) -> list[_Node]:
    """Every object and list in a tree that holds something, itself included."""
    if isinstance(node, _Leaf) or not node:
        return []
    inner = [each for _, each in node] if isinstance(node, _Pairs) else node
    return [node, *(found for each in inner for found in _containers(each))]


def _strange(rng: Random) -> bytes:
    """A JSON value of a kind that is not expected, or something that is no JSON value."""
    match rng.randrange(7):
        case 0:
            return rng.choice(NUMBERS).encode()
        case 1 | 2:
            return b'"%b"' % rng.choice(WORDS).encode()
        case 3:
            return rng.choice((b"null", b"true", b"false", b"[]", b"{}", b'[""]', b"[null]", b""))
        case 4:
            # Deep ones are large, and say little that a few of them do not say.
            depth = rng.choice(DEPTHS if rng.random() < 0.1 else DEPTHS[:-2])
            opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"type":', b"}]")))
            return opened * depth + b"1" + closed * rng.choice((depth, depth, depth, 0))
        case 5:
            return b'"%b"' % (rng.choice(WORDS).encode() * rng.choice((2, 100, 3000)))
        case _:
            return rng.choice((b'{"type":"text"}', b'{"id":1}', b'["type","text"]', b'{"":{}}'))


def mutated_json(value: Any, rng: Random) -> bytes:
    """A JSON value with one to three changes of its structure."""
    tree = _tree(value)
    for _ in range(rng.randint(1, 3)):
        containers = _containers(tree)
        if not containers:
            return _strange(rng)
        chosen = rng.choice(containers)
        at = rng.randrange(len(chosen))
        pairs = isinstance(chosen, _Pairs)
        match rng.randrange(9):
            case 0:
                del chosen[at]
            case 1 if pairs:
                chosen.append((chosen[at][0], _Leaf(_strange(rng))))
            case 1:
                chosen.append(chosen[at])
            case 2 if pairs:
                chosen[at] = (_strange(rng), chosen[at][1])
            case 3 if len(containers) > 1:
                moved = rng.choice(containers[1:])
                other = _Leaf(_written(moved))
                chosen[at] = (chosen[at][0], other) if pairs else other
            case 4 if pairs:
                chosen[at:at] = [(b'"%b"' % rng.choice(WORDS).encode(), _Leaf(_strange(rng)))]
            case _:
                leaf = _Leaf(_strange(rng))
                chosen[at] = (chosen[at][0], leaf) if pairs else leaf
    return _written(tree)


def mutated_bytes(data: bytes, rng: Random, most: int = 4) -> bytes:
    """Bytes with one to ``most`` changes."""
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(data) + 1)
        other = min(len(data), at + rng.choice((1, 1, 2, 8, 100)))
        match rng.randrange(6):
            case 0:
                data = data[:at] + rng.choice(_BYTES) + data[at:]
            case 1:
                data = data[:at] + data[other:]
            case 2:
                data = data[:at] + rng.choice(_BYTES) + data[other:]
            case 3:
                data = data[:at] + data[at:other] * rng.choice((2, 3, 50)) + data[other:]
            case 4 if data:
                flipped = bytearray(data)
                flipped[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
                data = bytes(flipped)
            case _:
                data = data[:at] if rng.random() < 0.5 else data[at:]
    return data


def mutated_body(value: Any, rng: Random) -> bytes:
    """A JSON value whose structure, bytes or both were changed; one in fifty is not."""
    match rng.randrange(50):
        case 0:
            return encoded(value)
        case kind if kind < 30:
            return mutated_json(value, rng)
        case kind if kind < 42:
            return mutated_bytes(encoded(value), rng)
        case _:
            return mutated_bytes(mutated_json(value, rng), rng)


def mutated_headers(headers: Mapping[str, str], rng: Random) -> dict[str, str]:
    """Headers of which some are missing, and some have strange values."""
    found = {name: value for name, value in headers.items() if rng.random() > 0.1}
    for name in rng.sample(list(headers), rng.randint(1, 4)):
        found[name] = rng.choice(HEADER_VALUES)
    return found


def packed(body: bytes, rng: Random) -> tuple[bytes, str]:
    """A compressed body, mostly broken, and the name of its encoding."""
    name = rng.choice(("gzip", "deflate"))
    data = gzip.compress(body, 1, mtime=0) if name == "gzip" else zlib.compress(body, 1)
    return (data if rng.random() < 0.3 else mutated_bytes(data, rng, 2)), name
