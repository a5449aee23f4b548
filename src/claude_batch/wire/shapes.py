"""The shape of a request: what it shares with others, and what the API can be asked of it for free.

Two requests of one shape differ in their texts alone. So where the API takes one of them, it takes
the model, the tools and the schema of all.
"""

from __future__ import annotations

import hashlib

import msgspec

from claude_batch.wire.encoding import EncodedRequest

__all__ = ["counted_params", "decode_fields", "model_of", "shape_digest"]

_OF_ONE = frozenset(
    ("messages", "system", "max_tokens", "metadata", "stop_sequences", "user_profile_id")
)
"""What is a request's own: texts and numbers, of which the API takes any."""

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
"""What ``count_tokens`` takes: `MessageCountTokensParams` and its beta twin in anthropic 2.11."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Model(msgspec.Struct):
    model: str


_decode_model = msgspec.json.Decoder(_Model).decode


def model_of(params: bytes) -> str:
    """The model that encoded params ask."""
    return _decode_model(params).model


def decode_fields(params: bytes) -> dict[str, msgspec.Raw]:
    """The fields of encoded params, their values as bytes."""
    return _decode(params)


def shape_digest(request: EncodedRequest, fields: dict[str, msgspec.Raw]) -> bytes:
    """16 bytes that are the same for all requests of a shape; ``fields`` are those of its params.

    Model, tools, output format and whatever else is no text of its own, and the headers.
    """
    digest = hashlib.blake2b(repr(request.headers).encode(), digest_size=16)
    for name, value in fields.items():
        if name not in _OF_ONE:
            digest.update(b"\0%b\0" % name.encode("utf-8", "surrogatepass"))
            digest.update(value)
    return digest.digest()


def counted_params(params: bytes) -> bytes:
    """The same params as far as ``count_tokens`` takes them."""
    fields = decode_fields(params)
    return msgspec.json.encode({name: fields[name] for name in fields if name in _COUNTED})
