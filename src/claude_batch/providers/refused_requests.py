"""Put requests that were rejected individually back into their places among the results."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

from claude_batch.actor.response import ActorResult
from claude_batch.core.errors import request_name


def _at(result: ActorResult, place: int) -> ActorResult:
    """Return a result at its input position; an error that names its position is adjusted too."""
    error = result.error
    if error is not None and result.key is None and place != result.position:
        run_name, name = (request_name(None, each) for each in (result.position, place))
        error = copy.copy(error)
        error.args = (str(error).replace(run_name, name, 1),)
    return replace(result, position=place, error=error)


class _Places:
    """Input positions of a run's results; the run itself counts without the rejected requests."""

    def __init__(self, refused: Sequence[ActorResult], *, ordered: bool) -> None:
        """Store the failed results ``refused``, which have their input positions, in order."""
        self._before = [result.position - index for index, result in enumerate(refused)]
        self._left = deque(refused)
        self._ordered = ordered

    def ready(self, result: ActorResult) -> Iterator[ActorResult]:
        """Yield the rejected requests before a result that has arrived, then the result."""
        place = result.position + bisect_right(self._before, result.position)
        while self._left and (not self._ordered or self._left[0].position < place):
            yield self._left.popleft()
        yield _at(result, place)

    def rest(self) -> Iterator[ActorResult]:
        """Yield the rejected requests that follow all others."""
        while self._left:
            yield self._left.popleft()


async def merge(
    results: AsyncIterator[ActorResult] | None, refused: Sequence[ActorResult], *, ordered: bool
) -> AsyncIterator[ActorResult]:
    """Yield the results of a run, if any, and of the rejected requests, in input positions."""
    places = _Places(refused, ordered=ordered)
    if results is not None:
        async for result in results:
            if not refused:
                yield result
                continue
            for ready in places.ready(result):
                yield ready
    for left in places.rest():
        yield left


def merge_sync(
    results: Iterator[ActorResult], refused: Sequence[ActorResult], *, ordered: bool
) -> Iterator[ActorResult]:
    """`merge` for a plain iterator."""
    places = _Places(refused, ordered=ordered)
    for result in results:
        yield from places.ready(result)
    yield from places.rest()
