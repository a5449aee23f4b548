"""Mutated lines through collection: streamed, stored in a real ledger, judged and read back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import select

from claude_batch.actor.request import ActorRequest
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.settings import LedgerSettings
from claude_batch.core.states import RequestState
from claude_batch.ledger import batch_contents, cancellations, collected_batches, submissions
from claude_batch.ledger.enqueue import NewRun
from claude_batch.ledger.queries import answers_by_position
from claude_batch.ledger.schema import requests
from claude_batch.ledger.store import Leader, Ledger
from claude_batch.lifecycle.driver import Driver
from claude_batch.lifecycle.driver_context import DriverContext
from claude_batch.lifecycle.packer import pack_due
from claude_batch.providers.run_writer import RunWriter
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders, custom_id
from fuzzing import bodies
from fuzzing.mutations import mutated_body
from fuzzing.network import Network
from fuzzing.readers import read_answer

__all__ = ["Collected"]

LINES = 200
"""Requests of a batch, and lines of its results."""

_WAITING = (RequestState.PACKED, RequestState.QUEUED, RequestState.CONTINUING)


class Collected:
    """A ledger, into which the results of one batch after the other are collected."""

    def __init__(self, folder: Path, network: Network) -> None:
        self._network = network
        self._ledger = Ledger(str(folder / "ledger.db"))
        settings = LedgerSettings(missing_after=0.0)
        self._driver = Driver(DriverContext(self._ledger, network.client, settings), lambda: None)
        self._number = 0

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    async def play(self, rng: Random) -> bytes:
        """Collect a batch whose lines are mutated; returns its results."""
        run_id = self._store()
        leader, row = self._ended_batch()
        with self._ledger.read() as tx:
            members = tx.scalars(select(requests.c.id).where(requests.c.batch_id == row.id)).all()
        lines = [
            mutated_body(
                {
                    "custom_id": custom_id(request, self._ledger.incarnation, 1),
                    "result": rng.choice(bodies.LINES),
                },
                rng,
            )
            for request in members
        ]
        rng.shuffle(lines)
        body = b"\n".join(lines)
        self._network.answer = (
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        await self._driver._collection.collect(leader, row)
        for answer in answers_by_position(self._ledger, run_id):
            if answer.state not in _WAITING:
                read_answer(answer)
        # What the next batch does not need: the rows of this one would be looked through each time.
        with self._ledger.write(leader) as tx:
            cancellations.cancel_run(tx, run_id, now=time.time())
        return body

    def _store(self) -> str:
        writer = RunWriter(
            self._ledger,
            lambda request: EncodedRequest(str(request.prompt).encode(), LaneHeaders()),
            NewRun(
                kind="run",
                actor="fuzz",
                workspace_id=self._driver.workspace_id,
                mode=BatchProcessingMode(max_attempts=1, linger=0.0),
                created=self._ledger.now(),
            ),
            identities=[b""],
        )
        for _ in range(LINES):
            self._number += 1
            words = f'{{"model":"claude-haiku-4-5","max_tokens":2,"n":{self._number}}}'
            writer.add(ActorRequest(words))
        writer.finish()
        return writer.run_id

    def _ended_batch(self) -> tuple[Leader, Any]:
        """A batch that holds the run's requests, as if the API had taken and ended it."""
        workspace, now = self._driver.workspace_id, time.time()
        with self._ledger.write() as tx:
            leader = Leader(workspace, submissions.begin_epoch(tx, workspace))
        [batch_id], _ = pack_due(self._ledger, leader, now)
        with self._ledger.write(leader) as tx:
            posts = submissions.intend(tx, batch_id, snapshot=[], server_time=now, now=now)
            submissions.mark_armed(tx, batch_id, posts, now)
            assert submissions.mark_submitted(
                tx, batch_id, f"msgbatch_{batch_id}_{os.getpid()}", now=now, next_check=now
            )
            collected_batches.mark_ended(tx, [(batch_id, f'{{"succeeded":{LINES}}}', now)])
            row = batch_contents.batch(tx, batch_id)
        assert row.request_count == LINES, row
        return leader, row
