"""Estimate costs from requests, a free token count of a sample, and answers in the ledger."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from claude_batch.core.settings import BatchProcessingMode
from claude_batch.ledger import cost_sums, reservations
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.budget_room import bound_cost, tokens_of_files
from claude_batch.money.estimates import Estimate, Load, Rule, estimate
from claude_batch.money.prices import Prices
from claude_batch.providers.run_writer import RunWriter
from claude_batch.wire.batches_client import BatchesClient
from claude_batch.wire.bounds import FileTokens, Unbounded, named_and_longest, token_bound
from claude_batch.wire.caching import CacheMarks, counted_params, marked_prefix
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders, body_length
from claude_batch.wire.limits import MAX_BODY_BYTES

SAMPLE = 8
"""Requests whose tokens the API counts."""

STORED_SAMPLE = 20
"""Requests of a stored run that are sampled for its estimate."""

_FEW = 5
"""Minimum number of a model's answers from which its next ones are predicted."""


class Estimator:
    """Add up requests as they come; keep a sample of them, and only sums of the rest."""

    def __init__(
        self,
        prices: Prices,
        mode: BatchProcessingMode,
        marks: CacheMarks | None = None,
        files: FileTokens | None = None,
    ) -> None:
        """Set up the sums.

        ``marks`` mark the requests for the prompt cache, as in a run; ``files`` holds the token
        bounds of uploaded files.
        """
        self._files = files
        self.loads: dict[str, Load] = {}
        self.sample: list[tuple[str, EncodedRequest]] = []
        """A uniform random sample of the requests, with the names of their models."""
        self._prices = prices
        self._mode = mode
        self._marks = marks
        at_last = mode.deadline is not None and mode.fallback == "live"
        self._may_be_live = mode.mode != "batch" or at_last
        self._now = time.time()
        self._lanes: dict[LaneHeaders, list[int]] = {}
        self._seen = 0
        # A fixed seed gives the same sample for the same input, so an estimate is repeatable.
        self._random = random.Random(0)

    def add(self, encoded: EncodedRequest, times: int = 1, prompt: str | None = None) -> None:
        """Count a request ``times`` times, if it stands for that many similar ones.

        ``prompt`` as in `CacheMarks.mark`.
        """
        if self._marks is not None:
            encoded, _ = self._marks.mark(encoded, prompt)
        model, longest = named_and_longest(encoded.params)
        load = self.loads.setdefault(model, Load())
        load.requests += times
        load.size += len(encoded.params) * times
        load.max_tokens += longest * times
        try:
            bound = token_bound(encoded.params, self._files)
            load.media_size += bound.media.size * times
            load.media_tokens += bound.media.tokens * times
            load.most_input += bound.input * times
            most = bound_cost(self._prices, bound, self._now, batch=not self._may_be_live)
            load.most += most * times
        except Unbounded:
            load.unbounded += times
        prefix = marked_prefix(encoded.params)
        if prefix is not None:
            load.prefixes.setdefault(prefix.digest, [prefix.size, 0])[1] += times
            load.hour |= prefix.hour
        lane = self._lanes.setdefault(encoded.headers, [0, 0])
        lane[0] += times
        lane[1] += len(encoded.params) * times
        self._seen += 1
        if len(self.sample) < SAMPLE:
            self.sample.append((model, encoded))
        elif (place := self._random.randrange(self._seen)) < SAMPLE:
            self.sample[place] = (model, encoded)

    def estimate(self, rules: dict[str, Rule]) -> Estimate:
        """Estimate all requests by these rules."""
        batches = sum(
            max(
                -(-count // self._mode.max_requests), -(-body_length(count, size) // MAX_BODY_BYTES)
            )
            for count, size in self._lanes.values()
        )
        return estimate(
            self.loads, rules, self._prices, batches=batches, way=self._way(), now=self._now
        )

    def _way(self) -> Literal["batch", "live", "either"]:
        requests = sum(load.requests for load in self.loads.values())
        few = self._mode.mode == "auto" and requests <= self._mode.auto_threshold
        if few or self._mode.mode == "live":
            return "live"
        return "either" if self._may_be_live else "batch"


def rules_seen(ledger: Ledger, actor: str, models: Iterable[str]) -> dict[str, Rule]:
    """Return recent prompt and answer lengths of these models, preferring those of the actor.

    With too few answers, the API's token counts from before a run are used, for prompts only.
    """
    with ledger.read() as tx:
        seen = cost_sums.recent_usage(tx)
        counted = {model: reservations.tokens_per_byte(tx, model) for model in models}
    rules: dict[str, Rule] = {}
    for model, ratio in counted.items():
        of_model = [row for row in seen if row.model.startswith(model)]
        rows = [row for row in of_model if row.actor == actor]
        rows = rows if len(rows) >= _FEW else of_model
        if len(rows) < _FEW:
            if ratio is not None:
                rules[model] = Rule(ratio, "counted")
            continue
        outputs = sorted(row.output_tokens for row in rows)
        rules[model] = Rule(
            sum(row.input_tokens for row in rows) / sum(row.size for row in rows),
            "seen",
            outputs[len(outputs) // 10],
            sum(outputs) / len(outputs),
        )
    return rules


def count_tokens(
    client: Callable[[], BatchesClient], sample: Sequence[tuple[str, EncodedRequest]]
) -> dict[str, float]:
    """Return tokens per byte for each model in the sample, from the API's free token count.

    Raises `ApiError` and `Unreachable`. Not for a thread that runs an event loop.
    """
    return asyncio.run(_count(client, sample))


async def _count(
    client: Callable[[], BatchesClient], sample: Sequence[tuple[str, EncodedRequest]]
) -> dict[str, float]:
    sums: dict[str, tuple[int, int]] = {}
    connected = client()
    try:
        for model, encoded in sample:
            tokens = await connected.count_tokens(counted_params(encoded.params), encoded.headers)
            known = sums.get(model, (0, 0))
            sums[model] = (known[0] + tokens, known[1] + len(encoded.params))
    finally:
        await connected.close()
    return {model: tokens / size for model, (tokens, size) in sums.items()}


def stored_estimate(writer: RunWriter, prices: Prices) -> Estimate:
    """Estimate a stored run that is not sent yet, from a sample of its requests."""
    writer.flush()
    requests, ledger = writer.count, writer.ledger
    places = sorted({requests * each // STORED_SAMPLE for each in range(STORED_SAMPLE)})
    with ledger.read() as tx:
        bodies = cost_sums.params_at(tx, writer.run_id, places)
    estimator = Estimator(prices, writer.asked.mode, files=tokens_of_files(ledger))
    for number, body in enumerate(bodies):
        # Each sampled request stands for those up to the next one.
        times = requests * (number + 1) // len(bodies) - requests * number // len(bodies)
        estimator.add(EncodedRequest(body, LaneHeaders()), times)
    looked_at = sum(load.size for load in estimator.loads.values())
    for load in estimator.loads.values():
        for name in ("size", "media_size", "media_tokens", "most_input"):
            setattr(load, name, round(getattr(load, name) * writer.size / looked_at))
    return estimator.estimate(rules_seen(ledger, writer.asked.actor, estimator.loads))
