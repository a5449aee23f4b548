"""The OpenAI Agents SDK: 200 agent runs in one batch, over litellm."""

import asyncio

import litellm_batches  # noqa: F401  (registers the provider)
from agents import Agent, Runner, set_tracing_disabled
from agents.extensions.models.litellm_model import LitellmModel

set_tracing_disabled(True)  # its traces would go to OpenAI

agent = Agent(name="Knots", model=LitellmModel("claude-batch/claude-haiku-4-5"))


async def main() -> None:
    runs = (Runner.run(agent, f"Explain knot number {number}.") for number in range(200))
    for result in await asyncio.gather(*runs):
        print(result.final_output)


asyncio.run(main())
