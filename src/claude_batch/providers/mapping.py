"""Map the ledger's records to what callers receive: responses and exceptions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from claude_batch.actor.response import ActorResponse, ActorResult, time_of
from claude_batch.core.errors import (
    ActorError,
    AnswerError,
    AnswerRefusedError,
    BatchRequestError,
    CanceledBy,
    ContextWindowExceededError,
    ConversationStoppedError,
    LiveRequestError,
    MalformedAnswerError,
    MissingResultError,
    OutputValidationError,
    SubmissionUnknownError,
    ToolInterruptedError,
    TurnLimitError,
    TurnsForgottenError,
    request_name,
)
from claude_batch.core.quantities import count_of
from claude_batch.core.settings import command_naming
from claude_batch.core.states import RequestState
from claude_batch.ledger.queries import Answer
from claude_batch.wire.messages import LineError, decode_line, message_of_line, problem_of_line

# Answer errors ------------------------------------------------------------------------------------


def answer_error(
    state: RequestState,
    response: ActorResponse,
    who: str,
    stopped: str | None,
    note: str | None,
) -> AnswerError:
    """Return the error for an unusable answer; ``who`` names its request.

    ``stopped``: why its conversation stopped, one of `claude_batch.core.states.Stop`; ``note`` is
    the same in words.
    """
    about: dict[str, Any] = {
        "text": response.text,
        "stop_reason": response.stop_reason,
        "batch_id": response.batch_id,
        "response": response,
    }
    if state is RequestState.REFUSED:
        return AnswerRefusedError(
            f"{who}: the model declined to answer; change the request, or use another model",
            **about,
        )
    if state is RequestState.WINDOW_EXCEEDED:
        return ContextWindowExceededError(
            f"{who}: prompt and answer filled the model's context window. The answer so far was "
            "billed and is kept. Shorten the prompt",
            **about,
        )
    note = note or ""
    if stopped == "invalid_output":
        return OutputValidationError(
            f"{who}: no answer matched the requested format. The last one failed because {note}. "
            "The answers were billed; the text of the last one is kept. Make the prompt or the "
            "schema clearer, or raise validation_attempts",
            problem=note,
            **about,
        )
    kept = "The conversation so far is kept"
    if stopped == "max_turns":
        return TurnLimitError(
            f"{who}: {note}. {kept}; raise max_turns and send the request in a new run", **about
        )
    if stopped == "tool_interrupted":
        return ToolInterruptedError(
            f"{who}: {note}. {kept}; check what the tool has done, then send the request in a new "
            "run",
            **about,
        )
    if stopped == "turns_forgotten":
        return TurnsForgottenError(f"{who}: {note}. {kept}; send the request in a new run", **about)
    return ConversationStoppedError(f"{who}: {note}. {kept}", **about)


_STATES = (
    (AnswerRefusedError, RequestState.REFUSED),
    (ContextWindowExceededError, RequestState.WINDOW_EXCEEDED),
    (MalformedAnswerError, RequestState.MALFORMED),
    (AnswerError, RequestState.STOPPED),
)


def state_of(error: ActorError) -> RequestState:
    """Return the state that a ledger has for a live call with this error."""
    if isinstance(error, LiveRequestError) and error.may_be_billed:
        return RequestState.LOST
    found = (state for kind, state in _STATES if isinstance(error, kind))
    return next(found, RequestState.ERRORED)


# Mapping ------------------------------------------------------------------------------------------


def result_of(answer: Answer, location: str | None = None) -> ActorResult:
    """Return the result of a request that has its final state.

    Commands in the text of its error name the ledger of ``location``, if that is given.
    """
    outcome = _outcome(answer, location)
    is_response = isinstance(outcome, ActorResponse)
    return ActorResult(
        key=answer.key,
        position=answer.position,
        response=outcome if is_response else None,
        error=None if is_response else outcome,
        reused=bool(answer.reused),
        answered=time_of(answer.answered),
        context=context_of(answer),
    )


def context_of(answer: Answer) -> Any:
    """Return the context that the ledger has for a request, or None."""
    return None if answer.context is None else msgspec.json.decode(answer.context)


def response_of(answer: Answer, location: str | None = None) -> ActorResponse:
    """Return the response of a request that has its final state, or raise its error.

    ``location`` as in `result_of`.
    """
    outcome = _outcome(answer, location)
    if isinstance(outcome, ActorError):
        raise outcome
    return outcome


_ANSWERED = (RequestState.REFUSED, RequestState.WINDOW_EXCEEDED, RequestState.STOPPED)


def _response(answer: Answer, raw: bytes) -> ActorResponse:
    return ActorResponse(
        message_of_line(raw),
        batch_id=answer.batch_id,
        attempt=answer.attempt,
        cost=answer.cost,
        turns=answer.turns,
        reused=bool(answer.reused),
        answered=answer.answered,
        context=context_of(answer),
    )


def _outcome(answer: Answer, location: str | None) -> ActorResponse | ActorError:
    if answer.state is RequestState.SUCCEEDED and answer.raw is not None:
        return _response(answer, answer.raw)
    error = _Failure(answer, location).error()
    # An error that was not billed, and follows no answer that was, has no cost rather than 0.
    error.cost = error.cost if error.cost is not None else answer.cost or None
    return error


class _Failure:
    """A request without a usable answer."""

    def __init__(self, answer: Answer, location: str | None) -> None:
        self._answer = answer
        self._location = location
        self._is_call = answer.kind == "calls"
        if self._is_call and answer.key is None:
            self._who = "the call"
        else:
            self._who = request_name(answer.key, answer.position)
        where = f" in batch {answer.batch_id}" if answer.batch_id else ""
        self._sent = self._who + (" sent live" if answer.via == "live" else where)

    def _command(self, verb: str, flags: str) -> str:
        words = f"claude-batch {verb} {self._answer.run_id} {flags}"
        return words if self._location is None else command_naming(words, self._location)

    def error(self) -> ActorError:
        """Return the error that its caller gets."""
        answer = self._answer
        state, raw = answer.state, answer.raw
        if state is RequestState.ERRORED and raw is not None:
            return self._errored(raw)
        if state is RequestState.EXPIRED:
            return self._not_run() if raw is None else self._expired()
        if state is RequestState.MALFORMED and raw is not None:
            return self._malformed(raw)
        if state in _ANSWERED and raw is not None:
            response = _response(answer, raw)
            return answer_error(state, response, self._sent, answer.stopped, answer.note)
        if state is RequestState.CANCELED:
            return self._canceled()
        return self._lost_call(raw) if answer.via == "live" else self._lost()

    def _errored(self, raw: bytes) -> ActorError:
        answer, error = self._answer, decode_line(raw).error
        assert error is not None
        tries = f" after {answer.attempt} attempts" if answer.attempt > 1 else ""
        return BatchRequestError(
            f"{self._sent} errored{tries}: {error.type}: {error.message}" + _gone_file_words(error),
            outcome="errored",
            error_type=error.type,
            error_message=error.message,
            request_id=error.request_id,
            batch_id=answer.batch_id,
        )

    def _not_run(self) -> ActorError:
        """Return the error of a request that its run's deadline has ended before it was sent."""
        what, billed = self._who, "nothing was billed for it"
        if self._answer.turns > 1:
            what = f"turn {self._answer.turns} of the conversation of {self._who}"
            billed = "nothing was billed for that turn"
        deadline = "its deadline" if self._is_call else "its run's deadline"
        return BatchRequestError(
            f"{what} did not run before {deadline}, and `fallback: none` sends nothing live; "
            f"{billed}",
            outcome="expired",
        )

    def _expired(self) -> ActorError:
        return BatchRequestError(
            f"{self._sent} expired {count_of(self._answer.attempt, 'time')}: the API did not run "
            "it within 24 hours; nothing was billed for it",
            outcome="expired",
            batch_id=self._answer.batch_id,
        )

    def _malformed(self, raw: bytes) -> ActorError:
        problem, succeeded = problem_of_line(raw)
        again = f"which is billed again: {self._command('retry', '--only malformed')}"
        if self._is_call:
            again = "repeat the call" + (" with another key" if self._answer.key else "")
            again += ", which is billed again"
        what, billed = "was answered with success, but not in the API's format", "was"
        if not succeeded:
            what, billed = "ended with an outcome that the API does not document", "may have been"
        return MalformedAnswerError(
            f"{self._sent} {what}: {problem}. The answer {billed} billed; its bytes are in `raw` "
            "of this error and in the ledger. Check the proxies and gateways between you and the "
            f"API. To send the request again, {again}",
            raw=raw,
            batch_id=self._answer.batch_id,
            problem=problem,
        )

    def _canceled(self) -> ActorError:
        answer = self._answer
        by = answer.kind if answer.canceler == "user" else answer.canceler
        canceled_by = cast("CanceledBy", by or "run")
        again = f"Send it again with: {self._command('retry', '--only canceled')}"
        if self._is_call:
            again = "To send it again, repeat the call"
        return BatchRequestError(
            f"{self._sent} {_canceled_words(answer, canceled_by)}. {again}",
            outcome="canceled",
            batch_id=answer.batch_id,
            canceled_by=canceled_by,
        )

    def _lost_call(self, raw: bytes | None) -> ActorError:
        how = "that can be read, or its process died"
        if raw is not None and (error := decode_line(raw).error) is not None:
            how = f"but with an error: {error.type}: {error.message}"
            if error.request_id is not None:
                how += f" (request-id {error.request_id})"
        return self._unknown(f"its live call ended without an answer {how}")

    def _unknown(self, what: str) -> ActorError:
        return SubmissionUnknownError(
            f"{self._who}: {what}. It may have been billed, so it is not sent again automatically. "
            f"Send it again with: {self._command('unknown', '--resubmit')}"
        )

    def _lost(self) -> ActorError:
        if self._answer.batch_id is None:
            return self._unknown("it is unknown whether the API accepted a sending of it")
        again = self._command("retry", "--only missing")
        if self._is_call:  # which `retry` refuses
            again = self._command("unknown", "--resubmit")
        return MissingResultError(
            f"{self._sent} has no result: the batch ended without a readable line for it, or with "
            "a failure where the API counts one more success, or the API no longer keeps its "
            "results. It may have been billed, so it is not sent again automatically. To fetch "
            f"the results again, free of charge: {self._command('results', '--refetch')}. To send "
            f"the request again if its result is still missing after that: {again}",
            batch_id=self._answer.batch_id,
        )


