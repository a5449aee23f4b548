"""The shape of a request: what it shares with others, and what the API checks for free.

Two requests of one shape differ only in their texts. So if the API accepts one of them, it accepts
the model, the tools and the schema of all.
"""

from __future__ import annotations

import hashlib

import msgspec

from claude_batch.wire.encoding import EncodedRequest

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


class _Model(msgspec.Struct):
    model: str


_decode_model = msgspec.json.Decoder(_Model).decode


def model_of(params: bytes) -> str:
    """Return the model that encoded params name."""
    return _decode_model(params).model


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
