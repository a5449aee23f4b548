"""The loop of a driver that looks at its conversations, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from claude_batch.ledger.store import Leader
from claude_batch.lifecycle.conversation_driver import LONGEST_SLEEP, Conversations
from claude_batch.lifecycle.driver_context import DriverContext
from claude_batch.lifecycle.threads import in_a_thread, sleep_or_wake
from claude_batch.lifecycle.tool_runner import Workbench

_log = logging.getLogger(__name__)

TOOL_GRACE = 30.0
"""Seconds that a stopping driver waits for running tools."""

LAST_LOOK = 5.0
"""Seconds that a process which ends waits for its functions to be started or judged."""

STOP_CHECK = 0.5
"""Seconds between two checks whether the driver stops, while a function is running."""


class ConversationLoop:
    """When to check the conversations of a driver's workspace, and how long to wait for tools."""

    def __init__(
        self,
        context: DriverContext,
        workbench: Workbench | None,
        *,
        changed: Callable[[], None],
    ) -> None:
        """Set up with the tools in ``workbench``; ``changed`` is called after each look."""
        self._workbench = workbench or Workbench()
        self._context = context
        self._changed = changed
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._conversations = Conversations(context, self._workbench, self._tool_has_ended)

    def wake(self) -> None:
        """Look now, because an answer may have arrived."""
        self._wake.set()

    async def run(self, leader: Leader) -> None:
        """Look until the driver stops. Raises `Deposed`."""
        while not self._context.is_leaving:
            self._wake.clear()
            looking = asyncio.ensure_future(self._pass(leader))
            try:
                while not looking.done() and not self._context.is_leaving:
                    await asyncio.wait([looking], timeout=STOP_CHECK)
                # A judge is the user's code, and may hang. The next process asks it again.
                await asyncio.wait([looking], timeout=LAST_LOOK)
            finally:
                looking.cancel()  # no effect if it is done
            if not looking.done():
                _log.warning(
                    "a function that checks answers has not returned for %g s, and is abandoned; "
                    "the answers are checked again by the next process",
                    LAST_LOOK,
                    extra={"for_people": True},
                )
                return
            await self._sleep(looking.result())

    async def finish(self, leader: Leader) -> None:
        """Do everything that conversations wait for, including their tools, once."""
        rest = await self._pass(leader, patient=False)
        while self._conversations.running and not self._context.is_leaving:
            await self._sleep(rest)
            self._wake.clear()
            rest = await self._pass(leader, patient=False)

    async def run_own_functions(self) -> None:
        """Run the tools and judges of this process, while another process drives."""
        if self._workbench.has_any or self._conversations.running:
            await self._pass(None)

    async def let_tools_end(self) -> None:
        """Wait for running tools to end, because an interrupted tool may never run again.

        If a function that checks answers hangs in an abandoned look, no result can be stored.
        """
        begun = time.monotonic()
        while self._conversations.running and (waited := time.monotonic() - begun) < TOOL_GRACE:
            self._wake.clear()
            if not self._conversations.is_looking:
                await self._pass(None, starting=False)
            elif waited > LAST_LOOK:
                return
            if self._conversations.running:
                await sleep_or_wake(self._wake, STOP_CHECK)

    async def _pass(
        self, leader: Leader | None, *, starting: bool = True, patient: bool = True
    ) -> float:
        """Do what conversations wait for; return the seconds until the next pass."""
        self._loop = asyncio.get_running_loop()
        workspace_id = self._context.workspace_id
        if not self._conversations.concerns(workspace_id):
            return LONGEST_SLEEP
        judges = self._conversations.judges
        judges.threads.wait_for_functions(True)
        try:
            # On a thread, because it calls the caller's judge and reads long conversations.
            rest = await in_a_thread(
                self._conversations.look, workspace_id, leader, starting=starting, patient=patient
            )
        except asyncio.CancelledError:
            judges.threads.wait_for_functions(False)
            raise
        self._changed()
        return rest

    async def _sleep(self, seconds: float) -> None:
        if not self._context.is_leaving:
            await sleep_or_wake(self._wake, min(seconds, LONGEST_SLEEP))

    def _tool_has_ended(self) -> None:
        assert self._loop is not None, "tools are started by a pass"
        # If the loop is closed, nobody waits for it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
