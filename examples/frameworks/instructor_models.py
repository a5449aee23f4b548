"""instructor: 200 objects of a Pydantic model in one batch."""

import asyncio

import instructor
from pydantic import BaseModel

import claude_batch as cb


class Knot(BaseModel):
    name: str
    strength: float


async def main() -> None:
    client = instructor.from_anthropic(cb.client())
    calls = (
        client.messages.create(
            model="claude-haiku-4-5",
            max_tokens=500,
            messages=[{"role": "user", "content": f"Describe knot number {number}."}],
            response_model=Knot,
        )
        for number in range(200)
    )
    for knot in await asyncio.gather(*calls):
        print(knot.name, knot.strength)


asyncio.run(main())
