"""From what the ledger remembers to what callers get: responses, and errors as errors."""

from __future__ import annotations

from claude_batch.actor.middleware import Middlewares
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import (
    ActorError,
    BatchRequestError,
    MiddlewareError,
    MissingResultError,
    SubmissionUnknownError,
)
from claude_batch.core.states import RequestState
from claude_batch.ledger.reading import Answer
from claude_batch.providers.answering import answer_error
from claude_batch.wire.messages import decode_line, message_of_line

__all__ = ["response_of", "result_of"]


def result_of(
    answer: Answer, middleware: Middlewares | None = None, actor: str = ""
) -> ActorResult:
    """The result of a request that has its final state, as the middleware leaves it."""
    outcome = _outcome(answer)
    if middleware and isinstance(outcome, ActorResponse):
        try:
            outcome = middleware.after(actor, answer.key, outcome)
        except MiddlewareError as error:
            outcome = error
    if isinstance(outcome, ActorError):
        return ActorResult(key=answer.key, position=answer.position, response=None, error=outcome)
    return ActorResult(key=answer.key, position=answer.position, response=outcome, error=None)


def response_of(answer: Answer) -> ActorResponse:
    """The response of a request that has its final state; raises its error instead."""
    outcome = _outcome(answer)
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
    )


def _outcome(answer: Answer) -> ActorResponse | ActorError:
    if answer.state is RequestState.SUCCEEDED and answer.raw is not None:
        return _response(answer, answer.raw)
    who = f"request {answer.key!r}" if answer.key is not None else f"request {answer.position + 1}"
    batch = f" in batch {answer.batch_id}" if answer.batch_id else ""
    if answer.via == "live":
        batch = " asked live"
    if answer.state is RequestState.ERRORED and answer.raw is not None:
        error = decode_line(answer.raw).error
        assert error is not None
        tries = f" after {answer.attempt} attempts" if answer.attempt > 1 else ""
        return BatchRequestError(
            f"{who}{batch} errored{tries}: {error.type}: {error.message}",
            outcome="errored",
            error_type=error.type,
            error_message=error.message,
            request_id=error.request_id,
            batch_id=answer.batch_id,
        )
    if answer.state is RequestState.EXPIRED and answer.raw is None:
        what, billed = who, "nothing was billed for it"
        if answer.turns > 1:
            what = f"turn {answer.turns} of the conversation of {who}"
            billed = "nothing was billed for that turn"
        return BatchRequestError(
            f"{what} did not run before its run's deadline, and `fallback: none` asks nothing "
            f"live; {billed}",
            outcome="expired",
        )
    if answer.state is RequestState.EXPIRED:
        return BatchRequestError(
            f"{who}{batch} expired {answer.attempt} times: the API did not run it within 24 hours; "
            "nothing was billed for it",
            outcome="expired",
            batch_id=answer.batch_id,
        )
    if answer.state in _ANSWERED and answer.raw is not None:
        return answer_error(answer.state, _response(answer, answer.raw), f"{who}{batch}", answer)
    if answer.state is RequestState.CANCELED and answer.raw is not None:
        return BatchRequestError(
            f"{who}{batch} was canceled between two turns of its conversation, after "
            f"{answer.turns} of them",
            outcome="canceled",
            batch_id=answer.batch_id,
        )
    if answer.state is RequestState.CANCELED:
        return BatchRequestError(
            f"{who}{batch} was canceled before it ran; nothing was billed for it",
            outcome="canceled",
            batch_id=answer.batch_id,
        )
    if answer.via == "live":
        return SubmissionUnknownError(
            f"{who}: a live call for it ended without an answer that can be understood, or its "
            "process died. It may have been paid for, so it is not made again by itself; "
            "`claude-batch unknown RUN --resubmit` makes it again"
        )
    if answer.batch_id is None:
        return SubmissionUnknownError(
            f"{who}: it cannot be learned whether the API took the batch that carried it. It may "
            "have been paid for, so it is not sent again by itself; "
            "`claude-batch unknown RUN --resubmit` sends it again"
        )
    return MissingResultError(
        f"{who}{batch} has no result: the batch ended without a readable line for it, or its "
        "results are not kept any more. It may have been paid for, so it is not sent again by "
        "itself; `claude-batch unknown RUN --resubmit` sends it again",
        batch_id=answer.batch_id,
    )
