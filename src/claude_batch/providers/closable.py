"""Base class for objects that close without blocking and work as context managers."""

from __future__ import annotations

import asyncio
from typing import Self


class Closing:
    """Add ``aclose``, ``with`` and ``async with`` to `close`."""

    def close(self) -> None:
        """Release the resources."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Run `close` without blocking the event loop."""
        # A task cancelled just before receives its cancellation in the loop's next iteration.
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
