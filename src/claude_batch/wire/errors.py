"""What each error of the API means for a request, a batch or the account: one table, read once.

Sources: https://platform.claude.com/docs/en/api/errors and, for the messages by which limits of
the account are told, https://platform.claude.com/docs/en/api/rate-limits. That 429 and 529 on a
create call mean that nothing was created is inferred from both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum
from typing import Any

import msgspec

from claude_batch.core.errors import HaltReason

__all__ = [
    "STATUS_OF_TYPE",
    "ApiFault",
    "CreateVerdict",
    "LineDisposition",
    "account_reason",
    "classify_create",
    "classify_line",
    "fault_of_response",
    "retry_after",
    "server_time",
]


class LineDisposition(StrEnum):
    """What becomes of a request after a result line."""

    FINAL = "final"  # the outcome stands
    RETRY = "retry"  # a passing fault: sent again while attempts are left
    ACCOUNT = "account"  # the account's fault: back to the queue, and sending halts
    # Successes that are not the end of an answer, or no answer, for whoever heeds it:
    PAUSED = "paused"  # a long turn, which goes on where it is sent again
    TOOLS = "tools"  # the model calls tools, and waits for what they give
    REFUSED = "refused"  # the model declined
    WINDOW_EXCEEDED = "window_exceeded"  # the answer ends where the context window does


class CreateVerdict(Enum):
    """What the answer to a create call says of the batch."""

    WAIT = "a definite no that passes by waiting"  # 429, 529
    TOO_LARGE = "a definite no: the body is too large"  # 413
    BAD_REQUEST = "a definite no: the body is invalid"  # 400
    ACCOUNT = "a definite no: the account's fault"  # 401, 402, 403, spend limits
    MISPLACED = "a definite no: nothing is there"  # 3xx, 404
    UNKNOWN = "it may have been accepted"  # everything else


# type → what a result line of that type means; a type that the table does not know is final,
# since sending it again might cost money for the same answer.
_LINE: Mapping[str, LineDisposition] = {
    "overloaded_error": LineDisposition.RETRY,
    "api_error": LineDisposition.RETRY,
    "timeout_error": LineDisposition.RETRY,
    "rate_limit_error": LineDisposition.RETRY,
    "authentication_error": LineDisposition.ACCOUNT,
    "billing_error": LineDisposition.ACCOUNT,
    # permission_error stays final on a line: it speaks of that request's model or feature.
}

STATUS_OF_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP status that the API answers with for each error type."""

_ACCOUNT_TYPES: Mapping[str, HaltReason] = {
    "authentication_error": "credentials",
    "billing_error": "billing",
    "permission_error": "permission",
}
_ACCOUNT_STATUS: Mapping[int, HaltReason] = {401: "credentials", 402: "billing", 403: "permission"}
_SPEND_CODES = frozenset(("enforced_spend_limit_reached", "contract_spend_limit_reached"))
_SPEND_MESSAGES = (
    "You have reached your specified API usage limits",
    "You have reached your specified workspace API usage limits",
)
_CREDIT_MESSAGE = "Your credit balance is too low"


def _limit_reason(
    error_type: str | None, message: str, details: Mapping[str, Any] | None
) -> HaltReason | None:
    if error_type == "rate_limit_error" and details:
        return "spend_limit" if details.get("error_code") in _SPEND_CODES else None
    if error_type == "invalid_request_error":
        if message.startswith(_SPEND_MESSAGES):
            return "spend_limit"
        if message.startswith(_CREDIT_MESSAGE):
            return "billing"
    return None


def account_reason(
    status: int | None, error_type: str | None, message: str, details: Mapping[str, Any] | None
) -> HaltReason | None:
    """Why the account, and not the request, is at fault; None where it is not."""
    if error_type is not None and error_type in _ACCOUNT_TYPES:
        return _ACCOUNT_TYPES[error_type]
    if (limit := _limit_reason(error_type, message, details)) is not None:
        return limit
    return _ACCOUNT_STATUS.get(status) if status is not None else None


def classify_line(
    error_type: str, message: str, details: Mapping[str, Any] | None
) -> LineDisposition:
    """What becomes of a request whose result line is ``errored`` with this error."""
    if _limit_reason(error_type, message, details) is not None:
        return LineDisposition.ACCOUNT
    return _LINE.get(error_type, LineDisposition.FINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFault:
    """An answer of the API (or of something in front of it) that is no success."""

    status: int
    error_type: str | None
    """None where the body is no error body of the API."""
    message: str
    details: Mapping[str, Any] | None
    request_id: str | None
    retry_after: float | None
    """Seconds, as the answer asks."""
    location: str | None = None
    """Where a redirect points."""

    @property
    def from_api(self) -> bool:
        """True where the API itself answered: with a ``request-id`` and an error body."""
        return self.request_id is not None and self.error_type is not None

    @property
    def account_reason(self) -> HaltReason | None:
        """Why sending must halt; None where the account is not at fault."""
        if not self.from_api:
            return None
        return account_reason(self.status, self.error_type, self.message, self.details)

    @property
    def passes(self) -> bool:
        """True where the same reading call may work later."""
        return self.status in (408, 409, 429) or self.status >= 500

    def describe(self) -> str:
        """One line for people: status, type, message, and the request id for support."""
        words = f"{self.status} {self.error_type or 'answer'}: {self.message}".rstrip(": ")
        return f"{words} (request-id {self.request_id})" if self.request_id else words


class _ErrorDetail(msgspec.Struct):
    type: str
    message: str = ""
    details: dict[str, Any] | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail


def fault_of_response(status: int, headers: Mapping[str, str], body: bytes) -> ApiFault:
    """Read an answer that is no success; a body that is not the API's keeps its first words."""
    try:
        detail = msgspec.json.decode(body, type=_ErrorBody).error
        error_type, message, details = detail.type, detail.message, detail.details
    except (msgspec.DecodeError, UnicodeDecodeError):
        error_type, details = None, None
        message = " ".join(body[:500].decode("utf-8", "replace").split())[:200]
    return ApiFault(
        status=status,
        error_type=error_type,
        message=message,
        details=details,
        request_id=headers.get("request-id"),
        retry_after=retry_after(headers),
        location=headers.get("location"),
    )


def classify_create(fault: ApiFault) -> CreateVerdict:
    """Whether the answer to a create call is a definite no, and which."""
    if fault.status == 413:  # answered by a proxy in front, whose body need not be JSON
        return CreateVerdict.TOO_LARGE
    if 300 <= fault.status < 400:
        return CreateVerdict.MISPLACED
    if not fault.from_api:
        return CreateVerdict.UNKNOWN
    if fault.status in (400, 401, 402, 403, 404, 429, 529):
        if fault.account_reason is not None:
            return CreateVerdict.ACCOUNT
        if fault.status in (429, 529):
            return CreateVerdict.WAIT
        return CreateVerdict.BAD_REQUEST if fault.status == 400 else CreateVerdict.MISPLACED
    return CreateVerdict.UNKNOWN


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that ``retry-after-ms`` or ``retry-after`` (seconds or a date) asks to wait."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            return max(0.0, float(value) * scale)
        except ValueError:
            pass
        try:
            now = server_time(headers)
            return None if now is None else max(0.0, _timestamp(value) - now)
        except ValueError:
            continue
    return None


def server_time(headers: Mapping[str, str]) -> float | None:
    """The ``Date`` header as seconds since the epoch; None where there is none."""
    value = headers.get("date")
    if value is None:
        return None
    try:
        return _timestamp(value)
    except ValueError:
        return None


def _timestamp(value: str) -> float:
    return parsedate_to_datetime(value).timestamp()
