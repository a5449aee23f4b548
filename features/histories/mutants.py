"""Broken rules: each is a driver that breaks a promise, which random histories must find out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from claude_batch.core.states import RequestState
from claude_batch.ledger import reconciling, sending
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle import collection, packing, reconciliation
from claude_batch.lifecycle.reconciliation import Decision
from claude_batch.wire.client import CreateAnswer
from claude_batch.wire.encoding import LaneHeaders
from histories.api import SimulatedClient

__all__ = ["MUTANTS"]


def _hasty() -> AbstractContextManager[object]:
    return patch.object(reconciliation, "decide", lambda *_, **__: Decision.DISPROVED)


def _unarmed() -> AbstractContextManager[object]:
    return patch.object(sending, "mark_armed", lambda *_: None)


def _spendthrift() -> AbstractContextManager[object]:
    return patch.object(collection, "missing_state", lambda *_: RequestState.QUEUED)


def _unrivalled() -> AbstractContextManager[object]:
    return patch.object(reconciling, "rivals", lambda *_: 0)


def _deaf() -> AbstractContextManager[object]:
    write = Ledger.write
    return patch.object(Ledger, "write", lambda ledger, seat=None: write(ledger))


def _generous() -> AbstractContextManager[object]:
    return patch.object(packing.Fitting, "of", lambda *_: None)


@contextmanager
def _stubborn() -> Generator[None]:
    create = SimulatedClient.create

    async def again(chunks: list[bytes]) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def twice(
        client: SimulatedClient, body: AsyncIterator[bytes], length: int, headers: LaneHeaders
    ) -> CreateAnswer:
        chunks: list[bytes] = []

        async def noted() -> AsyncIterator[bytes]:
            async for chunk in body:
                chunks.append(chunk)
                yield chunk

        answer = await create(client, noted(), length, headers)
        if answer.batch is not None or answer.fault is not None or len(b"".join(chunks)) < length:
            return answer
        return await create(client, again(chunks), length, headers)

    with patch.object(SimulatedClient, "create", twice):
        yield


MUTANTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "takes an unknown sending for not accepted at once": _hasty,
    "sends a create again that got no answer": _stubborn,
    "does not note that the tail may have left": _unarmed,
    "sends a request again whose line is missing": _spendthrift,
    "adopts a batch that may be another sending": _unrivalled,
    "writes although it was deposed": _deaf,
    "packs what no budget has room for": _generous,
}
