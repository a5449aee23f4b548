"""Meaning of each API error for a request, a batch or the account: two tables.

`MEANINGS` defines what follows for a request that ended with an error. `NOT_BILLED` lists the
answers to a POST, of a batch or of a live call, that prove that nothing was processed. Each row
names its source, and docs/explanation/guarantees.md prints both tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from claude_batch.core.errors import STATUS_OF_TYPE as STATUS_OF_TYPE
from claude_batch.core.errors import HaltReason
from claude_batch.core.outcome import Disposition
from claude_batch.wire.inbound import (
    LONGEST_ID,
    Redaction,
    header_word,
    mapping_or_none,
    retry_after,
)


class SendVerdict(Enum):
    """Meaning of an unsuccessful answer to a POST, of a batch or of a live call."""

    WAIT = "a definite no that passes by waiting"  # 429, 529
    TOO_LARGE = "a definite no: the body is too large"  # 413
    BAD_REQUEST = "a definite no: the body is invalid"  # 400
    ACCOUNT = "a definite no: the account's fault"  # 401, 402, 403, spend limits
    CUSTOMER = "a definite no: the user profile that is billed"  # 402, 403 with certain codes
    MISPLACED = "a definite no: nothing is there"  # redirects, 404
    UNKNOWN = "it may have been processed"  # everything else


_ERRORS_PAGE = "https://platform.claude.com/docs/en/api/errors"
_LIMITS_PAGE = "https://platform.claude.com/docs/en/api/rate-limits"
_SDK = "the error classes of the official SDK 2.14"


class Meaning(NamedTuple):
    """One row of the table of errors: the meaning of an error with this type and these words."""

    error_type: str
    words: re.Pattern[str] | None
    """Pattern in the message; `None` for any message."""
    error_code: str | None
    """``details.error_code``; `None` for any code."""
    disposition: Disposition
    """The consequence for a request that ended with the error."""
    halt: HaltReason | None
    """Why sending halts after this answer to an API call; `None` if the request is at fault."""
    source: str


def _row(
    error_type: str,
    disposition: Disposition,
    source: str,
    *,
    halt: HaltReason | None = None,
    words: str | None = None,
    code: str | None = None,
) -> Meaning:
    pattern = None if words is None else re.compile(words)
    return Meaning(error_type, pattern, code, disposition, halt, source)


_FINAL, _RETRY, _ACCOUNT = Disposition.FINAL, Disposition.RETRY, Disposition.ACCOUNT

_INVALID, _RATE = "invalid_request_error", "rate_limit_error"

MEANINGS: tuple[Meaning, ...] = (
    # Messages and codes whose meaning differs from their type. They precede the types.
    _row(
        _INVALID,
        _ACCOUNT,
        _LIMITS_PAGE,
        words=r"^You have reached your specified (workspace )?API usage limits",
        halt="spend_limit",
    ),
    _row(
        _INVALID, _ACCOUNT, _ERRORS_PAGE, words=r"^Your credit balance is too low", halt="billing"
    ),
    _row(
        _INVALID,
        _RETRY,
        "recorded from the API for documents given by URL; not documented",
        words=r"^The request timed out while trying to download the file",
    ),
    _row(_RATE, _ACCOUNT, _LIMITS_PAGE, code="enforced_spend_limit_reached", halt="spend_limit"),
    _row(_RATE, _ACCOUNT, _LIMITS_PAGE, code="contract_spend_limit_reached", halt="spend_limit"),
    # The organization, its workspace or its key cannot send; no request is at fault.
    _row(_INVALID, _ACCOUNT, _SDK, code="organization_on_hold", halt="permission"),
    _row(_INVALID, _ACCOUNT, _SDK, code="cmek_key_disabled", halt="permission"),
    _row(_INVALID, _ACCOUNT, _SDK, code="cmek_key_network_blocked", halt="permission"),
    _row(_INVALID, _ACCOUNT, _SDK, code="workspace_human_review_disabled", halt="permission"),
    _row(_INVALID, _ACCOUNT, _SDK, code="claude_code_key_creator_not_member", halt="credentials"),
    # One customer cannot be billed: the user profile that the request names.
    _row("billing_error", _FINAL, _SDK, code="linked_organization_spend_limit_reached"),
    _row("billing_error", _FINAL, _SDK, code="linked_organization_billing_unavailable"),
    _row("permission_error", _FINAL, _SDK, code="user_profile_billing_not_authorized"),
    _row("permission_error", _FINAL, _SDK, code="user_profile_not_billable"),
    # Types.
    _row("overloaded_error", _RETRY, _ERRORS_PAGE),
    _row("api_error", _RETRY, _ERRORS_PAGE),
    _row("timeout_error", _RETRY, _ERRORS_PAGE),
    _row(_RATE, _RETRY, _ERRORS_PAGE),
    _row("authentication_error", _ACCOUNT, _ERRORS_PAGE, halt="credentials"),
    _row("billing_error", _ACCOUNT, _ERRORS_PAGE, halt="billing"),
    # In a result line it is about that request's model or feature; in an answer, the account.
    _row("permission_error", _FINAL, _ERRORS_PAGE, halt="permission"),
    _row(_INVALID, _FINAL, _ERRORS_PAGE),
    _row("not_found_error", _FINAL, f"{_ERRORS_PAGE}; recorded from the API for unknown models"),
    _row("request_too_large", _FINAL, _ERRORS_PAGE),
    _row("conflict_error", _FINAL, _ERRORS_PAGE),
)
"""Meanings of errors: the first row that matches.

