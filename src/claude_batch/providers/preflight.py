"""Preflight: the API looks at one request of each shape of a run before any of it is sent.

A batch tells of a mistake in its params only when it has ended. Counting tokens is free, takes a
second, and checks the same model, tools and schema.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from claude_batch.actor.request import ActorRequest
from claude_batch.core.errors import PreflightError, request_name
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.ledger.token_counts import TokenCount
from claude_batch.lifecycle.doors import Door
from claude_batch.lifecycle.engine import Engine
from claude_batch.wire.batches_client import ApiError, Unreachable
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders
from claude_batch.wire.error_table import ApiFault
from claude_batch.wire.shapes import counted_params, decode_fields, model_of, shape_digest

__all__ = ["MOST_SHAPES", "Preflight", "preflight_of"]

_log = logging.getLogger(__name__)

FROM_REQUESTS = 101
"""Requests of a run from which on preflight is on by default."""

MOST_SHAPES = 50
"""Shapes of a run that are looked at; more would hold it up."""

AT_ONCE = 8
"""Calls under way at a time."""

PATIENCE = 20.0
"""Seconds until the API is not waited for any more: what it would say is a help, not a need."""

_NOT_COUNTED = re.compile(r"\w+: Extra inputs are not permitted")
"""Said of a parameter that counting does not know; a batch may take it all the same."""

Count = Callable[[bytes, LaneHeaders], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class _Sample:
    """The first request of a shape."""

    position: int
    key: str | None
    encoded: EncodedRequest


class Preflight:
    """Collects the shapes of one run while it is stored, and has them looked at."""

    def __init__(
        self,
        count: Count,
        run: Callable[[Coroutine[Any, Any, list[int | Exception | None]]], Future[Any]],
        *,
        always: bool = False,
        spare_single: bool = False,
    ) -> None:
        """``count`` asks the API; ``run`` runs a coroutine where it may be awaited.

        ``always``: whatever the number of requests. ``spare_single``: a fault in one request's own
        messages does not refuse the run.
        """
        self._count = count
        self._run = run
        self._always = always
        self._spare_single = spare_single
        self._plain: LaneHeaders | None = None
        self._samples: dict[bytes, _Sample] = {}
        self._left_out = 0

    def look(self, request: ActorRequest, encoded: EncodedRequest, position: int) -> None:
        """Note the shape of a request."""
        plain = request.prompt is not None and not request.documents
        if plain:
            # All that is no prompt is the actor's: one look serves for all of them.
            if self._plain is encoded.headers:
                return
            self._plain = encoded.headers
        shape = shape_digest(encoded, decode_fields(encoded.params))
        if shape in self._samples:
            return
        if len(self._samples) < MOST_SHAPES:
            self._samples[shape] = _Sample(position, request.key, encoded)
        else:
            self._left_out += 1

    def check(self, requests: int) -> list[TokenCount]:
        """Ask the API, where the run is large enough; what it counted. Raises `PreflightError`.

        Blocks. An API that cannot be reached, or has no time, is no reason to refuse.
        """
        if not self._samples or not (self._always or requests >= FROM_REQUESTS):
            return []
        if self._left_out:
            _log.warning(
                "%d shapes of requests are looked at before sending; %d requests of other shapes "
                "are not",
                MOST_SHAPES,
                self._left_out,
                extra={"for_people": True},
            )
        samples = list(self._samples.values())
        bodies = [counted_params(sample.encoded.params) for sample in samples]
        answers = self._run(self._ask(samples, bodies)).result()
        counted: list[TokenCount] = []
        for sample, body, answer in zip(samples, bodies, answers, strict=True):
            if isinstance(answer, int):
                counted.append(TokenCount(model_of(body), len(body), answer))
            elif isinstance(answer, ApiError) and self._refuses(answer.fault):
                raise _refusal(sample, answer.fault)
        for answer in answers:
            if isinstance(answer, Exception):
                _log.warning(
                    "the look at this run before sending was not finished: %s; it goes on",
                    answer,
                    extra={"for_people": True},
                )
                break
        return counted

    async def _ask(
        self, samples: list[_Sample], bodies: list[bytes]
    ) -> list[int | Exception | None]:
        """What the API said of each; None where it was not asked any more."""
        free = asyncio.Semaphore(AT_ONCE)
        over = False

        async def one(sample: _Sample, body: bytes) -> int | Exception | None:
            nonlocal over
            async with free:
                if over:
                    return None
                try:
                    async with asyncio.timeout(PATIENCE):
                        return await self._count(body, sample.encoded.headers)
                except TimeoutError:
                    over = True
                    return Unreachable(f"no answer for {PATIENCE:g} seconds")
                except (ApiError, Unreachable) as error:
                    # A refusal ends the run, anything else that fails would fail again.
                    over = True
                    return error

        return await asyncio.gather(*map(one, samples, bodies))

    def _refuses(self, fault: ApiFault) -> bool:
        """Whether a batch would be told the same of this request, and of all like it."""
        if not fault.from_api or fault.account_reason is not None:
            return False
        if fault.status == 404:
            return fault.message.startswith("model")
        if fault.status != 400 or _NOT_COUNTED.match(fault.message):
            return False
        return not (self._spare_single and fault.message.startswith("messages"))


def _refusal(sample: _Sample, fault: ApiFault) -> PreflightError:
    who = "" if sample.key is not None else f"{request_name(None, sample.position)}: "
    return PreflightError(
        f"{who}the API refuses it: {fault.describe()}. Every request like it would end so, hours "
        "later: nothing was kept and nothing was sent. Mend the actor or the request; "
        "`preflight: false` sends it all the same",
        key=sample.key,
        error_type=fault.error_type,
    )


def preflight_of(
    mode: BatchProcessingMode, door: Door, engine: Engine, *, drives: bool, spare_single: bool
) -> Preflight | None:
    """What looks at a run of this mode before it is packed; None where nothing should."""
    if mode.preflight is False or (mode.preflight == "auto" and not drives):
        return None  # who only stores has nothing to do with the API
    return Preflight(
        door.client.count_tokens,
        engine.do,
        always=mode.preflight is True,
        spare_single=spare_single,
    )
