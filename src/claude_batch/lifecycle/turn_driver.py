"""The driver's part in conversations: when to check them, and how long to wait for tools."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from claude_batch.ledger.store import Ledger, Seat
from claude_batch.lifecycle.conversation_driver import Continuing
from claude_batch.lifecycle.event_loop_thread import in_a_thread, sleep_or_wake
from claude_batch.lifecycle.tool_runner import Workbench

TOOL_GRACE = 30.0
"""Seconds that a stopping driver waits for running tools."""

LONGEST_SLEEP = 60.0
"""Longest time in seconds between two checks of conversations."""


class Turning:
    """The loop that continues the conversations of one driver's workspace."""

    def __init__(
        self,
        ledger: Ledger,
        workbench: Workbench | None,
        *,
        workspace: Callable[[], int],
        stopping: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        """Set up with the tools in ``workbench``; ``changed`` is called after each look."""
        self._workbench = workbench or Workbench()
        self._workspace = workspace
        self._stopping = stopping
        self._changed = changed
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = Continuing(ledger, self._workbench, self._tool_has_ended)

    def wake(self) -> None:
        """Look now, because an answer may have arrived."""
        self._wake.set()

    async def run(self, seat: Seat) -> None:
        """Look until the driver stops. Raises `Deposed`."""
        while not self._stopping():
            self._wake.clear()
            await self._sleep(await self._pass(seat))

    async def finish(self, seat: Seat) -> None:
        """Do everything that conversations wait for, including their tools, once."""
        rest = await self._pass(seat, patient=False)
        while self._turns.running and not self._stopping():
            await self._sleep(rest)
            self._wake.clear()
            rest = await self._pass(seat, patient=False)

    async def run_given_tools(self) -> None:
        """Run the tools that callers supplied here, while another process drives without them."""
        if self._workbench.has_given or self._turns.running:
            await self._pass(None)

    async def let_tools_end(self) -> None:
        """Wait for running tools to end, because an interrupted tool may never run again."""
        end = time.monotonic() + TOOL_GRACE
        while self._turns.running and time.monotonic() < end:
            self._wake.clear()
            await self._pass(None, starting=False)
            if self._turns.running:
                await sleep_or_wake(self._wake, 1.0)

    async def _pass(
        self, seat: Seat | None, *, starting: bool = True, patient: bool = True
    ) -> float:
        """Do what conversations wait for; return the seconds until the next pass."""
        self._loop = asyncio.get_running_loop()
        workspace_id = self._workspace()
        if not self._turns.concerns(workspace_id):
            return LONGEST_SLEEP
        # On a thread, because it calls the caller's judge and reads long conversations.
        rest = await in_a_thread(
            self._turns.look, workspace_id, seat, starting=starting, patient=patient
        )
        self._changed()
        return rest

    async def _sleep(self, seconds: float) -> None:
        if self._stopping():
            return
        # Other tasks run once even if the event is already set.
        await asyncio.sleep(0)
        await sleep_or_wake(self._wake, min(seconds, LONGEST_SLEEP))

    def _tool_has_ended(self) -> None:
        assert self._loop is not None, "tools are started by a pass"
        # If the loop is closed, nobody waits for it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
