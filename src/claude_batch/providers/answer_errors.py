"""Errors for answers that arrived but are not usable."""

from __future__ import annotations

from typing import Any, Protocol

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


class Stopped(Protocol):
    """The reason why a conversation stopped, as an `Answer` holds it."""

    @property
    def stopped(self) -> str | None:
        """One of `claude_batch.ledger.conversations.Stop`."""
        ...

    @property
    def note(self) -> str | None:
        """The reason in words."""
        ...


def answer_error(
    state: RequestState, response: ActorResponse, who: str, stop: Stopped | None = None
) -> AnswerError:
    """Return the error for an unusable answer; ``who`` names its request."""
    about: dict[str, Any] = {
        "text": response.text,
        "stop_reason": response.stop_reason,
        "batch_id": response.batch_id,
        "response": response,
    }
    if state is RequestState.REFUSED:
        return AnswerRefusedError(
            f"{who}: the model declined to answer; ask otherwise, or another model", **about
        )
    if state is RequestState.WINDOW_EXCEEDED:
        return ContextWindowExceededError(
            f"{who}: prompt and answer filled the model's context window. What it had answered by "
            "then was paid for, and is kept; shorten the prompt",
            **about,
        )
    note = stop.note or "" if stop is not None else ""
    why = stop.stopped if stop is not None else None
    if why == "invalid_output":
        return OutputValidationError(
            f"{who}: no answer was of the shape that was asked for, the last one neither: {note}. "
            "It was paid for; its text is kept",
            problem=note,
            **about,
        )
    kept = "The conversation up to there is kept"
    if why == "max_turns":
        return TurnLimitError(f"{who}: {note}. {kept}; raise max_turns and ask anew", **about)
    if why == "tool_interrupted":
        return ToolInterruptedError(
            f"{who}: {note}. {kept}; see what the tool has done, then ask anew", **about
        )
    return ConversationStoppedError(f"{who}: {note}. {kept}", **about)
