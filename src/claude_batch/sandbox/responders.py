"""Answers made by the user's function (`--responder module:function`).

The function is called once for each request, with its decoded params, and returns

- a string: the text of the answer (cut at `max_tokens` as the API would);
- a list: the content blocks;
- a mapping with `content` (string or blocks) and, optionally, `stop_reason`, `stop_sequence`,
  `stop_details` and `usage` (fields that replace the sandbox's own);
- a mapping with `error` (`type`, `message`, `details`): the request ends errored;
- `None`: the sandbox's own answer.

An exception ends the request in an `api_error` that names it; the batch continues.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from .answers import Answer, text_content, tokens_of
from .api_errors import ApiError
from .sandbox_settings import Responder
from .validation import Params


class ResponderError(ValueError):
    """`--responder` names an object that cannot be called."""


def load_responder(named: str | Responder) -> Responder:
    """Return the function of `module:function`; the working directory is searched first."""
    if not isinstance(named, str):
        return named
    module_name, _, function_name = named.partition(":")
    if not module_name or not function_name:
        raise ResponderError(f"--responder {named!r}: write module:function")
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
        for part in function_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ResponderError(f"--responder {named!r}: {error}") from error
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ResponderError(f"--responder {named!r} is not a plain function")
    return cast(Responder, found)


def respond(responder: Responder, raw: bytes, params: Params) -> Answer | None:
    """Return the responder's answer, or `None` for the sandbox's own.

    Raises `ApiError` if the responder fails.
    """
    try:
        given = responder(msgspec.json.decode(raw))
    except Exception as error:
        raise ApiError("api_error", f"responder raised {type(error).__name__}: {error}") from error
    if given is None:
        return None
    try:
        made = _read(given, params)
        # An answer that cannot be sent must fail now, not in the middle of a results stream.
        msgspec.json.encode([made.content, made.usage, made.stop_details])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ApiError("api_error", f"responder gave no answer: {error!r}") from error
    return made


def _read(given: Any, params: Params) -> Answer:
    if not isinstance(given, Mapping):
        return _answer(given, params)
    fields = cast(Mapping[str, Any], given)
    if "error" in fields:
        error = cast(Mapping[str, Any], fields["error"])
        kind, message, details = error.get("type"), error.get("message"), error.get("details")
        msgspec.json.encode([message, details])
        raise ApiError(str(kind or "api_error"), message, details=details)
    made = _answer(fields["content"], params)
    made.stop_reason = fields.get("stop_reason", made.stop_reason)
    made.stop_sequence = fields.get("stop_sequence", made.stop_sequence)
    made.stop_details = fields.get("stop_details")
    made.usage = dict(fields.get("usage") or {})
    return made


def _answer(content: Any, params: Params) -> Answer:
    if isinstance(content, str):
        return text_content(content, params)
    if not isinstance(content, list):
        raise TypeError(f"{type(content).__name__} is neither text nor a list of blocks")
    blocks = cast(list[dict[str, Any]], content)
    called = "tool_use" in [block["type"] for block in blocks]
    tokens = tokens_of(msgspec.json.encode(blocks).decode())
    return Answer(blocks, "tool_use" if called else "end_turn", output_tokens=tokens)
