"""Many calls at once by a client that may be killed: it notes each answer, and asks for the rest.

Usage: many_calls.py COUNT FILE. Every second call has an Idempotency-Key, every third is a stream.
A call that fails with its connection, or with a 503, is repeated as the SDKs do it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import httpx2

GATEWAY = os.environ["ANTHROPIC_BASE_URL"]
PAUSE = 0.3
"""Seconds before a repetition."""


async def ask(http: httpx2.AsyncClient, number: int) -> str:
    """Return the answer of one call, however often it takes."""
    body: dict[str, Any] = {"model": "claude-haiku-4-5", "max_tokens": 100}
    body["messages"] = [{"role": "user", "content": f"call number {number}"}]
    if number % 3 == 0:
        body["stream"] = True
    headers = {"idempotency-key": f"call-{number}"} if number % 2 else {}
    for attempt in range(1000):
        headers["x-stainless-retry-count"] = str(attempt)
        try:
            response = await http.post("/v1/messages", json=body, headers=headers)
            if response.status_code == 200 and f"call number {number}" in response.text:
                return response.text
            assert response.status_code in (200, 503), response.text
        except httpx2.TransportError:
            pass
        await asyncio.sleep(PAUSE)
    raise AssertionError(f"call {number} was never answered")


async def main(count: int, file: Path, known: set[int]) -> None:
    """Ask for what the file does not have yet."""
    limits = httpx2.Limits(max_connections=count)
    timeout = httpx2.Timeout(60, pool=None)
    async with httpx2.AsyncClient(base_url=GATEWAY, limits=limits, timeout=timeout) as http:

        async def one(number: int) -> None:
            await ask(http, number)
            with file.open("a") as out:
                out.write(f"{number}\n")

        await asyncio.gather(*(one(number) for number in range(count) if number not in known))
    print(f"{count} answered")


answers = Path(sys.argv[2])
answers.touch()
known_ones = {int(line) for line in answers.read_text().split()}
asyncio.run(main(int(sys.argv[1]), answers, known_ones))
