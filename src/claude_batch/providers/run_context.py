"""`RunContext`: a run as a block, ``async with`` or ``with``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from claude_batch.providers.run import Run


class RunContext:
    """Submits a run when the block is entered, and closes it when the block is left.

    Leaving the block cancels nothing, also after an exception. Batches continue at the API. The
    same requests, or `open_run` with the run's id, continue the run.
    """

    def __init__(
        self, submit: Callable[[], Awaitable[Run]], submit_sync: Callable[[], Run]
    ) -> None:
        self._submit = submit
        self._submit_sync = submit_sync
        self._run: Run | None = None

    async def __aenter__(self) -> Run:
        self._run = await self._submit()
        return self._run

    async def __aexit__(self, *_: object) -> None:
        run, self._run = self._run, None
        if run is not None:
            await run.aclose()

    def __enter__(self) -> Run:
        self._run = self._submit_sync()
        return self._run

    def __exit__(self, *_: object) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()
