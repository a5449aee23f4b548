"""Conversations of live calls: do what `claude_batch.wire.conversation.converse` asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.response import ActorResponse
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import ActorError, AnswerError
from claude_batch.core.states import RequestState
from claude_batch.lifecycle.threads import in_own_thread
from claude_batch.lifecycle.tool_runner import ToolOutput, Tools, run_call
from claude_batch.providers.mapping import answer_error
from claude_batch.wire.conversation import (
    Answer,
    Check,
    End,
    NextTurn,
    Terms,
    ToolCalls,
    ToolOutcome,
    ToolUse,
    converse,
)
from claude_batch.wire.messages import disposition_of


async def converse_live(
    actor: ActorConfiguration,
    params: bytes,
    ask: Callable[[bytes], Awaitable[ActorResponse]],
    mode: BatchProcessingMode,
    judge: Callable[[bytes], str | None] | None = None,
) -> ActorResponse:
    """Send a request, and continue while the answers ask for another turn.

    Returns the last answer, with the costs of all turns.

    Raises an `AnswerError` for an unusable answer, and what ``ask`` raises.
    """
    toolset = actor.toolset
    tools: Tools = {} if toolset is None else toolset.tools
    names = None if toolset is None else tools.keys()
    flow = converse(params, Terms(mode.max_turns, mode.validation_attempts, names))
    response, asked = ActorResponse(b"{}", cost=0), 0
    step = next(flow)
    while True:
        match step:
            case NextTurn():
                asked += 1
                try:
                    answer = await ask(step.params)
                except ActorError as error:
                    if not isinstance(error, AnswerError):
                        error.cost = response.cost or None  # of the turns before
                    raise
                response = answer.after(response, asked)
                reply = Answer(disposition_of(response.stop_reason), response.raw)
            case ToolCalls():
                reply = list(await asyncio.gather(*(_run(tools, use) for use in step.uses)))
            case Check():
                reply = await _problem(step, judge)
            case End(RequestState.SUCCEEDED):
                return response
            case End(state, stopped, note):
                raise answer_error(state, response, "this request", stopped, note)
        step = flow.send(reply)


async def _problem(check: Check, judge: Callable[[bytes], str | None] | None) -> str | None:
    """Return what is wrong with an answer, or `None`.

    The caller's function runs on a thread of its own, because it may take its time, or make calls
    of the same provider.
    """
    if judge is None:
        return check.problem(None)
    judging = partial(check.problem, judge)
    return await in_own_thread(judging, name="claude-batch-judge", daemon=True)


async def _run(tools: Tools, use: ToolUse) -> ToolOutcome:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ToolOutput] = loop.create_future()

    def done(output: ToolOutput) -> None:
        loop.call_soon_threadsafe(lambda: future.done() or future.set_result(output))

    run_call(tools, use, done)
    return ToolOutcome(use.id, *await future)
