"""Estimate costs from requests, a free token count of a sample, and answers in the ledger."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

import msgspec

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.request import ActorRequest, RequestEncoder, RequestLike
from claude_batch.core.answer_parts import Usage
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.ids import RequestIds
from claude_batch.core.quantities import usd
from claude_batch.core.settings import has_ledger
from claude_batch.ledger import budgets, cost_sums
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.budget_room import bound_cost, tokens_of_files
from claude_batch.money.prices import Prices, is_same_model
from claude_batch.money.rates import PRICED_GEO, Tariff
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
    token_bound,
)
from claude_batch.wire.caching import CacheMarks, counted_params, marked_prefix
from claude_batch.wire.connection import CredentialFault
from claude_batch.wire.conversation import LONGEST_CORRECTION
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders, asked_of, body_length
from claude_batch.wire.limits import MAX_BODY_BYTES

_log = logging.getLogger(__name__)

SAMPLE = 8
"""Requests whose tokens the API counts."""

STORED_SAMPLE = 20
"""Requests of a stored run that are sampled for its estimate, or read at a time."""

_FEW = 5
"""Minimum number of a model's answers from which its next ones are predicted."""


# Sums of all models -------------------------------------------------------------------------------

TOKENS_PER_BYTE: Final = 0.3
"""Input tokens per byte of params, if nothing better is known. English prose has about 0.25; source
code and other languages have more.
"""
MEDIA_SHARE: Final = 0.4
"""Tokens of PDFs and images relative to their upper bound, if nothing better is known. A page of
average text, as an image of standard resolution, has about 3,800 of 9,500.
"""
EXPECTED_SHARE: Final = 0.25
LOW_SHARE: Final = 0.05
"""Fractions of ``max_tokens`` that an answer uses, if no answer of the model was seen before."""


class Rule(NamedTuple):
    """Factors that turn bytes into tokens, and the expected length of answers."""

    tokens_per_byte: float
    source: Literal["counted", "seen", "rule"]
    """The API's own count of some requests, answers in the ledger, or a fixed rule."""
    low_output: float | None = None
    """Tokens of a short answer; None if no answer was seen."""
    mean_output: float | None = None


UNKNOWN: Final = Rule(TOKENS_PER_BYTE, "rule")


