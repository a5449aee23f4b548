"""The API's errors: one table of statuses, and one body format.

Source: https://platform.claude.com/docs/en/api/errors
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

STATUS_OF = {
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
"""HTTP status of each error type."""

TYPE_OF = {status: name for name, status in STATUS_OF.items()}
"""Error type of each HTTP status."""

MESSAGE_OF = {
    "invalid_request_error": "The request was invalid.",
    "authentication_error": "API key is invalid.",
    "billing_error": "There is an issue with your billing or payment information.",
    "permission_error": "Your API key does not have permission to use the specified resource.",
    "not_found_error": "Not found",
    "conflict_error": "The request conflicts with the current state of the resource.",
    "request_too_large": "Request exceeds the maximum size",
    "rate_limit_error": "This request would exceed your organization's rate limit.",
    "api_error": "Internal server error",
    "timeout_error": "Request timed out",
    "overloaded_error": "Overloaded",
}
"""Default message of each error type."""


NAMED = {
    "download_timeout": (
        "invalid_request_error",
        "The request timed out while trying to download the file. Please try again later.",
    ),
    "download_failed": (
        "invalid_request_error",
        "Unable to download the file. Please verify the URL and try again.",
    ),
}
"""Errors with a name of the sandbox's own: the API's type and message for them."""


TOO_DEEP = "The request body is nested too deeply"
"""Error message for a body that exceeds the decoder's nesting limit."""

_log = logging.getLogger(__name__)


class ApiError(Exception):
    """An API error response; `status` defaults to that of its `type`."""

    def __init__(
        self,
        type: str,
        message: str | None = None,
        *,
        status: int | None = None,
        details: Any = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.type = type
        self.message: str = MESSAGE_OF.get(type, type) if message is None else message
        self.status: int = STATUS_OF.get(type, 400) if status is None else status
        self.details = details
        self.headers: dict[str, str] = headers or {}
        super().__init__(f"{self.status} {type}: {self.message}")


def error_named(name: str) -> ApiError | None:
    """Return a new error of one of the API's types or of `NAMED`, or `None` for another name."""
    if name in NAMED:
        return ApiError(*NAMED[name])
    return ApiError(name) if name in STATUS_OF else None


def as_api_error(error: Exception, where: str) -> ApiError:
    """Return the error with which a request or a call ends that raised this exception.

    If the sandbox itself failed, that is logged; ``where`` says at what.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        return ApiError("invalid_request_error", TOO_DEEP)
    _log.error("the sandbox failed at %s", where, exc_info=error)
    return ApiError("api_error", f"{MESSAGE_OF['api_error']}: the sandbox failed with {error!r}")


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the body of an error response."""
    fields: dict[str, Any] = {"type": error.type, "message": error.message}
    if error.details is not None:
        fields["details"] = error.details
    return {"type": "error", "error": fields, "request_id": request_id}


_USERS_OWN = ("invalid_request_error", "not_found_error")
_WHILE_PROCESSING = frozenset(message for _, message in NAMED.values())


def line_error(error: ApiError, number: str) -> dict[str, Any]:
    """Return the outer `error` of an errored result line; `number` makes its id unique.

    `details` is null unless the error is the user's own. `request_id` is null unless the request
    failed while it was processed.
    """
    details = error.details
    if details is None and error.type in _USERS_OWN:
        details = {"error_visibility": "user_facing"}
    checked = error.type in _USERS_OWN and error.message not in _WHILE_PROCESSING
    return {
        "type": "error",
        "error": {"details": details, "type": error.type, "message": error.message},
        "request_id": None if checked else f"workerreq_{number}",
    }


# Invalid bodies -----------------------------------------------------------------------------------

_T = TypeVar("_T")

_MISSING = re.compile(r"Object missing required field `(.+?)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`")
_EXPECTED = re.compile(r"Expected `(.+?)`, got `(.+?)`")
_PATH = re.compile(r" - at `(?:key in )?\$(.*)`$")
_KINDS = {
    "str": "string",
    "int": "integer",
    "array": "list",
    "object": "dictionary",
    "str | array": "string or list",
    "array | null": "list",
    "str | array | null": "string or list",
}


def api_message(problem: str, prefix: str = "") -> str:
    """Return a decoder's error in the API's style: `requests.0.custom_id: Field required`."""
    path = prefix
    at = _PATH.search(problem)
    if at is not None:
        # `.requests[0].custom_id` becomes `requests.0.custom_id`.
        path += at[1].replace("[", ".").replace("]", "")
    path = path.strip(".")
    if match := _MISSING.match(problem):
        return f"{path}.{match[1]}: Field required".lstrip(".")
    if match := _UNKNOWN.match(problem):
        return f"{path}.{match[1]}: Extra inputs are not permitted".lstrip(".")
    if match := _EXPECTED.match(problem):
        kind = _KINDS.get(match[1], match[1])
        return f"{path or 'body'}: Input should be a valid {kind}"
    return f"{path or 'body'}: {problem}"


def invalid(message: str) -> ApiError:
    """Return the error of a body or parameter that is not valid (400)."""
    return ApiError("invalid_request_error", message)


def unknown_tag(where: str, kind: str, known: tuple[str, ...]) -> ApiError:
    """Return the error of a `type` that is none of the known ones."""
    return invalid(
        f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: "
        f"{', '.join(repr(each) for each in known)}"
    )


def decoded(decode: Callable[[Raw | bytes], _T], raw: Raw | bytes, path: str = "") -> _T:
    """Return JSON that stands at this path of a body; raises `ApiError` (400) if it is invalid."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise invalid(api_message(str(error), path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        words = f"{path}: not valid JSON" if path else "The request body is not valid JSON"
        raise invalid(f"{words}: {error}") from None
    except RecursionError:
        raise invalid(TOO_DEEP) from None
