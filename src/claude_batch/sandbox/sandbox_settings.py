"""Settings of a sandbox, and the format of durations.

Separate from the server, so that a command line can read options and their defaults without
importing starlette or uvicorn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Literal

DEFAULT_WORKSPACE = "wrkspc_01SandboxDefault"
"""Workspace of every key that is not in `SandboxSettings.workspaces`."""

ORGANIZATION = "5a9db0c5-0000-4000-8000-000000000000"
"""Value of the `anthropic-organization-id` header on every answer."""

Responder = Callable[[dict[str, Any]], Any]
"""Called with the decoded params of one request; see `claude_batch.sandbox.answers`."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)\s*(ms|s|m|h|d|)")


def parse_duration(text: str | float) -> float:
    """Return the seconds of `2`, `"0.5"`, `"50ms"`, `"2s"`, `"10m"`, `"24h"` or `"29d"`.

    Raises `ValueError` for anything else, negative numbers included.
    """
    if not isinstance(text, str):
        text = repr(text)
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a duration: write seconds (0.5) or a number with ms, s, m, h or d"
        )
    return float(match[1]) * _UNITS[match[2]]


def parse_offset(text: str | float) -> float:
    """Return the seconds of a duration that may be negative (`-5m`); raises `ValueError`."""
    with suppress(ValueError):
        return float(text)
    text = str(text).strip()
    seconds = parse_duration(text.removeprefix("-"))
    return -seconds if text.startswith("-") else seconds


@dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    """Settings of one sandbox. All durations are seconds; all limits are the API's own.

    A duration that is a text, such as `2s`, is read as the command line reads it.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Use the loopback, because the sandbox checks no real key."""

    port: int = 0
    """TCP port; 0 lets the system choose a free one."""

    admin_token: str | None = None
    """Token that, sent as `x-sandbox-token`, opens the routes under `/sandbox` from anywhere.

    Without it, only programs of this machine may use them.
    """

    latency: float = 0.5
    """From a batch's creation to its end."""

    cancel_latency: float = 0.05
    """From a cancel call to the end of the batch (`canceling` in between; 25 s in the API)."""

    live_latency: float = 0.0
    """Before a live message is answered."""

    seed: int = 0
    """Determines the order of results and is part of each answer's digest."""

    faults: Mapping[str, Any] | None = None
    """The fault plan to start with: the object that `claude_batch.sandbox.fault_plan` describes."""

    expires_after: float = 86_400.0
    """Age at which an unfinished batch expires (24 h in the API)."""

    results_kept: float = 29 * 86_400.0
    """Age, from creation, at which results can no longer be read (29 days in the API)."""

    counts: Literal["zero", "live"] = "zero"
    """Counts of a batch in progress: all `processing` until its end, or moving as it proceeds."""

    counts_after: float = 0.0
    """Age until which a young batch's counts are all 0."""

    listed_after: float = 0.0
    """Age from which a batch is listed; by its id it can be read at once."""

    any_id: bool = False
    """Whether an id that does not exist names an example, as in a mock server."""

    responder: str | Responder | None = None
    """`module:function`, or the function itself, that makes the answers."""

    uses_tools: bool = False
    """Whether the model calls each client tool once, and then answers with the results."""

    queue_limit: int = 500_000
    """Requests in unfinished batches of a workspace, above which a create gets a 429."""

    max_requests: int = 100_000
    """Requests in one batch."""

    max_body_bytes: int = 256_000_000
    """Bytes of a create's body."""

    clock_offset: float = 0.0
    """Added to the machine's clock for every time of the sandbox."""

    default_workspace: str = DEFAULT_WORKSPACE
    """Workspace of every key that is not in `workspaces`."""

    workspaces: Mapping[str, str] = field(default_factory=dict[str, str])
    """API key to workspace id: a batch is visible only in its workspace."""

    workspace_header: bool = True
    """Whether answers carry `anthropic-workspace-id`."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for values that the command line does not take either."""
        for each in fields(self):
            value: Any = getattr(self, each.name)
            if each.type == "float" and isinstance(value, str):
                read = parse_offset if each.name == "clock_offset" else parse_duration
                object.__setattr__(self, each.name, read(value))
        if self.counts not in ("zero", "live"):
            raise ValueError(f"counts: {self.counts!r} is neither 'zero' nor 'live'")
        if self.queue_limit < 0:
            raise ValueError(f"queue_limit: {self.queue_limit} is less than 0")
