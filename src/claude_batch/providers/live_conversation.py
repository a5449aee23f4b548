"""Run a conversation with the live API to its end, as the driver does for batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.response import ActorResponse
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.core.states import RequestState
from claude_batch.lifecycle.tool_runner import ToolOutput, Tools, no_such_tool, run_tool, timed_out
from claude_batch.providers.answer_errors import answer_error
from claude_batch.wire.turns import (
    Outcome,
    ToolUse,
    after_pause,
    after_rejection,
    after_tools,
    correction,
    declared_tools,
    schema_problem,
    tool_uses,
)

_WHO = "this request"


@dataclass(frozen=True, slots=True)
class _Stopped:
    stopped: str
    note: str


async def converse(
    actor: ActorConfiguration,
    params: bytes,
    ask: Callable[[bytes], Awaitable[ActorResponse]],
    mode: BatchProcessingMode,
) -> ActorResponse:
    """Send a request, and continue while the answers ask for another turn.

    Returns the last answer, with the costs of all turns.

    Raises an `AnswerError` for an unusable answer, and what ``ask`` raises.
    """
    toolset = actor.toolset
    tools: Tools = {} if toolset is None else toolset.tools
    turns, rejected, before = 1, 0, ActorResponse(b"{}", cost=0)
    while True:
        response = (await ask(params)).after(before, turns + rejected)
        reason, message = response.stop_reason, response.raw
        if reason == "refusal":
            raise answer_error(RequestState.REFUSED, response, _WHO)
        if reason == "model_context_window_exceeded":
            raise answer_error(RequestState.WINDOW_EXCEEDED, response, _WHO)
        before = response
        if reason == "pause_turn" or (reason == "tool_use" and _ours(params, message, tools)):
            if turns >= mode.max_turns:
                note = f"answer {turns} asks for another turn, but max_turns is {turns}"
                raise _stopped(response, "max_turns", note)
            if reason == "pause_turn":
                params = after_pause(params, message)
            else:
                calls = [_run(tools, use) for use in tool_uses(message)]
                params = after_tools(params, message, await asyncio.gather(*calls))
            turns += 1
            continue
        if mode.validation_attempts == 1 or reason == "tool_use":
            return response
        judge = actor.judge
        problem = schema_problem(params, message) if judge is None else judge(message)
        if problem is None:
            return response
        rejected += 1
        if rejected >= mode.validation_attempts:
            raise _stopped(response, "invalid_output", problem)
        params = after_rejection(params, message, correction(problem))


def _stopped(response: ActorResponse, why: str, note: str) -> Exception:
    return answer_error(RequestState.STOPPED, response, _WHO, _Stopped(why, note))


def _ours(params: bytes, message: bytes, tools: Tools) -> bool:
    """Return whether the tool calls of an answer are for this library, not for the caller."""
    uses = tool_uses(message)
    others = declared_tools(params) - tools.keys()
    return bool(tools and uses) and not any(use.name in others for use in uses)


async def _run(tools: Tools, use: ToolUse) -> Outcome:
    tool = tools.get(use.name)
    if tool is None:
        return Outcome(use.id, *no_such_tool(use.name, tools))
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ToolOutput] = loop.create_future()

    def done(output: ToolOutput) -> None:
        loop.call_soon_threadsafe(lambda: future.done() or future.set_result(output))

    run_tool(tool, bytes(use.input), done)
    try:
        output = await asyncio.wait_for(future, tool.timeout + 2.0)
    except TimeoutError:
        output = tool.failed(timed_out(tool))
    return Outcome(use.id, *output)
