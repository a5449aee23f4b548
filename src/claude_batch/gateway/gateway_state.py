"""`Gateway`: what the routes of a gateway share, and what it counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from claude_batch.core.batch_processing import resolve_mode
from claude_batch.core.quantities import usd
from claude_batch.gateway import GatewaySettings
from claude_batch.gateway.access import Access
from claude_batch.gateway.asgi import Bodies
from claude_batch.gateway.exchanges import Exchanges, HeldCall
from claude_batch.gateway.gateway_options import OptionReader
from claude_batch.gateway.http_protocol import CONNECTION
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.waiters import Joined
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.wire.batches_client import BatchesClient

_PREFIX: Final = "claude_batch_gateway"

_SECONDS: Final = (0.5, 2, 5, 20, 60, 300, 900, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400)
"""Upper bounds of the waiting times that are counted apart; a batch may take 24 h."""


class Metrics:
    """The metrics of one gateway in the format of Prometheus, in a registry of their own."""

    def __init__(self) -> None:
        """Count from zero."""
        self.registry: CollectorRegistry = CollectorRegistry()
        self._calls = Counter(
            f"{_PREFIX}_calls",
            "Messages calls that ended. status: of the response; end: whole, aborted or left.",
            ("status", "end", "stream"),
            registry=self.registry,
        )
        self._answers = Counter(
            f"{_PREFIX}_answers",
            "Requests with an outcome. via: batch or live; origin: new, or reused by a later call.",
            ("via", "state", "origin"),
            registry=self.registry,
        )
        self._joins = Counter(
            f"{_PREFIX}_joins",
            "Calls that joined an earlier request. kind: equal (no caller waited for it), key (of "
            "its Idempotency-Key), failure (repeated), or retry (of an SDK).",
            ("kind",),
            registry=self.registry,
        )
        self._cost = Counter(
            f"{_PREFIX}_cost_dollars", "Cost of new answers.", registry=self.registry
        )
        self._seconds = Histogram(
            f"{_PREFIX}_wait_seconds",
            "Time from a call to its response's end.",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def joined(self, kind: Joined) -> None:
        """Count a call that joined an earlier request."""
        self._joins.labels(kind).inc()

    def call_ended(self, call: HeldCall, stream: bool) -> None:
        """Count a Messages call."""
        end = "whole" if call.is_whole else "left" if call.is_gone else "aborted"
        status = "" if call.status is None else str(call.status)
        self._calls.labels(status, end, "true" if stream else "false").inc()
        self._seconds.observe(time.monotonic() - call.begun)

    def call_refused(self, status: int) -> None:
        """Count a Messages call that was refused before its response had begun."""
        self._calls.labels(str(status), "whole", "false").inc()

    def answered(self, answer: Answer) -> None:
        """Count a request that has its outcome."""
        origin = "reused" if answer.reused else "new"
        self._answers.labels(answer.via, answer.state.value, origin).inc()
        if answer.cost is not None and not answer.reused:
            self._cost.inc(float(usd(answer.cost)))

    def show(self, name: str, text: str, value: Callable[[], int]) -> None:
        """Add a gauge of what is counted elsewhere."""
        Gauge(f"{_PREFIX}_{name}", text, registry=self.registry).set_function(value)

    async def respond(self, request: Request) -> Response:
        """Answer a call of ``/metrics``."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


class Gateway:
    """The state that the routes share. Belongs to the server's event loop."""

    def __init__(self, provider: ClaudeBatchProvider, settings: GatewaySettings) -> None:
        """``provider`` answers the calls.

        Raises `ActorConfigurationError` for settings that are not safe, and what opening the ledger
        raises.
        """
        self.provider: ClaudeBatchProvider = provider
        self.settings: GatewaySettings = settings
        self.client: BatchesClient = provider.opening().result().session.client
        self.access: Access = Access(settings, self.client, provider.stored_workspace)
        self.bodies: Bodies = Bodies(settings.largest_body, settings.largest_bodies)
        self.option_reader: OptionReader = OptionReader(provider.overrides)
        self.exchanges: Exchanges = Exchanges()
        self.calls: set[HeldCall] = set()
        """The calls that wait."""
        self.defaults: dict[str, Any] = dict(provider.default_options)
        """Parameters for a body without them."""
        # A header of the API's, not a part of the body.
        self.user_profile: str | None = self.defaults.pop("user_profile_id", None)
        mode = resolve_mode(True, provider.overrides)
        self.failure_ttl: float = mode.failure_ttl
        self.poll_interval: float = mode.poll_interval
        self.is_ending: bool = False
        self.metrics: Metrics = Metrics()
        self.metrics.show("calls_waiting", "Calls that wait for an answer.", self.calls.__len__)
        self.metrics.show("requests_waiting", "Requests of these calls.", self.exchanges.__len__)
        self.metrics.show("body_bytes", "Bytes of bodies in memory.", lambda: self.bodies.held)

    def acknowledge(self, answer: Answer, taken: bool) -> None:
        """Record whether an answer has reached a caller."""
        self.provider.acknowledge(answer, taken=taken)
        self.metrics.answered(answer)

    @contextmanager
    def hold(self, scope: Scope, receive: Receive, send: Send) -> Generator[HeldCall]:
        """Yield a call that may wait; once the gateway has begun to end, its wait is over."""
        with HeldCall(receive, send, scope["state"].get(CONNECTION)) as call:
            self.calls.add(call)
            if self.is_ending:
                call.wake()
            try:
                yield call
            finally:
                self.calls.discard(call)

    def end(self) -> None:
        """Refuse new calls, and end those that wait; their requests stay in the ledger."""
        self.is_ending = True
        for call in list(self.calls):
            call.wake()
