"""Messages params and batch bodies as bytes; each request is encoded once, here.

A batch's body is ``{"requests":[ITEM,ITEM,…]}`` with ``ITEM = {"custom_id":"…","params":PARAMS}``.
The params' bytes are stored in the ledger and sent unchanged, so the size of a body is known
exactly before it exists.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.checks import check_batch_rules, check_params
from claude_batch.wire.limits import (
    API_VERSION,
    MAX_BODY_BYTES,
    SAMPLING_API_VERSION,
    SAMPLING_PARAMETERS,
    takes_sampling,
)

_log = logging.getLogger(__name__)

BODY_START: Final = b'{"requests":['
BODY_END: Final = b"]}"
_ITEM_START: Final = b'{"custom_id":"'
_ITEM_MIDDLE: Final = b'","params":'
_ITEM_END: Final = b"}"
_CUSTOM_ID_LENGTH: Final = 32 + 1 + 8 + 1 + 4

ITEM_OVERHEAD: Final = (
    len(_ITEM_START) + _CUSTOM_ID_LENGTH + len(_ITEM_MIDDLE) + len(_ITEM_END) + len(b",")
)
"""Bytes that a request adds to a body beyond its params, including the separating comma."""

_ALONE: Final = ITEM_OVERHEAD + len(BODY_START) + len(BODY_END)
"""Bytes of a body beyond the params of its only request."""

MAX_SENDING: Final = 9999
"""Highest sending number of one request, because the ``custom_id`` has four digits for it."""


@dataclass(frozen=True, slots=True)
class LaneHeaders:
    """Headers of a create call that all requests of a batch must share."""

    api_version: str = API_VERSION
    """``anthropic-version``."""
    betas: tuple[str, ...] = ()
    """``anthropic-beta``, sorted and without duplicates."""
    user_profile: str | None = None
    """``anthropic-user-profile-id``."""

    @classmethod
    def of_lane(cls, api_version: str, betas: str, user_profile: str) -> LaneHeaders:
        """Return the headers of a lane, given by its columns in the ledger."""
        return cls(api_version, tuple(betas.split(",")) if betas else (), user_profile or None)

    def as_headers(self) -> dict[str, str]:
        """Return the headers as they are sent."""
        headers = {"anthropic-version": self.api_version}
        if self.betas:
            headers["anthropic-beta"] = ",".join(self.betas)
        if self.user_profile is not None:
            headers["anthropic-user-profile-id"] = self.user_profile
        return headers


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """One request, ready to be stored and sent."""

    params: bytes
    """Messages params as JSON."""
    headers: LaneHeaders
    """Headers that all requests of its batch share."""
    identity: bytes | None = None
    """Content that identifies the request, if its params do not.

    It contains the digests of documents instead of the documents, because these may be inline once
    and uploaded files another time."""


_encoder = msgspec.json.Encoder()
_common_headers: dict[tuple[str, tuple[str, ...], str | None], LaneHeaders] = {}


def _headers(api_version: str, betas: Iterable[str], user_profile: str | None) -> LaneHeaders:
    key = (api_version, tuple(betas), user_profile)
    headers = _common_headers.get(key)
    if headers is None:
        # Equal headers share one object, because a run of a million requests has few lanes.
        if len(_common_headers) > 1000:
            _common_headers.clear()
        headers = LaneHeaders(api_version, tuple(sorted(set(key[1]))), user_profile)
        _common_headers[key] = headers
    return headers


def encode_params(
    params: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    betas: Sequence[str] = (),
    api_version: str | None = None,
    user_profile: str | None = None,
    batch: bool = True,
    capabilities: Mapping[str, bool] | None = None,
) -> EncodedRequest:
    """Check Messages params and encode them, once.

    ``defaults`` are parameters that the caller did not set. They fill gaps; a default that the
    model does not accept is dropped with a warning, while a set parameter raises an error.
    ``betas`` in the params (as in the SDK's beta client) move to the headers. ``batch=False`` skips
    the rules that hold only in batches. ``capabilities`` are the caller's data on the model, which
    take precedence over the table in `wire.models`. Raises `InvalidRequestError`.
    """
    merged: dict[str, Any] = {**defaults, **params} if defaults else dict(params)
    model = merged.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequestError("`model` is missing; name one in the actor or in `params`")
    if "max_tokens" not in merged:
        raise InvalidRequestError("`max_tokens` is missing; the API requires it")
    if not merged.get("messages"):
        raise InvalidRequestError("`messages` is missing or empty; give a prompt or messages")
    if batch:
        check_batch_rules(merged)
    version = api_version or API_VERSION
    for name in SAMPLING_PARAMETERS:
        if name not in merged:
            continue
        if merged[name] is None:
            del merged[name]
        elif takes_sampling(model):
            version = SAMPLING_API_VERSION
        elif params.get(name) is not None:
            raise InvalidRequestError(
                f"{model} does not accept `{name}`; remove it from the request or the actor's "
                "options"
            )
        else:
            _log.warning(
                "%s does not accept `%s`: the default %r is dropped", model, name, merged[name]
            )
            del merged[name]
    own_betas = merged.pop("betas", None)
    all_betas = [*betas, *own_betas] if own_betas else betas
    check_params(
        merged, api_version=version, betas=all_betas, batch=batch, capabilities=capabilities
    )
    try:
        encoded = _encoder.encode(merged)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequestError(f"the params cannot be written as JSON: {error}") from None
    if batch and len(encoded) + _ALONE > MAX_BODY_BYTES:
        raise _too_large(encoded)
    return EncodedRequest(encoded, _headers(version, all_betas, user_profile))


def _too_large(encoded: bytes) -> InvalidRequestError:
    return InvalidRequestError(
        f"the request has {len(encoded):,} bytes, more than the {MAX_BODY_BYTES:,} of a whole "
        "batch; shorten the prompt or upload its documents as files"
    )


class PromptParams:
    """`encode_params` for params that differ in only one text; they are checked and encoded once.

    The bytes before and after the text are kept; the result is the same, byte for byte.
    """

    __slots__ = ("_after", "_batch", "_before", "_headers")

    def __init__(self, build: Callable[[str], Mapping[str, Any]], **options: Any) -> None:
        """Encode the params around the text; ``build`` returns the params for a text.

        ``options`` are those of `encode_params`. Raises `InvalidRequestError` if the params are
        invalid with any text.
        """
        # A random text, so its position in the bytes is where the text belongs.
        probe = secrets.token_hex(16)
        encoded = encode_params(build(probe), **options)
        self._before, _, self._after = encoded.params.partition(_encoder.encode(probe))
        self._headers = encoded.headers
        self._batch: bool = options.get("batch", True)

    def encode(self, text: str) -> EncodedRequest:
        """Return the params with this text. Raises `InvalidRequestError`."""
        try:
            encoded = self._before + _encoder.encode(text) + self._after
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"the params cannot be written as JSON: {error}") from None
        if self._batch and len(encoded) + _ALONE > MAX_BODY_BYTES:
            raise _too_large(encoded)
        return EncodedRequest(encoded, self._headers)


_MODEL = re.compile(rb'\{"model":"([^"\\]{1,150})"')


def model_at_beginning(params: bytes) -> str | None:
    """Return the model from the first bytes of encoded params; `None` if they do not name it."""
    found = _MODEL.match(params)
    return None if found is None else found[1].decode(errors="replace")


def custom_id(request_id: str, incarnation: str, sending: int) -> str:
    """Return ``<request id>-<ledger incarnation>-<sending>``, which proves whose a line is."""
    if sending > MAX_SENDING:
        raise InvalidRequestError(
            f"request {request_id} was sent {MAX_SENDING} times without being accepted, and is "
            "not sent again; cancel its run and make a new one"
        )
    return f"{request_id}-{incarnation}-{sending:04d}"


def parse_custom_id(text: str) -> tuple[str, str, int] | None:
    """Return request id, incarnation and sending of a `custom_id`; `None` if it is not ours."""
    # By positions, not by a pattern, because this runs once for every result line.
    sending = text[42:]
    if (
        len(text) != _CUSTOM_ID_LENGTH
        or text[32] != "-"
        or text[41] != "-"
        or not (sending.isdigit() and sending.isascii())
    ):
        return None
    return text[:32], text[33:41], int(sending)


def body_length(count: int, params_bytes: int) -> int:
    """Return the exact bytes of a body with ``count`` requests and ``params_bytes`` of params."""
    commas_saved = 1 if count else 0
    return len(BODY_START) + params_bytes + count * ITEM_OVERHEAD - commas_saved + len(BODY_END)


def body_items(requests: Iterable[tuple[str, bytes]], *, first: bool) -> Iterator[bytes]:
    """Yield pieces of a body for ``(custom_id, params)`` pairs.

    ``first`` omits the comma before the first pair.
    """
    for identifier, params in requests:
        start = _ITEM_START if first else b"," + _ITEM_START
        first = False
        yield b"%b%b%b%b%b" % (start, identifier.encode("ascii"), _ITEM_MIDDLE, params, _ITEM_END)
