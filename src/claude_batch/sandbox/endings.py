"""The outcome of one request: by validation, a directive in its prompt, or the fault plan.

Directives may stand anywhere in the params' text: `[[sandbox:OUTCOME]]`, with OUTCOME `errored`,
`errored:TYPE` (also `download_timeout` and `download_failed`), `expired`, `canceled` or `refused`.
With `:once` at the end, they apply only the first time that equal params are processed. Directives
about turns are in `.answers`. An ending is stored only if it is not the ordinary success, so a
large batch of ordinary requests needs little memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .answers import TURNS, Answer, answer, refusal, respond, turn
from .api_errors import ApiError, error_named
from .fault_plan import OUTCOMES, FaultPlan
from .file_store import FILE_MARK, Files
from .sandbox_settings import Responder
from .token_usage import CacheUse, PromptCache, Usage, params_sha256
from .validation import CallContext, Request, check_params

DIRECTIVE_MARK = b"[[sandbox:"
CACHE_MARK = b'"cache_control"'
TOOLS_MARK = b'"tools"'
RESULT_MARK = b'"tool_result"'
"""In the next request of a thread (`thread.type: continue`), which does not repeat its tools."""
_DIRECTIVE = re.compile(rb"\[\[sandbox:([a-z_:0-9]+)\]\]")


@dataclass(slots=True)
class Ending:
    """The outcome of a request, unless it is the success with its default answer."""

    outcome: str
    """`succeeded`, `errored`, `canceled` or `expired`."""
    error: ApiError | None = None
    answer: Answer | None = None
    """The answer, if it is not the default answer of the params."""
    cache: CacheUse | None = None


CANCELED = Ending("canceled")
EXPIRED = Ending("expired")


class Endings:
    """Decides endings; stores the `once` directives that were used, and the prompt cache."""

    def __init__(
        self, responder: Responder | None, seed: int, files: Files, *, uses_tools: bool = False
    ) -> None:
        self.files = files
        self.responder = responder
        self.uses_tools = uses_tools
        self.seed = seed
        self.plan: FaultPlan = FaultPlan()
        self.cache: PromptCache = PromptCache()
        self._once: set[tuple[str, str]] = set()

    def looks_at(self, body: bytes) -> bool:
        """Return whether any request of this body may end by more than its own validity."""
        return (
            self.responder is not None
            or (self.uses_tools and (TOOLS_MARK in body or RESULT_MARK in body))
            or self.plan.about_requests
            or DIRECTIVE_MARK in body
            or CACHE_MARK in body
            or FILE_MARK in body
        )

    def decide(
        self, raw: bytes, custom_id: str | None, context: CallContext, workspace: str, now: float
    ) -> Ending | None:
        """Return the ending of one request, or `None` for a plain success. Counts as processing."""
        try:
            ending = self._requested(raw, custom_id)
            if ending is not None and ending.outcome != "succeeded":
                # A live message cannot expire or be canceled: it is answered.
                if ending.outcome == "errored" or context.batch:
                    return ending
                ending = None
            request = check_params(raw, context)
            if FILE_MARK in raw:
                self.files.put_into(request, workspace, context)
            if ending is None and self.responder is not None:
                made = respond(self.responder, raw, request.params)
                ending = None if made is None else Ending("succeeded", answer=made)
            if ending is None and (self.uses_tools or DIRECTIVE_MARK in raw):
                made = turn(raw, request, self.seed, uses_tools=self.uses_tools)
                ending = None if made is None else Ending("succeeded", answer=made)
        except ApiError as error:
            return Ending("errored", error=error)
        cache = self.cache.use(workspace, raw, now) if CACHE_MARK in raw else None
        if cache is None:
            return ending
        ending = ending or Ending("succeeded")
        ending.cache = cache
        return ending

    def _requested(self, raw: bytes, custom_id: str | None) -> Ending | None:
        directed = self._directed(raw) if DIRECTIVE_MARK in raw else None
        if not self.plan.about_requests:
            return directed
        rule = self.plan.ending(custom_id, raw.decode("utf-8", "replace"), params_sha256(raw))
        if rule is None or directed is not None:
            return directed
        if rule.error is None:
            return _ending(rule.outcome, ApiError("api_error"))
        error = ApiError(rule.error.type, rule.error.message, details=rule.error.details)
        return Ending("errored", error=error)

    def _directed(self, raw: bytes) -> Ending | None:
        for match in _DIRECTIVE.finditer(raw):
            words = match[1].decode().split(":")
            once = len(words) > 1 and words[-1] == "once"
            if once:
                words.pop()
                key = (match[1].decode(), params_sha256(raw))
                if key in self._once:
                    continue
                self._once.add(key)
            outcome = words[0]
            if outcome in TURNS:
                continue
            error = error_named(words[1] if len(words) > 1 else "api_error")
            if outcome not in OUTCOMES or error is None or len(words) > 2:
                raise ApiError(
                    "invalid_request_error", f"unknown directive {match[0].decode()} in the prompt"
                )
            return _ending(outcome, error)
        return None


def _ending(outcome: str, error: ApiError) -> Ending:
    if outcome == "refused":
        return Ending("succeeded", answer=refusal())
    return Ending(outcome, error=error if outcome == "errored" else None)


def answer_and_usage(request: Request, ending: Ending | None, seed: int) -> tuple[Answer, Usage]:
    """Return the message of a request that succeeded, and its usage."""
    given = ending.answer if ending is not None else None
    if given is None:
        given = answer(request, seed)
    cache = ending.cache if ending is not None else None
    tokens = request.input_tokens
    if cache is not None:
        return given, cache.of(tokens, given.output_tokens)
    return given, Usage(tokens, given.output_tokens)
