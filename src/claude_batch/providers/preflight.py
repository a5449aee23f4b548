"""Preflight: the API checks one request of each shape of a run before any of it is sent.

A batch reports an error in its params only when it has ended. Counting tokens is free, takes a
second, and validates the same model, tools and schema.
"""

from __future__ import annotations

import asyncio
import logging
import re

import msgspec

from claude_batch.core.errors import PreflightError, request_name
from claude_batch.ledger import budgets
from claude_batch.ledger.budgets import TokenCount
from claude_batch.lifecycle.api_sessions import ApiSession
from claude_batch.lifecycle.engine import Engine
from claude_batch.wire.batches_client import ApiError, Unreachable
from claude_batch.wire.caching import counted_params, decode_fields, shape_digest
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders, asked_of
from claude_batch.wire.error_table import ApiFault

_log = logging.getLogger(__name__)

FROM_REQUESTS = 101
"""Minimum requests of a run of which all shapes are checked by default, the known ones too."""

MOST_SHAPES = 50
"""Maximum shapes of a run that are checked; more would delay it."""

AT_ONCE = 8
"""Maximum concurrent calls."""

PATIENCE = 20.0
"""Seconds until preflight stops waiting for the API, because its answer is optional."""

_NOT_COUNTED = re.compile(r"\w+: Extra inputs are not permitted")
"""Error for a parameter that token counting does not support; a batch may still accept it."""


class _Sample(msgspec.Struct, frozen=True):
    """The first request of a shape."""

    position: int
    key: str | None
    encoded: EncodedRequest


class Preflight:
    """Collects the shapes of one run while it is stored, and has the API check them."""

    def __init__(
        self,
        engine: Engine,
        session: ApiSession,
        *,
        always: bool,
        spare_single: bool,
    ) -> None:
        """``always``: check all shapes, whatever the number of requests.

        ``spare_single``: a fault in one request's own messages does not reject the run.
        """
        self._engine = engine
        self._client = session.client
        self._workspace_id = session.workspace_id
        self._always = always
        self._spare_single = spare_single
        self._plain: LaneHeaders | None = None
        self._samples: dict[bytes, _Sample] = {}
        self._left_out = 0

    def look(self, encoded: EncodedRequest, position: int, *, key: str | None, plain: bool) -> None:
        """Record the shape of a request; ``plain``: all but its prompt is the actor's."""
        if plain:
            # Everything but the prompt belongs to the actor, so one check covers all its requests.
            if self._plain is encoded.headers:
                return
            self._plain = encoded.headers
        fields = decode_fields(encoded.params)
        shape = shape_digest(encoded, fields)
        # Counting takes no `thread`, without which the messages of a turn are not whole.
        if shape in self._samples or "thread" in fields:
            return
        if len(self._samples) < MOST_SHAPES:
            self._samples[shape] = _Sample(position, key, encoded)
        else:
            self._left_out += 1

    def check(self, requests: int) -> None:
        """Check the shapes of a run of so many requests; the token counts improve estimates.

        Shapes that the API has accepted before are checked again only for a large run, because a
        model may have been retired since.

        Raises `PreflightError`. Blocks. An API that is unreachable or too slow does not reject the
        run.
        """
        ledger = self._engine.ledger
        shapes = self._samples.keys()
        known = ledger.query(lambda tx: budgets.counted_shapes(tx, self._workspace_id, shapes))
        large = self._always or requests >= FROM_REQUESTS
        samples = [
            (shape, sample)
            for shape, sample in self._samples.items()
            if large or shape not in known
        ]
        if not samples:
            return
        if self._left_out:
            _log.warning(
                "checking %d shapes of requests before sending; %d requests of other shapes are "
                "not checked",
                MOST_SHAPES,
                self._left_out,
                extra={"for_people": True},
            )
        bodies = [counted_params(sample.encoded.params) for _, sample in samples]
        asking = self._ask([sample for _, sample in samples], bodies)
        answers = self._engine.do(asking).result()
        counted: list[TokenCount] = []
        for (shape, sample), body, answer in zip(samples, bodies, answers, strict=True):
            if isinstance(answer, int):
                counted.append(TokenCount(asked_of(body)[0], len(body), answer, shape))
            elif isinstance(answer, ApiError) and self._refuses(answer.fault):
                raise _refusal(sample, answer.fault)
        for answer in answers:
            if isinstance(answer, Exception):
                _log.log(
                    # Nobody expects the check of a small run, and its failure would be reported
                    # before every such run.
                    logging.WARNING if large else logging.DEBUG,
                    "the check before sending was not finished: %s; the run continues",
                    answer,
                    extra={"for_people": True},
                )
                break
        if counted:
            now = ledger.now()
            # Counts that are stored twice change no estimate.
            ledger.apply(lambda tx: budgets.add_token_counts(tx, self._workspace_id, counted, now))

    async def _ask(
        self, samples: list[_Sample], bodies: list[bytes]
    ) -> list[int | Exception | None]:
        """Return the API's answer to each request; None for those that were not sent."""
        free = asyncio.Semaphore(AT_ONCE)
        over = False

        async def one(sample: _Sample, body: bytes) -> int | Exception | None:
            nonlocal over
            async with free:
                if over:
                    return None
                try:
                    async with asyncio.timeout(PATIENCE):
                        return await self._client.count_tokens(body, sample.encoded.headers)
                except TimeoutError:
                    over = True
                    return Unreachable(f"no answer for {PATIENCE:g} seconds")
                except (ApiError, Unreachable) as error:
                    # A rejection ends the run; any other error would repeat for the rest.
                    over = True
                    return error

        return await asyncio.gather(*map(one, samples, bodies))

    def _refuses(self, fault: ApiFault) -> bool:
        """Return whether a batch would get the same error for this request and all like it."""
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
        f"{who}the API rejects it: {fault.describe()}. Every request of this shape would fail "
        "hours later, so nothing was stored or sent. Correct the actor or the request, or set "
        "`preflight: false` (--no-preflight) to send it anyway",
        key=sample.key,
        error_type=fault.error_type,
    )
