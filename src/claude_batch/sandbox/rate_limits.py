"""Rate limits: of live messages, enforced and reported as by the API; of batch calls, reported.

Each limit is a bucket that fills evenly and is full after a minute. Every answer reports limit,
remaining amount and time of the reset in the `anthropic-ratelimit-*` headers. A message for which a
bucket is empty gets a 429 with `retry-after`. Input tokens are counted when the message comes in,
output tokens when it is answered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from .api_errors import ApiError

NAMES = ("requests", "input-tokens", "output-tokens")


class RateLimits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Limits per minute of one workspace's live messages; a None is neither enforced nor reported.

    `requests_left` and so on are the amounts at the start, if less than the limit.
    """

    requests: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    requests_left: float | None = None
    input_tokens_left: float | None = None
    output_tokens_left: float | None = None


BATCH_CALLS = RateLimits(requests=4_000)
"""Calls per minute of all batch routes of a workspace: the highest tier's. It is not enforced."""


class _Bucket:
    def __init__(self, limit: float, left: float | None, now: float) -> None:
        self.limit = limit
        self.left = limit if left is None else min(left, limit)
        self.at = now

    def refill(self, now: float) -> None:
        self.left = min(self.limit, self.left + max(0.0, now - self.at) * self.limit / 60)
        self.at = now


class Meter:
    """The usage of one workspace."""

    def __init__(self, limits: RateLimits, now: float) -> None:
        self._buckets: dict[str, _Bucket] = {}
        for name in NAMES:
            field = name.replace("-", "_")
            limit = getattr(limits, field)
            if limit is not None:
                self._buckets[name] = _Bucket(limit, getattr(limits, f"{field}_left"), now)

    def admit(self, now: float, input_tokens: float) -> None:
        """Count one message; raises `ApiError` (429) if it exceeds a limit."""
        needs = {"requests": 1.0, "input-tokens": input_tokens, "output-tokens": 1.0}
        for name, bucket in self._buckets.items():
            bucket.refill(now)
            short = min(needs[name], bucket.limit) - bucket.left
            if short > 0:
                wait = short * 60 / bucket.limit
                raise ApiError(
                    "rate_limit_error",
                    f"This request would exceed your organization's rate limit of "
                    f"{bucket.limit:g} {name.replace('-', ' ')} per minute.",
                    headers={"retry-after": f"{wait:.3f}", **self.headers(now)},
                )
        for name in ("requests", "input-tokens"):
            if name in self._buckets:
                self._buckets[name].left -= needs[name]

    def count(self, now: float) -> None:
        """Count one call, even if it exceeds the limit of requests."""
        bucket = self._buckets["requests"]
        bucket.refill(now)
        bucket.left = max(bucket.left - 1, 0)

    def answered(self, now: float, usage: Mapping[str, Any]) -> None:
        """Count the tokens of an answer."""
        bucket = self._buckets.get("output-tokens")
        if bucket is not None:
            bucket.refill(now)
            bucket.left -= usage["output_tokens"]

    def headers(self, now: float) -> dict[str, str]:
        """Return the rate limit headers of an answer."""
        headers: dict[str, str] = {}
        for name, bucket in self._buckets.items():
            full = now + (bucket.limit - bucket.left) * 60 / bucket.limit
            reset = datetime.fromtimestamp(math.ceil(full), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            headers[f"anthropic-ratelimit-{name}-limit"] = f"{bucket.limit:g}"
            headers[f"anthropic-ratelimit-{name}-remaining"] = str(max(0, math.floor(bucket.left)))
            headers[f"anthropic-ratelimit-{name}-reset"] = reset
        return headers
