"""Read the body and the headers of a call of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.quantities import parse_duration
from claude_batch.wire.encoding import EncodedRequest, encode_params

FAILURE_TTL: Final = "claude-batch-failure-ttl"
"""Header of a call that takes precedence over the setting; 0 sends a new request at once."""

_BODY: Final = msgspec.json.Decoder(dict[str, Any])


class MessagesCall(NamedTuple):
    """A call as the ledger stores it."""

    encoded: EncodedRequest
    stream: bool
    """Whether the caller wants the answer as server-sent events."""


def read_call(
    body: bytes,
    headers: Mapping[str, str],
    *,
    defaults: Mapping[str, Any],
    user_profile: str | None = None,
) -> MessagesCall:
    """Encode the params of a call's body. Raises `InvalidRequestError`.

    The names of ``headers`` are lower case. ``defaults`` are parameters for a body without them.
    """
    try:
        params = _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not a JSON object: {error}") from None
    stream = bool(params.pop("stream", False))
    betas = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",")]
    encoded = encode_params(
        params,
        defaults=defaults,
        betas=[beta for beta in betas if beta],
        api_version=headers.get("anthropic-version"),
        user_profile=headers.get("anthropic-user-profile-id", user_profile),
    )
    return MessagesCall(encoded, stream)


def read_failure_ttl(headers: Mapping[str, str], default: float) -> float:
    """Return for how many seconds a call takes an equal one's failure.

    Raises `InvalidRequestError`.
    """
    given = headers.get(FAILURE_TTL)
    try:
        return default if given is None else parse_duration(given)
    except ValueError as error:
        raise InvalidRequestError(f"{FAILURE_TTL}: {error}") from None
