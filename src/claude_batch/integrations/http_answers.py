"""Map the outcome of a call to the HTTP response of the Messages API.

The SDK and libraries on top of it handle only the API's responses, so every outcome becomes one.
Each has ``x-should-retry: false``, because a client's retry must not submit a request again that is
in the ledger.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import httpx2
import msgspec

from claude_batch.core.errors import (
    AccountHaltedError,
    ActorError,
    BatchRequestError,
    BatchTimeoutError,
    BudgetExceededError,
    HaltReason,
    InvalidRequestError,
    KeyConflictError,
    MissingResultError,
)
from claude_batch.core.quantities import decimal_usd, format_duration
from claude_batch.core.states import RequestState
from claude_batch.integrations.sse import events_of
from claude_batch.ledger.queries import Answer
from claude_batch.providers.mapping import result_of
from claude_batch.wire.error_table import STATUS_OF_TYPE
from claude_batch.wire.messages import error_of_line, message_of_line

_log = logging.getLogger(__name__)

CANCELED: Final = "request_canceled"
"""Error type of a canceled request; the Messages API has none for it."""

_STATUS: Final = {
    **STATUS_OF_TYPE,
    # "Client closed request", which the SDK has a class for. Retry layers of other libraries repeat
    # 408, 409, 425, 429 and 5xx whatever `x-should-retry` says, and would submit a canceled request
    # again.
    CANCELED: 499,
}

_HALTED: Final[dict[HaltReason, str]] = {
    "credentials": "authentication_error",
    "billing": "billing_error",
    "permission": "permission_error",
    "spend_limit": "rate_limit_error",
    "refused": "invalid_request_error",
}
"""The API's type for a halt that the API caused."""

_HALTED_HERE: Final = "permission_error"
"""The type for a halt that claude-batch caused, which only the user can end. Retry layers do not
repeat its status, 403."""


def response_of(answer: Answer, *, stream: bool, failure_ttl: float = 0.0) -> httpx2.Response:
    """Return the response to a call whose request is final; ``stream``: as events.

    ``failure_ttl``: for how many seconds equal calls get the same failure.
    """
    if answer.state is not RequestState.SUCCEEDED or answer.raw is None:
        error = result_of(answer).error
        assert error is not None
        return failure(error, answer, failure_ttl=failure_ttl)
    message = message_of_line(answer.raw)
    content = b"".join(events_of(message)) if stream else message
    kind = "text/event-stream; charset=utf-8" if stream else "application/json"
    headers = {"content-type": kind, **origin_headers(answer.batch_id, answer)}
    return httpx2.Response(200, headers=headers, content=content)


def failure(
    error: Exception, answer: Answer | None = None, *, failure_ttl: float = 0.0
) -> httpx2.Response:
    """Return the response to a call that failed.

    An error that the API itself reported for a request keeps its body, byte for byte.
    """
    kind, details, batch_id, request_id = _described(error)
    headers = {
        "content-type": "application/json",
        "x-should-retry": "false",
        **origin_headers(batch_id, answer),
    }
    if request_id is not None:
        headers["request-id"] = request_id
    if isinstance(error, BatchRequestError) and error.outcome == "errored" and answer is not None:
        assert answer.raw is not None
        body = error_of_line(answer.raw)
    else:
        # The words of other errors are unknown, and may hold what no caller may see.
        message = (
            str(error)
            if isinstance(error, ActorError)
            else f"claude-batch failed: {type(error).__name__}; its log says more"
        )
        if answer is not None and failure_ttl:
            message += (
                f". For {format_duration(failure_ttl)}, an equal call gets this failure without a "
                "request, unless it has the header `claude-batch-failure-ttl: 0`"
            )
        fault = {"type": kind, "message": message, **({"details": details} if details else {})}
        body = msgspec.json.encode(
            {"type": "error", "error": fault, "request_id": headers.get("request-id")}
        )
    return httpx2.Response(_STATUS.get(kind, 500), headers=headers, content=body)


def _described(error: Exception) -> tuple[str, dict[str, Any] | None, str | None, str | None]:
    """Return an error's API type, further details, its batch and its request id."""
    match error:
        case BatchRequestError(outcome="errored"):
            return error.error_type or "api_error", None, error.batch_id, error.request_id
        case BatchRequestError(outcome="canceled"):
            return CANCELED, None, error.batch_id, None
        case BatchRequestError():
            return "timeout_error", None, error.batch_id, None
        case BatchTimeoutError():
            known = error.batch_ids[0] if error.batch_ids else None
            return "timeout_error", None, known, f"batch:{known or error.run_id}"
        case KeyConflictError():
            return "conflict_error", None, None, None
        case InvalidRequestError():
            return "invalid_request_error", None, None, None
        case BudgetExceededError():
            return "billing_error", None, None, None
        case AccountHaltedError():
            # The status identifies the reason; the API's own type for it may be a generic 400.
            details = {"reason": error.reason, "error_type": error.error_type}
            return _HALTED.get(error.reason, _HALTED_HERE), details, None, None
        case MissingResultError():
            return "api_error", None, error.batch_id, None
        case ActorError():
            return "api_error", None, None, None
        case _:
            _log.error("a call through the client failed", exc_info=error)
            return "api_error", None, None, None


def origin_headers(batch_id: str | None, answer: Answer | None) -> dict[str, str]:
    """Return headers that identify the origin of an answer, as far as it is known."""
    headers: dict[str, str] = {}
    if batch_id is not None:
        # Result lines of a batch have no request id; this value can be searched for.
        headers["request-id"] = f"batch:{batch_id}"
        headers["claude-batch-batch-id"] = batch_id
    if answer is not None:
        headers["claude-batch-attempt"] = str(answer.attempt)
        headers["claude-batch-via"] = answer.via
        if answer.cost is not None:
            headers["claude-batch-cost-usd"] = decimal_usd(answer.cost)
        if answer.reused:
            headers["claude-batch-reused"] = "true"
    return headers