_FILE_ID = re.compile(r"\bfile_[0-9A-Za-z]{6,}\b")


def _gone_file_words(error: LineError) -> str:
    """Describe what to do if a request names a file that the API does not have, else nothing."""
    is_absent = error.type == "not_found_error" or "not found" in error.message.casefold()
    if not is_absent or _FILE_ID.search(error.message) is None:
        return ""
    return (
        ". The API does not have this file, or it was deleted there. If claude-batch uploaded it, "
        "a new run (`--new`, `new=True`) or a new call uploads the document again"
    )


_CANCELED_BY: Mapping[CanceledBy, str] = {
    "api": "was canceled at the API, not by claude-batch: its batch was canceled in the Console "
    "or by another program",
    "deadline": "was canceled by claude-batch, because the deadline of its run was near",
    "run": "was canceled, because its run was cancelled",
    "calls": "was canceled, because the call was cancelled",
}


def _canceled_words(answer: Answer, by: CanceledBy) -> str:
    """Describe how a canceled request ended: who canceled it, and its cost."""
    # The earlier turns of the conversation were answered. `turns` also counts the canceled one,
    # unless the conversation was canceled between two turns.
    between = answer.outcome == RequestState.SUCCEEDED
    before = answer.turns if between else answer.turns - 1
    if between:
        ended = "Its next turn was not sent, and nothing was billed for it"
    elif before:
        ended = "This turn did not run, and nothing was billed for it"
    elif answer.outcome is None:
        ended = "It was not sent, and nothing was billed for it"
    else:
        ended = "It did not run, and nothing was billed for it"
    if before:
        ended += f"; the {billed_before(before)}"
    return f"{_CANCELED_BY[by]}. {ended}"


def billed_before(answers: int) -> str:
    """Describe what became of a conversation's answers before the turn that was not sent."""
    words = "1 answer before it was" if answers == 1 else f"{answers} answers before it were"
    return f"{words} billed and kept"
