"""Messages params and batch bodies as bytes: each request is encoded once, here.

A batch's body is ``{"requests":[ITEM,ITEM,…]}`` with
``ITEM = {"custom_id":"…","params":PARAMS}``; the params' bytes are stored in the ledger and pass
through unchanged, so the size of a body is known exactly before it exists.
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

__all__ = [
    "BODY_END",
    "BODY_START",
    "ITEM_OVERHEAD",
    "EncodedRequest",
    "LaneHeaders",
    "PromptParams",
    "body_items",
    "body_length",
    "custom_id",
    "encode_params",
    "parse_custom_id",
]

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
"""Bytes that a request adds to a body beyond its params, the separating comma included."""

_ALONE: Final = ITEM_OVERHEAD + len(BODY_START) + len(BODY_END)
"""Bytes that a body has beyond the params of its only request."""

MAX_SENDING: Final = 9999
"""The highest number of sendings of one request that its four digits can tell."""


@dataclass(frozen=True, slots=True)
class LaneHeaders:
    """What of a create call's headers all requests of a batch must share."""

    api_version: str = API_VERSION
    """``anthropic-version``."""
    betas: tuple[str, ...] = ()
    """``anthropic-beta``, sorted, each once."""
    user_profile: str | None = None
    """``anthropic-user-profile-id``."""

    def as_headers(self) -> dict[str, str]:
        """The headers as they are sent."""
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
    """The Messages params as JSON."""
    headers: LaneHeaders
    """What must be shared by all requests that travel with it."""
    identity: bytes | None = None
    """What tells the request again, where that is not its params: with the digests of documents
    instead of the documents, which may be written out once and be uploaded files another time."""


_encoder = msgspec.json.Encoder()
_common_headers: dict[tuple[str, tuple[str, ...], str | None], LaneHeaders] = {}


def _headers(api_version: str, betas: Iterable[str], user_profile: str | None) -> LaneHeaders:
    key = (api_version, tuple(betas), user_profile)
    headers = _common_headers.get(key)
    if headers is None:
        # One object for equal headers: a run of a million requests has a handful of lanes.
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

    ``defaults`` are parameters that the caller did not set: they fill gaps, and one that the model
    does not take is dropped with a warning, where a set one is refused. ``betas`` in the params
    (as the SDK's beta client takes them) move to the headers. ``batch=False`` skips the rules that
    hold in batches only. ``capabilities`` are what the caller knows of the model, before the table
    in `wire.models`. Raises `InvalidRequestError`.
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
                f"{model} takes no `{name}`; remove it from the request or the actor's options"
            )
        else:
            _log.warning("%s takes no `%s`: the default %r is dropped", model, name, merged[name])
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
        f"{len(encoded):,} bytes are more than the {MAX_BODY_BYTES:,} that a whole batch may "
        "have; shorten the prompt or upload its documents as files"
    )


class PromptParams:
    """`encode_params` for params that differ in nothing but one text, checked and encoded once.

    What stands before and after the text is kept as bytes; the result is the same, byte for byte.
    """

    __slots__ = ("_after", "_batch", "_before", "_headers")

    def __init__(self, build: Callable[[str], Mapping[str, Any]], **options: Any) -> None:
        """``build`` gives the params for a text; ``options`` are those of `encode_params`.

        Raises `InvalidRequestError` where the params cannot be used whatever the text is.
        """
        # Nobody can have written it: where it stands in the bytes is where the text belongs.
        probe = secrets.token_hex(16)
        encoded = encode_params(build(probe), **options)
        self._before, _, self._after = encoded.params.partition(_encoder.encode(probe))
        self._headers = encoded.headers
        self._batch: bool = options.get("batch", True)

    def encode(self, text: str) -> EncodedRequest:
        """The params with this text. Raises `InvalidRequestError`."""
        try:
            encoded = self._before + _encoder.encode(text) + self._after
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"the params cannot be written as JSON: {error}") from None
        if self._batch and len(encoded) + _ALONE > MAX_BODY_BYTES:
            raise _too_large(encoded)
        return EncodedRequest(encoded, self._headers)


_MODEL = re.compile(rb'\{"model":"([^"\\]{1,150})"')


def model_at_beginning(params: bytes) -> str | None:
    """The model of encoded params of which only a beginning is given; None where it says none."""
    found = _MODEL.match(params)
    return None if found is None else found[1].decode(errors="replace")


def custom_id(request_id: str, incarnation: str, sending: int) -> str:
    """``<request id>-<ledger incarnation>-<sending>``: a line that bears it proves whose it is."""
    if sending > MAX_SENDING:
        raise InvalidRequestError(
            f"request {request_id} was posted {MAX_SENDING} times without being taken; "
            "it is not sent again: cancel its run and ask anew"
        )
    return f"{request_id}-{incarnation}-{sending:04d}"


def parse_custom_id(text: str) -> tuple[str, str, int] | None:
    """Take a `custom_id` apart: request id, incarnation, sending; None for one that is not ours."""
    # By its places, not by a pattern: this runs once for every result line.
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
    """Exact bytes of a body with ``count`` requests whose params have ``params_bytes`` in all."""
    commas_saved = 1 if count else 0
    return len(BODY_START) + params_bytes + count * ITEM_OVERHEAD - commas_saved + len(BODY_END)


def body_items(requests: Iterable[tuple[str, bytes]], *, first: bool) -> Iterator[bytes]:
    """Pieces of a body for ``(custom_id, params)`` pairs; ``first``: no comma before the first."""
    for identifier, params in requests:
        start = _ITEM_START if first else b"," + _ITEM_START
        first = False
        yield b"%b%b%b%b%b" % (start, identifier.encode("ascii"), _ITEM_MIDDLE, params, _ITEM_END)
