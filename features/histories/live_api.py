"""The live side of the simulated API: one call at a time, processed or not, answered or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from claude_batch.wire.encoding import LaneHeaders
from claude_batch.wire.error_table import ApiFault
from claude_batch.wire.live_client import LiveAnswer, LiveClient
from claude_batch.wire.messages import decode_message
from claude_batch.wire.pace import Cost, Turn

if TYPE_CHECKING:
    from histories.api import SimulatedApi

__all__ = ["LIVE_COST", "LivePlan", "SimulatedLive"]

LIVE_COST = 11_000
"""Nano-dollars of each live answer: one token in and two out, at the live price."""

DOWNLOAD = "The request timed out while trying to download the file. Please try again later."
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "api_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_REFUSALS = (400, 401, 402, 403, 404, 413, 429, 529)
"""What the API answers before it processes a call. Written here again: this is the judge."""


@dataclass(slots=True)
class LivePlan:
    """What becomes of the next live call."""

    kind: str = "answer"
    """``answer``, ``lose``, ``error`` or ``connect``."""
    processed: bool = False
    """Whether it is processed and billed, where its end may hide that."""
    status: int = 500
    from_api: bool = True
    message: str = "no"
    answer: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the answer has instead of a plain one's fields."""

    @property
    def may_hide(self) -> bool:
        """Whether a call that ends so may have been processed."""
        if self.kind != "error":
            return self.kind == "lose"
        if 300 <= self.status < 400 or self.status == 413:
            return False
        return not self.from_api or self.status not in _REFUSALS

    @property
    def is_billed(self) -> bool:
        return self.kind == "answer" or (self.processed and self.may_hide)


class SimulatedLive(LiveClient):
    """Stands where a driver has its client of live calls."""

    def __init__(self, api: SimulatedApi) -> None:
        # Nothing of the real one is wanted but its type.
        self._api = api

    def leave(self) -> None: ...

    def try_turn(self, model: str, params_bytes: int, max_tokens: int, most: int) -> Turn | float:
        return Turn(Cost(0.0), 0)

    def unused(self, turn: Turn, model: str) -> None: ...

    async def send(
        self,
        turn: Turn,
        model: str,
        params: bytes,
        headers: LaneHeaders,
        *,
        timeout: float,
        may_leave: Callable[[], bool] = lambda: True,
    ) -> LiveAnswer:
        api = self._api
        api.clock.advance(0.02)
        if not may_leave():
            return LiveAnswer(reason="not sent in time", never_left=True, withheld=True)
        plan = api.live_plans.popleft() if api.live_plans else LivePlan()
        if plan.kind == "connect":
            return LiveAnswer(reason="refused", never_left=True)
        api.on_live(params, plan)
        if plan.kind == "lose":
            return LiveAnswer(reason="the connection broke")
        if plan.kind == "error":
            fault = ApiFault(
                status=plan.status,
                error_type=_TYPES.get(plan.status, "api_error") if plan.from_api else None,
                message=plan.message,
                details=None,
                request_id="req_live" if plan.from_api else None,
                retry_after=None,
            )
            return LiveAnswer(fault=fault, status=fault.status, request_id=fault.request_id)
        usage = {"input_tokens": 1, "output_tokens": 2}
        body = {"id": "msg", "type": "message", "role": "assistant", "model": model}
        plain = {**body, "content": [], "stop_reason": "end_turn", "usage": usage}
        raw = json.dumps({**plain, **plan.answer})
        return LiveAnswer(message=decode_message(raw.encode()), raw=raw.encode(), status=200)
