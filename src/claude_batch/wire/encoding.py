"""Messages params and batch bodies as bytes: each request is checked and encoded once, here.

A batch's body is ``{"requests":[ITEM,ITEM,…]}`` with ``ITEM = {"custom_id":"…","params":PARAMS}``.
The params' bytes are stored in the ledger and sent unchanged, so the size of a body is known
exactly before it exists.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.inbound import LONGEST_ID, check_text, word_or_none
from claude_batch.wire.limits import (
    API_VERSION,
    LONGEST_BETAS,
    LONGEST_MODEL_NAME,
    MAX_BODY_BYTES,
    SAMPLING_API_VERSION,
    SAMPLING_PARAMETERS,
    takes_sampling,
)
from claude_batch.wire.param_checks import (
    check_batch_rules,
    check_params,
    continues_thread,
    is_list_of_text,
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


class LaneHeaders(msgspec.Struct, frozen=True):
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

    def as_lane(self) -> tuple[str, str, str]:
        """Return the columns of the lane, as `of_lane` takes them."""
        return self.api_version, ",".join(self.betas), self.user_profile or ""

    def as_headers(self) -> dict[str, str]:
        """Return the headers as they are sent."""
        headers = {"anthropic-version": self.api_version}
        if self.betas:
            headers["anthropic-beta"] = ",".join(self.betas)
        if self.user_profile is not None:
            headers["anthropic-user-profile-id"] = self.user_profile
        return headers


# A struct, because each request of a run makes one, and a data class takes eight times as long.
class EncodedRequest(msgspec.Struct, frozen=True, gc=False):
    """One request, ready to be stored and sent."""

    params: bytes
    """Messages params as JSON."""
    headers: LaneHeaders
    """Headers that all requests of its batch share."""
    identity: bytes | None = None
    """Content that identifies the request, if its params do not.

    It contains the digests of documents instead of the documents, because these may be inline once
    and uploaded files another time."""


def plain_text(value: object) -> str:
    """Return the text of a subclass of `str`, which msgspec does not encode by itself.

    Templates make such texts, and numpy. Raises ``TypeError`` for any other value.
    """
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encoder = msgspec.json.Encoder(enc_hook=plain_text)


def _check_words(what: str, values: Iterable[str]) -> None:
    """Raise `InvalidRequestError` for a value that is no word of a header, or is a list of them."""
    for value in values:
        if word_or_none(value) is None or "," in value:
            raise InvalidRequestError(
                f"{what} {value[:100]!r} is not a word of 1 to {LONGEST_ID} printable ASCII "
                "characters; correct it"
            )


@lru_cache(maxsize=1000)
def _headers(api_version: str, betas: tuple[str, ...], user_profile: str | None) -> LaneHeaders:
    # Equal headers share one object, because a run of a million requests has few lanes.
    _check_words("the API version", (api_version,))
    _check_words("a beta", betas)
    if (length := len(",".join(betas))) > LONGEST_BETAS:
        raise InvalidRequestError(
            f"the betas have {length:,} characters together; at most {LONGEST_BETAS:,} are possible"
        )
    _check_words("the user profile", () if user_profile is None else (user_profile,))
    return LaneHeaders(api_version, tuple(sorted(set(betas))), user_profile)


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
    take precedence over the table in `wire.limits`. Raises `InvalidRequestError`.
    """
    merged: dict[str, Any] = {**defaults, **params} if defaults else dict(params)
    model = merged.get("model")
    if model is None:
        raise InvalidRequestError("`model` is missing; name one in the actor or in `params`")
    if not isinstance(model, str) or not model:
        raise InvalidRequestError(f"`model` must be a text that is not empty, not {model!r:.100}")
    if len(model) > LONGEST_MODEL_NAME:
        raise InvalidRequestError(
            f"`model` has {len(model):,} characters; at most {LONGEST_MODEL_NAME} are possible"
        )
    if "max_tokens" not in merged:
        raise InvalidRequestError("`max_tokens` is missing; the API requires it")
    messages = merged.get("messages")
    # An empty list resumes a turn of a thread that has paused.
    if not messages and not (messages == [] and continues_thread(merged)):
        raise InvalidRequestError("`messages` is missing or empty; give a prompt or messages")
    if batch:
        check_batch_rules(merged)
    elif merged.get("stream"):
        raise InvalidRequestError(
            "`stream: true` is not supported, because an actor returns whole answers; remove it"
        )
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
    own_betas: object = merged.pop("betas", None)
    if own_betas is not None and not is_list_of_text(own_betas):
        raise InvalidRequestError(f"`betas` must be a list of names, not {own_betas!r:.100}")
    all_betas = [*betas, *cast("Sequence[str]", own_betas)] if own_betas else betas
    check_params(
        merged, api_version=version, betas=all_betas, batch=batch, capabilities=capabilities
    )
    try:
        encoded = _encoder.encode(merged)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequestError(f"the params cannot be written as JSON: {error}") from None
    # JSON has no such numbers, and the encoder writes null in their place.
    if b"null" in encoded and (place := not_finite(merged)) is not None:
        raise InvalidRequestError(
            f"the params cannot be written as JSON: `{place}` is not a finite number"
        )
    try:
        # How deep a decoder gets depends on the stack beneath it, and the driver has another one.
        check_text(encoded)
    except ValueError as error:
        raise InvalidRequestError(f"the params cannot be used: {error}") from None
    if batch and len(encoded) + _ALONE > MAX_BODY_BYTES:
        raise _too_large(encoded)
    return EncodedRequest(encoded, _headers(version, tuple(all_betas), user_profile))


def not_finite(value: object) -> str | None:
    """Return the place of the first NaN or infinity, such as ``tools.0.limit``; None without."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
    elif isinstance(value, list | tuple):
        items = enumerate(cast("Sequence[object]", value))
    for name, item in items:
        if (place := not_finite(item)) is not None:
            return f"{name}.{place}".removesuffix(".")
    return None


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


class _Asked(msgspec.Struct, gc=False):
    model: str = ""
    max_tokens: int = 0


_asked = msgspec.json.Decoder(_Asked)


def asked_of(params: bytes, *, unchecked: bool = False) -> tuple[str, int]:
    """Return the model and ``max_tokens`` of encoded params.

    ``unchecked`` params may be wrong: without a usable value, the result is ``""`` and 0.
    """
    try:
        found = _asked.decode(params)
    except msgspec.ValidationError:
        if not unchecked:
            raise
        return "", 0
    return found.model, max(found.max_tokens, 0)


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
        or not text.isascii()  # the ledger cannot look up a lone surrogate
        or not sending.isdigit()
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
