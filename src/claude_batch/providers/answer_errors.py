"""Errors for answers that arrived but are not usable."""

from __future__ import annotations

from typing import Any

from claude_batch.actor.response import ActorResponse
from claude_batch.core.errors import (
    AnswerError,
    AnswerRefusedError,
    ContextWindowExceededError,
    ConversationStoppedError,
    OutputValidationError,
    ToolInterruptedError,
    TurnLimitError,
)
from claude_batch.core.states import RequestState


def answer_error(
    state: RequestState,
    response: ActorResponse,
    who: str,
    stopped: str | None = None,
    note: str | None = None,
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
            "The answers were billed; the text of the last one is kept",
            problem=note,
            **about,
        )
    kept = "The conversation so far is kept"
    if stopped == "max_turns":
        return TurnLimitError(
            f"{who}: {note}. {kept}; raise max_turns and send the request again", **about
        )
    if stopped == "tool_interrupted":
        return ToolInterruptedError(
            f"{who}: {note}. {kept}; check what the tool has done, then send the request again",
            **about,
        )
    return ConversationStoppedError(f"{who}: {note}. {kept}", **about)