An error without a row is final for its request, because a retry might cost money for the same
answer."""

_ACCOUNT_STATUS: Mapping[int, HaltReason] = {401: "credentials", 402: "billing", 403: "permission"}


def _meaning(
    error_type: str | None, message: str, details: Mapping[str, Any] | None
) -> Meaning | None:
    for row in MEANINGS:
        if (
            row.error_type == error_type
            and (row.words is None or row.words.search(message))
            and (row.error_code is None or (details or {}).get("error_code") == row.error_code)
        ):
            return row
    return None


def account_reason(
    status: int | None, error_type: str | None, message: str, details: Mapping[str, Any] | None
) -> HaltReason | None:
    """Return the account's fault as a halt reason, or `None` if the account is not at fault."""
    row = _meaning(error_type, message, details)
    if row is not None and (row.halt is not None or row.error_code is not None):
        return row.halt  # a code is more precise than the status
    return _ACCOUNT_STATUS.get(status) if status is not None else None


def classify_line(error_type: str, message: str, details: Mapping[str, Any] | None) -> Disposition:
    """Return what follows for a request whose result line is ``errored`` with this error."""
    row = _meaning(error_type, message, details)
    return Disposition.FINAL if row is None else row.disposition


class NotBilled(NamedTuple):
    """One row of the table of answers after which a POST can be repeated without risk."""

    verdict: SendVerdict
    statuses: range
    in_api_words: bool
    """Whether only an answer of the API itself counts: with a ``request-id`` and an error body."""
    meaning: str
    source: str


def _status(first: int, last: int | None = None) -> range:
    return range(first, (first if last is None else last) + 1)


_NO = SendVerdict

NOT_BILLED: tuple[NotBilled, ...] = (
    # A 303 names the result of a POST that was performed, and other 3xx do not deny that.
    *(
        NotBilled(
            _NO.MISPLACED, statuses, False, "a redirect, which is not followed", "RFC 9110, 15.4"
        )
        for statuses in (_status(301, 302), _status(307, 308))
    ),
    NotBilled(_NO.BAD_REQUEST, _status(400), True, "the request is invalid", _ERRORS_PAGE),
    NotBilled(_NO.ACCOUNT, _status(401), True, "the key is refused", _ERRORS_PAGE),
    NotBilled(_NO.ACCOUNT, _status(402), True, "the account cannot pay", _ERRORS_PAGE),
    NotBilled(_NO.ACCOUNT, _status(403), True, "the key may not do this", _ERRORS_PAGE),
    NotBilled(_NO.MISPLACED, _status(404), True, "there is no such model or path", _ERRORS_PAGE),
    NotBilled(
        _NO.TOO_LARGE,
        _status(413),
        False,
        "too large: refused before it reaches the API's servers",
        _ERRORS_PAGE,
    ),
    NotBilled(_NO.WAIT, _status(429), True, "over a limit, so not begun (inferred)", _LIMITS_PAGE),
    NotBilled(_NO.WAIT, _status(529), True, "overloaded, so not begun (inferred)", _ERRORS_PAGE),
)
"""Answers to a POST that prove that nothing was processed, and so nothing is billed.

Any other answer without a success (303, 408, 409, 500 and other 5xx, or any answer of a gateway in
front) may come after the request was processed. So may a broken connection after it was made."""


