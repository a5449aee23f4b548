"""pydantic-ai: 200 agent runs in one batch."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

import claude_batch as cb

provider = AnthropicProvider(anthropic_client=cb.client())
agent = Agent(AnthropicModel("claude-haiku-4-5", provider=provider))


async def main() -> None:
    runs = (agent.run(f"Explain knot number {number}.") for number in range(200))
    for result in await asyncio.gather(*runs):
        print(result.output)


asyncio.run(main())
