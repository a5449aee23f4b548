"""`Gateway`: what the routes of a gateway share."""

from __future__ import annotations

from claude_batch.core.batch_processing import resolve_mode
from claude_batch.gateway.access import Access
from claude_batch.gateway.bodies import Bodies
from claude_batch.gateway.exchanges import Exchanges
from claude_batch.gateway.gateway_settings import GatewaySettings
from claude_batch.gateway.held_calls import HeldCall
from claude_batch.gateway.metrics import Metrics
from claude_batch.gateway.wishes import WishReader
from claude_batch.ledger.queries import Answer
from claude_batch.providers.batch import ClaudeBatchProvider


class Gateway:
    """What the routes share. Belongs to the server's event loop."""

    def __init__(
        self, provider: ClaudeBatchProvider, settings: GatewaySettings, own_key: str | None
    ) -> None:
        """``provider`` answers the calls; ``own_key`` is its API key, if that is known.

        Raises `ActorConfigurationError` for settings that are not safe.
        """
        self.provider: ClaudeBatchProvider = provider
        self.settings: GatewaySettings = settings
        self.access: Access = Access(settings, own_key)
        self.bodies: Bodies = Bodies(settings.largest_body, settings.largest_bodies)
        self.wishes: WishReader = WishReader(provider.overrides)
        self.exchanges: Exchanges = Exchanges()
        self.calls: set[HeldCall] = set()
        """The calls that wait."""
        mode = resolve_mode(True, provider.overrides)
        self.failure_ttl: float = mode.failure_ttl
        self.poll_interval: float = mode.poll_interval
        self.is_ending: bool = False
        self.metrics: Metrics = Metrics(
            calls_waiting=lambda: len(self.calls),
            requests_waiting=lambda: len(self.exchanges),
            body_bytes=lambda: self.bodies.held,
        )

    def acknowledge(self, answer: Answer, taken: bool) -> None:
        """Record whether an answer has reached a caller."""
        self.provider.acknowledge(answer, taken=taken)
        self.metrics.answered(answer)

    def end(self) -> None:
        """Refuse new calls, and end those that wait; their requests stay in the ledger."""
        self.is_ending = True
        for call in list(self.calls):
            call.wake()