class ApiFault(msgspec.Struct, frozen=True, kw_only=True):
    """An unsuccessful answer of the API, or of a proxy in front of it."""

    status: int
    error_type: str | None
    """`None` if the body is no error body of the API."""
    message: str
    details: Mapping[str, Any] | None
    request_id: str | None
    retry_after: float | None
    """Seconds that the answer asks to wait."""
    location: str | None = None
    """Target of a redirect."""

    @property
    def from_api(self) -> bool:
        """Whether the API itself answered: with a ``request-id`` and an error body."""
        return self.request_id is not None and self.error_type is not None

    @property
    def account_reason(self) -> HaltReason | None:
        """Why sending must halt, or `None` if the account is not at fault."""
        if not self.from_api:
            return None
        return account_reason(self.status, self.error_type, self.message, self.details)

    @property
    def disposition(self) -> Disposition:
        """Meaning of the error for the request; final if the API itself did not answer."""
        if not self.from_api or self.error_type is None:
            return Disposition.FINAL
        return classify_line(self.error_type, self.message, self.details)

    @property
    def verdict(self) -> SendVerdict:
        """Meaning of the answer to a POST: a definite no (see `NOT_BILLED`), or unknown."""
        for row in NOT_BILLED:
            if self.status in row.statuses and (self.from_api or not row.in_api_words):
                if self.account_reason is not None:
                    return SendVerdict.ACCOUNT
                if row.verdict is SendVerdict.ACCOUNT:
                    return SendVerdict.CUSTOMER
                return row.verdict
        return SendVerdict.UNKNOWN

    @property
    def is_not_billed(self) -> bool:
        """Whether the answer proves that the request was not processed."""
        return self.verdict is not SendVerdict.UNKNOWN

    @property
    def is_redirect(self) -> bool:
        """Whether the call must go elsewhere. Others must too, and no redirect is followed."""
        return 300 <= self.status < 400 and self.is_not_billed

    @property
    def is_refusal(self) -> bool:
        """Whether it is a 429 or 529 that may pass by waiting."""
        return self.status in (429, 529) and self.account_reason is None

    @property
    def passes(self) -> bool:
        """Whether the same reading call may succeed later."""
        return self.status in (408, 409, 429) or self.status >= 500

    def describe(self) -> str:
        """Return one line for people: status, type, message, and the request id for support."""
        words = f"{self.status} {self.error_type or 'answer'}: {self.message}".rstrip(": ")
        return f"{words} (request-id {self.request_id})" if self.request_id else words


class _ErrorDetail(msgspec.Struct):
    type: str
    message: str | None = None
    details: Any = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail


MOST_WORDS = 10_000
"""Most characters of an API message that are kept; its longest ones name a field and a value."""


def fault_of_response(
    status: int, headers: Mapping[str, str], body: bytes, redaction: Redaction
) -> ApiFault:
    """Return the fault of an unsuccessful answer; if the body is not the API's, its first words.

    Credentials that the server echoes are replaced.
    """
    error_type: str | None
    details: Mapping[str, Any] | None = None
    try:
        detail = msgspec.json.decode(body, type=_ErrorBody).error
        error_type, message = detail.type[:LONGEST_ID], detail.message or ""
        details = mapping_or_none(detail.details)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error_type = None
        message = redaction.first_words(body)
    location = headers.get("location")
    return ApiFault(
        status=status,
        error_type=None if error_type is None else redaction.text(error_type),
        message=redaction.text(message[:MOST_WORDS]),
        details=details,
        request_id=header_word(headers, "request-id"),
        retry_after=retry_after(headers),
        location=None if location is None else redaction.text(location[:MOST_WORDS]),
    )