class Load(msgspec.Struct):
    """The requests to one model."""

    requests: int = 0
    in_us: int = 0
    """Number of those that run in the US, at its price."""
    size: int = 0
    """Bytes of their params."""
    media_size: int = 0
    """Bytes of the params that are base64 data of PDFs and images with a known token bound."""
    media_tokens: int = 0
    """Upper bound of the tokens of those PDFs and images."""
    most_input: int = 0
    """Upper bound of the input tokens of all requests with a known bound."""
    max_tokens: int = 0
    """Sum over all requests."""
    most: int = 0
    """The amount that a budget reserves for them, in nano-dollars."""
    most_turns: int = 0
    """The same for all turns, as `Estimate.cost_most_turns`."""
    searches: int = 0
    """Upper bound of the web searches of all requests with a known bound."""
    unbounded: int = 0
    """Number of requests without a known upper bound of their cost."""
    turns: int = 1
    """The most turns that one of the requests may take."""
    prefixes: dict[bytes, list[int]] = msgspec.field(default_factory=dict[bytes, list[int]])
    """For each prefix marked for the prompt cache: its bytes, and the number of requests sharing
    it.
    """
    hour: bool = False
    """Whether prefixes are cached for an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The expected cost of requests. Costs are integer nano-dollars (10⁻⁹ USD)."""

    requests: int
    size: int
    """Bytes of their encoded params."""
    batches: int
    """Lower bound of the number of batches; 0 if all requests are live calls."""
    input_tokens: int
    counted: Literal["counted", "seen", "rule"]
    """Source of the token counts: the API's count of a sample, answers in the ledger, or a rule."""
    output_low: int
    output_expected: int
    output_most: int
    """The sum of ``max_tokens``."""
    cost_low: int
    cost: int
    """Cost with the expected output: in batches, or live if all requests are live calls."""
    cost_most: int
    """Upper bound of the cost. At live prices if a mode or a deadline may cause live calls.
    Otherwise the amount that a budget reserves for all requests at once.
    """
    cost_most_turns: int
    """Upper bound of the cost of all `turns`, each of which repeats the answers before it, and what
    was wrong with them. It does not include what tools return, which has no bound.
    """
    live_cost: int
    """The value of `cost` without batches."""
    saved_by_cache: int
    """Highest saving by the prompt cache; negative if writing costs more. Hits are not
    guaranteed.
    """
    search_fees: int
    """Upper bound of the fees of web searches in the first turns, if ``max_uses`` limits them.

    Of all costs, only the highest ones include them."""
    unpriced: dict[str, int]
    """Number of requests to models without a known price, by model. No cost includes them."""
    way: Literal["batch", "live", "either"]
    """How the requests are sent. ``either``: in batches, and live if a deadline leaves no time."""
    unbounded: int
    """Number of requests that `cost_most` excludes, because their cost has no known upper bound."""
    turns: int = 1
    """The most turns that one of the requests may take: with tools (``max_turns``), or because an
    answer has not the right format (``validation_attempts``). All other costs are those of first
    turns.
    """

    @property
    def cost_usd(self) -> Decimal:
        """`cost` in dollars, exactly."""
        return usd(self.cost)

    @property
    def saved_by_batch(self) -> int:
        """Return the saving compared with live calls."""
        return self.live_cost - self.cost

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``…_usd`` are dollars."""
        values = {**asdict(self), "saved_by_batch": self.saved_by_batch}
        for name in ("cost_low", "cost", "cost_most", "cost_most_turns", "live_cost",
                     "saved_by_batch", "saved_by_cache", "search_fees"):  # fmt: skip
            values[f"{name}_usd"] = values[name] / 1e9
        return values


def _input_tokens(load: Load, rule: Rule) -> float:
    """Return the tokens of all prompts, limited to their upper bound."""
    if rule.source == "rule":
        text = (load.size - load.media_size) * rule.tokens_per_byte
        tokens = text + load.media_tokens * MEDIA_SHARE
    else:
        tokens = load.size * rule.tokens_per_byte
    return tokens if load.unbounded else min(tokens, load.most_input)


def _saved(tariff: Tariff, tokens: int, count: int, hour: bool, *, batch: bool) -> int:
    """Return the saving of one write and ``count - 1`` reads of a prefix over uncached reads."""
    writes = Usage(
        cache_creation_1h_input_tokens=tokens if hour else 0,
        cache_creation_5m_input_tokens=0 if hour else tokens,
    )
    written = tariff.charge(writes, batch=batch)
    read = tariff.charge(Usage(cache_read_input_tokens=tokens), batch=batch)
    return (written.uncached - written.cost) + (count - 1) * (read.uncached - read.cost)


# Estimates of requests ----------------------------------------------------------------------------


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

    def add(
        self,
        encoded: EncodedRequest,
        times: int = 1,
        prompt: str | None = None,
        *,
        judged: bool = False,
    ) -> None:
        """Count a request ``times`` times, if it stands for that many similar ones.

        ``prompt`` as in `CacheMarks.mark`. ``judged``: a type of the caller checks its answer.
        """
        if self._marks is not None:
            encoded, _ = self._marks.mark(encoded, prompt)
        model, longest = asked_of(encoded.params, unchecked=True)
        load = self.loads.setdefault(model, Load())
        load.requests += times
        load.in_us += times if b'"inference_geo":"us"' in encoded.params else 0
        load.size += len(encoded.params) * times
        load.max_tokens += longest * times
        turns = self._mode.max_turns if b'"tools":' in encoded.params else 1
        correction = 0
        # With citations, the format is part of the system prompt.
        if judged or b'"output_config":' in encoded.params:
            turns *= self._mode.validation_attempts
            correction = LONGEST_CORRECTION if self._mode.validation_attempts > 1 else 0
        load.turns = max(load.turns, turns)
        try:
            bound = token_bound(encoded.params, self._files)
            load.media_size += bound.media.size * times
            load.media_tokens += bound.media.tokens * times
            load.most_input += bound.input * times
            most = self._most(bound)
            load.most += most * times
            load.searches += bound.searches * times
            # The input grows evenly, and long prompts have higher prices, never lower ones. So the
            # mean of the first turn and the last is at least that of all.
            grown = bound.input + (turns - 1) * (bound.output + correction)
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
        way = self._way()
        batch = way != "live"
        tokens = low = expected = 0
        cost_low = cost = live_cost = saved = fees = 0
        unpriced: dict[str, int] = {}
        sources = {rules.get(model, UNKNOWN).source for model in self.loads}
        for model, load in self.loads.items():
            rule = rules.get(model, UNKNOWN)
            each = _input_tokens(load, rule) / load.requests
            longest = load.max_tokens / load.requests
            mean = min(rule.mean_output or longest * EXPECTED_SHARE, longest)
            short = min(rule.low_output or longest * LOW_SHARE, mean)
            tokens += round(each * load.requests)
            low += round(short * load.requests)
            expected += round(mean * load.requests)
            tariff = self._prices.tariff(model, at=self._now)
            if tariff is None:
                unpriced[model] = load.requests
                continue
            # Computed for one request of average length, because prices depend on the length of
            # each prompt.
            for geo, requests in ((PRICED_GEO, load.in_us), (None, load.requests - load.in_us)):
                least = Usage(
                    input_tokens=round(each), output_tokens=round(short), inference_geo=geo
                )
                usual = msgspec.structs.replace(least, output_tokens=round(mean))
                charge = tariff.charge(usual, batch=batch)
                cost_low += tariff.charge(least, batch=batch).cost * requests
                cost += charge.cost * requests
                live_cost += charge.live * requests
            fees += tariff.charge(Usage(web_search_requests=load.searches), batch=batch).cost
            saved += sum(
                _saved(tariff, round(size * rule.tokens_per_byte), count, load.hour, batch=batch)
                for size, count in load.prefixes.values()
            )
        return Estimate(
            requests=sum(load.requests for load in self.loads.values()),
            size=sum(load.size for load in self.loads.values()),
            batches=batches if batch else 0,
            input_tokens=tokens,
            counted=next(kind for kind in ("rule", "seen", "counted") if kind in sources),
            output_low=low,
            output_expected=expected,
            output_most=sum(load.max_tokens for load in self.loads.values()),
            cost_low=cost_low,
            cost=cost,
            cost_most=sum(load.most for load in self.loads.values()),
            cost_most_turns=sum(load.most_turns for load in self.loads.values()),
            live_cost=live_cost,
            saved_by_cache=saved,
            search_fees=fees,
            unpriced=unpriced,
            way=way,
            unbounded=sum(load.unbounded for load in self.loads.values()),
            turns=max((load.turns for load in self.loads.values()), default=1),
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
        of_model = [row for row in seen if is_same_model(row.model, model)]
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


class Estimation:
    """The estimate of requests that are neither stored nor sent, added one by one."""

    def __init__(
        self,
        encoder: RequestEncoder,
        mode: BatchProcessingMode,
        prices: Prices,
        *,
        actor: ActorConfiguration,
        ledger: str | None,
        credentials: Callable[[], Mapping[str, str]],
    ) -> None:
        """``ledger`` is the location of earlier answers; it is not created."""
        self._encoder = encoder
        self._estimator = Estimator(prices, mode, CacheMarks.of(mode))
        self._actor = actor.name
        self._is_judged = actor.judge is not None
        self._ledger = ledger
        self._credentials = credentials
        self._ids = RequestIds()

    @property
    def is_empty(self) -> bool:
        """Return True if there is no request."""
        return not self._estimator.loads

    def add(self, request: RequestLike) -> None:
        """Add a request; reads its documents.

        Raises `InvalidRequestError` for a request that a run would refuse, and for a duplicate key.
        """
        asked = ActorRequest.of(request)
        own = None if asked.documents else asked.prompt
        judged = self._is_judged or asked.output is not None
        encoded = self._encoder.encode(asked)
        self._ids.check(asked.key)
        self._estimator.add(encoded, prompt=own, judged=judged)
        self._ids.add(asked.key)

    def result(self, *, offline: bool = False) -> Estimate:
        """Return the estimate. Unless ``offline``, the API counts the tokens of a few requests.

        If the API cannot count them, they are estimated instead, with a log record. Raises
        `InvalidRequestError` if there is no request.
        """
        if self.is_empty:
            raise InvalidRequestError("there are no requests to estimate")
        rules: dict[str, Rule] = {}
        if self._ledger is not None and has_ledger(self._ledger):
            with closing(Ledger(self._ledger)) as store:
                rules = rules_seen(store, self._actor, self._estimator.loads)
        if not offline:
            try:
                counted = wait_on_a_loop(self._counted())
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

    async def _counted(self) -> dict[str, float]:
        """Return the tokens per byte of the sampled requests by model, as the API counts them."""
        found = self._credentials()
        client = BatchesClient(
            base_url=found.get("base_url"), api_key=found.get("api_key"), attempts=2
        )
        tokens: Counter[str] = Counter()
        size: Counter[str] = Counter()
        try:
            if not client.credential:
                raise ActorConfigurationError("there is no API key")
            for model, encoded in self._estimator.sample:
                params = counted_params(encoded.params)
                tokens[model] += await client.count_tokens(params, encoded.headers)
                size[model] += len(encoded.params)
        except ApiError as error:
            raise Unreachable(misplaced_error(error, client.base_url)) from None
        finally:
            await client.close()
        return {model: tokens[model] / size[model] for model in size}


def stored_estimate(
    writer: RunWriter,
    prices: Prices,
    places: Sequence[int],
    mode: BatchProcessingMode,
    *,
    whole: bool = False,
) -> Estimate:
    """Estimate requests of a stored run by their positions, from a sample of them.

    ``mode`` is that with which they are sent.
    ``whole``: from all of them, so that `Estimate.cost_most` holds for every request. Reading the
    documents of a run may take long.
    """
    writer.flush()
    actor = writer.asked.actor
    estimator = Estimator(prices, mode, files=tokens_of_files(writer.ledger))
    judged = writer.is_judged
    step = STORED_SAMPLE if whole else len(places)
    for first in range(0, len(places), step):
        some = places[first : first + step]
        _add_stored(estimator, writer.ledger, writer.run_id, some, judged=judged)
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


def _add_stored(
    estimator: Estimator,
    ledger: Ledger,
    run_id: str,
    places: Sequence[int],
    *,
    judged: bool = False,
) -> None:
    """Add a sample of stored requests, each for those up to the next one; all if they are few."""
    requests = len(places)
    chosen = sorted({requests * each // STORED_SAMPLE for each in range(STORED_SAMPLE)})
    sample = [places[each] for each in chosen]
    bodies = ledger.query(lambda tx: cost_sums.params_at(tx, run_id, sample))
    for number, body in enumerate(bodies):
        times = requests * (number + 1) // len(bodies) - requests * number // len(bodies)
        estimator.add(EncodedRequest(body, LaneHeaders()), times, judged=judged)
