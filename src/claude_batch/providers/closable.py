"""What can be closed can be closed without blocking, and be used as a block."""

from __future__ import annotations

import asyncio
from typing import Self

__all__ = ["Closing"]


class Closing:
    """`close` in its other forms: ``aclose``, ``with`` and ``async with``."""

    def close(self) -> None:
        """Give back what was opened."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        # A task that was cancelled just before tells so in the loop's next turn.
        await asyncio.sleep(0)
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
