"""litellm: 200 completions in one batch."""

import asyncio

import litellm
import litellm_batches  # noqa: F401  (registers the provider)


async def ask(number: int) -> str:
    answer = await litellm.acompletion(
        "claude-batch/claude-haiku-4-5",
        messages=[{"role": "user", "content": f"Explain knot number {number}."}],
    )
    return answer.choices[0].message.content


async def main() -> None:
    for text in await asyncio.gather(*map(ask, range(200))):
        print(text)


asyncio.run(main())
