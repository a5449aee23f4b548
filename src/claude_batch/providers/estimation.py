"""Estimate costs from requests, a free token count of a sample, and answers in the ledger."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from claude_batch.actor.request import ActorRequest, RequestEncoder, RequestLike
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.settings import has_ledger
from claude_batch.ledger import budgets, cost_sums
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.budget_room import bound_cost, tokens_of_files
from claude_batch.money import UNKNOWN, Estimate, Load, Prices, Rule, estimate
from claude_batch.providers.middleware_runner import wait_on_a_loop
from claude_batch.providers.run_writer import RunWriter
from claude_batch.wire.batches_client import (
    ApiError,
    BatchesClient,
    Unreachable,
    misplaced_error,
)
from claude_batch.wire.bounds import (
    FileTokens,
    TokenBound,
    Unbounded,
    named_and_longest,
    token_bound,
)
from claude_batch.wire.caching import CacheMarks, counted_params, marked_prefix
from claude_batch.wire.connection import CredentialFault
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders, body_length
from claude_batch.wire.limits import MAX_BODY_BYTES

_log = logging.getLogger(__name__)

SAMPLE = 8
"""Requests whose tokens the API counts."""

STORED_SAMPLE = 20
"""Requests of a stored run that are sampled for its estimate, or read at a time."""

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
        turns = self._mode.max_turns if b'"tools":' in encoded.params else 1
        if b'"output_config":' in encoded.params:
            turns *= self._mode.validation_attempts
        load.turns = max(load.turns, turns)
        try:
            bound = token_bound(encoded.params, self._files)
            load.media_size += bound.media.size * times
            load.media_tokens += bound.media.tokens * times
            load.most_input += bound.input * times
            most = self._most(bound)
            load.most += most * times
            # The input grows evenly, and long prompts have higher prices, never lower ones. So the
            # mean of the first turn and the last is at least that of all.
            grown = bound.input + (turns - 1) * bound.output
            last = most if turns == 1 else self._most(bound._replace(input=grown))
            load.most_turns += turns * (most + last) // 2 * times
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

    def _most(self, bound: TokenBound) -> int:
        return bound_cost(self._prices, bound, self._now, batch=not self._may_be_live)

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
    seen, counted = ledger.query(
        lambda tx: (
            cost_sums.recent_usage(tx),
            {model: budgets.tokens_per_byte(tx, model) for model in models},
        )
    )
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
    except ApiError as error:
        raise Unreachable(misplaced_error(error, connected.base_url)) from None
    finally:
        await connected.close()
    return {model: tokens / size for model, (tokens, size) in sums.items()}


class Estimation:
    """The estimate of requests that are neither stored nor sent, added one by one."""

    def __init__(
        self,
        encoder: RequestEncoder,
        mode: BatchProcessingMode,
        prices: Prices,
        *,
        actor: str,
        ledger: str | None,
        credentials: Callable[[], Mapping[str, str]],
    ) -> None:
        """``ledger`` is the location of earlier answers; it is not created."""
        self._encoder = encoder
        self._estimator = Estimator(prices, mode, CacheMarks.of(mode))
        self._actor = actor
        self._ledger = ledger
        self._credentials = credentials

    @property
    def is_empty(self) -> bool:
        """Return True if there is no request."""
        return not self._estimator.loads

    def add(self, request: RequestLike) -> None:
        """Add a request; reads its documents. Raises `InvalidRequestError`."""
        asked = ActorRequest.of(request)
        own = None if asked.documents else asked.prompt
        self._estimator.add(self._encoder.encode(asked), prompt=own)

    def result(self, *, offline: bool = False) -> Estimate:
        """Return the estimate. Unless ``offline``, the API counts the tokens of a few requests.

        If the API cannot count them, a log record says so, and they are estimated instead. Raises
        `InvalidRequestError` if there is no request.
        """
        if self.is_empty:
            raise InvalidRequestError("there are no requests to estimate")
        rules: dict[str, Rule] = {}
        if self._ledger is not None and has_ledger(self._ledger):
            store = Ledger(self._ledger)
            try:
                rules = rules_seen(store, self._actor, self._estimator.loads)
            finally:
                store.close()
        if not offline:
            try:
                counted = wait_on_a_loop(_count(self._client, self._estimator.sample))
            except (ApiError, Unreachable, CredentialFault, ActorConfigurationError) as error:
                _log.warning(
                    "the API cannot count tokens (%s); they are estimated instead",
                    error,
                    extra={"for_people": True},
                )
                counted = {}
            for model, ratio in counted.items():
                known = rules.get(model, UNKNOWN)
                rules[model] = known._replace(tokens_per_byte=ratio, source="counted")
        return self._estimator.estimate(rules)

    def _client(self) -> BatchesClient:
        found = self._credentials()
        client = BatchesClient(
            base_url=found.get("base_url"), api_key=found.get("api_key"), attempts=2
        )
        if not client.credential:
            raise ActorConfigurationError("there is no API key")
        return client


def stored_estimate(
    writer: RunWriter, prices: Prices, places: Sequence[int], *, whole: bool = False
) -> Estimate:
    """Estimate requests of a stored run by their positions, from a sample of them.

    ``whole``: from all of them, so that `Estimate.cost_most` holds for every request. Reading the
    documents of a run may take long.
    """
    writer.flush()
    actor = writer.asked.actor
    estimator = Estimator(prices, writer.asked.mode, files=tokens_of_files(writer.ledger))
    if whole:
        _add_all(estimator, writer.ledger, writer.run_id, places)
    else:
        _add_stored(estimator, writer.ledger, writer.run_id, places)
    if not whole and len(places) == writer.count:  # the bytes of all requests are known
        share = writer.size / sum(load.size for load in estimator.loads.values())
        for load in estimator.loads.values():
            for name in ("size", "media_size", "media_tokens", "most_input"):
                setattr(load, name, round(getattr(load, name) * share))
            load.most = round(load.most * max(share, 1))
            load.most_turns = round(load.most_turns * max(share, 1))
    return estimator.estimate(rules_seen(writer.ledger, actor, estimator.loads))


def expected_cost(
    ledger: Ledger, run_id: str, requests: int, *, actor: str, mode: str, prices: Prices
) -> int | None:
    """Estimate the cost of all requests of a run in nano-dollars, from a sample of them.

    None if a model has no known price.
    """
    way = BatchProcessingMode.model_validate({"mode": mode})
    estimator = Estimator(prices, way, files=tokens_of_files(ledger))
    _add_stored(estimator, ledger, run_id, range(requests))
    if not estimator.loads:
        return None
    found = estimator.estimate(rules_seen(ledger, actor, estimator.loads))
    return None if found.unpriced else found.cost


def _add_all(estimator: Estimator, ledger: Ledger, run_id: str, places: Sequence[int]) -> None:
    for first in range(0, len(places), STORED_SAMPLE):
        some = places[first : first + STORED_SAMPLE]
        for body in ledger.query(lambda tx, at=some: cost_sums.params_at(tx, run_id, at)):
            estimator.add(EncodedRequest(body, LaneHeaders()))


def _add_stored(estimator: Estimator, ledger: Ledger, run_id: str, places: Sequence[int]) -> None:
    requests = len(places)
    chosen = sorted({requests * each // STORED_SAMPLE for each in range(STORED_SAMPLE)})
    sample = [places[each] for each in chosen]
    bodies = ledger.query(lambda tx: cost_sums.params_at(tx, run_id, sample))
    for number, body in enumerate(bodies):
        # Each sampled request stands for those up to the next one.
        times = requests * (number + 1) // len(bodies) - requests * number // len(bodies)
        estimator.add(EncodedRequest(body, LaneHeaders()), times)
