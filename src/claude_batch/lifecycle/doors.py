"""Doors: a base URL and a credential, through which requests enter an engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from claude_batch.core.errors import AccountHaltedError
from claude_batch.lifecycle.driver import Driver
from claude_batch.wire.client import BatchesClient

__all__ = ["Door", "first_cause", "halted_error"]


@dataclass(slots=True, eq=False)
class Door:
    """A base URL and a credential, through which requests enter an engine."""

    client: BatchesClient
    driver: Driver
    users: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def workspace_id(self) -> int:
        """The workspace that the credential belongs to, as far as is known."""
        return self.driver.workspace_id


def halted_error(row: Any) -> AccountHaltedError:
    """The error of a halted workspace, from its row."""
    words = f"{row.halt_type}: {row.halt_message}" if row.halt_type else row.halt_message
    return AccountHaltedError(
        f"sending is halted ({row.halt_reason}): {words}. Nothing was marked failed: every request "
        "stays queued. Once the cause is gone, `claude-batch resume` or the same call goes on",
        reason=row.halt_reason,
        error_type=row.halt_type,
    )


def first_cause(error: BaseException) -> BaseException:
    """What went wrong first in a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
