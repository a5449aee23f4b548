"""pydantic-ai agents and an actor's calls that share a batch: python agents.py ACTOR COUNT."""

from __future__ import annotations

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

import claude_batch as cb


async def main(path: str, count: int) -> None:
    actor = cb.load_actor(path)
    model = AnthropicModel(
        "claude-haiku-4-5", provider=AnthropicProvider(anthropic_client=cb.client())
    )
    agent = Agent(model, system_prompt="Be brief.")
    runs = asyncio.gather(*(agent.run(f"agent number {at}") for at in range(count)))
    calls = asyncio.gather(*(actor.respond(f"call number {at}") for at in range(count)))
    ran, answered = await asyncio.gather(runs, calls)
    for at, (result, answer) in enumerate(zip(ran, answered, strict=True)):
        assert f"agent number {at}" in result.output, result.output
        assert f"call number {at}" in answer.text, answer.text
    print(f"{len(ran)} agents and {len(answered)} calls")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
