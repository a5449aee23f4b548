"""Random queues, packed with and without a look at all of each."""

from __future__ import annotations

import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

from behave import then
from behave.runner import Context
from sqlalchemy import select, update

import claude_batch as cb
from claude_batch.core.states import BatchState
from claude_batch.ledger import batch_contents, budgets, enqueue, workspaces
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.schema import batches, requests, runs
from claude_batch.ledger.store import Leader, Ledger, Transaction
from claude_batch.lifecycle.packer import pack_due, reserve_due
from claude_batch.money.prices import prices_of

PASSES = 25

SEEDS = (1, 3, 8, 39, 41, 43, 44, 48, 50, 55)
"""Queues that show what each condition of reading in part is for."""


@then("random queues are packed alike, whether they are read whole or in part")
def _(_context: Context) -> None:
    folder = Path(os.environ["CLAUDE_BATCH_LEDGER"]).parent
    read_in_part = 0
    for seed in SEEDS:
        whole, _ = _packed(seed, folder / "whole.db", look=1_000_000)
        packed, parts = _packed(seed, folder / "part.db", look=seed % 4 + 1)
        assert packed == whole, (
            seed,
            *next(both for both in zip(packed, whole, strict=True) if both[0] != both[1]),
        )
        read_in_part += parts
    assert read_in_part > 5 * len(SEEDS), read_in_part


def _packed(seed: int, path: Path, look: int) -> tuple[list[Any], int]:
    """What each pass has packed or sent live; and how many queues were read in part."""
    chance = random.Random(seed)
    seen: list[Any] = []
    parts = 0
    by_queue = batch_contents._by_queue

    def counted(*args: Any, is_whole: bool = True) -> Any:
        nonlocal parts
        parts += not is_whole
        return by_queue(*args, is_whole=is_whole)

    path.unlink(missing_ok=True)
    ledger = Ledger(str(path))
    with (
        mock.patch.object(batch_contents, "LOOK", look),
        mock.patch.object(batch_contents, "_by_queue", counted),
    ):
        queue = _Queue(ledger, chance)
        for now in range(1, PASSES + 1):
            if now == 1 or chance.random() < 0.35:
                queue.add_run(float(now))
            pause = now + 3.0 if chance.random() < 0.1 else None
            costs = reserve_due(ledger, queue.leader, now, prices_of())
            new, later = pack_due(ledger, queue.leader, now, not_before=pause, costs=costs)
            with ledger.write() as tx:
                live = tx.scalars(select(requests.c.seq).where(requests.c.live == 1)).all()
                seen.append((later, live, [_of_batch(tx, batch) for batch in new]))
                if chance.random() < 0.1:  # frees runs from `parallel_batches`
                    tx.execute(update(batches).values(state=BatchState.COLLECTED))
    ledger.close()
    return seen, parts


def _of_batch(tx: Transaction, batch: int) -> list[Any]:
    polls = select(batches.c.poll_interval, batches.c.max_poll_interval, batches.c.params_bytes)
    mine = requests.c.batch_id == batch
    return [
        *tx.execute(polls.where(batches.c.id == batch)).one(),
        *tx.scalars(select(requests.c.seq).where(mine).order_by(requests.c.seq)),
    ]


class _Queue:
    """The runs of a ledger, of some kinds only, as most ledgers have."""

    def __init__(self, ledger: Ledger, chance: random.Random) -> None:
        self._ledger, self._chance = ledger, chance
        self._runs = self._requests = 0
        kinds = ("budget", "deadline", "prefix", "limit")
        self._has = {kind for kind in kinds if chance.random() < 0.3}
        with ledger.write() as tx:
            budgets.price_by(tx, prices_of().digest)
            workspace = workspaces.ensure_workspace(tx, "http://nowhere", "a key")
            betas = ("", "a-beta")[: chance.randint(1, 2)]
            self._lanes = [
                enqueue.ensure_lane(tx, workspace, "2023-06-01", beta, "") for beta in betas
            ]
        self.leader = Leader(workspace, 0)

    def _is(self, kind: str) -> bool:
        return kind in self._has and self._chance.random() < 0.5

    def add_run(self, now: float) -> None:
        chance = self._chance
        mode: dict[str, Any] = {"max_requests": chance.randint(1, 8)}
        mode["poll_interval"] = chance.randint(1, 9)
        if chance.random() < 0.3:
            mode |= {"mode": "auto", "auto_threshold": chance.randint(1, 12)}
        if self._is("limit"):
            mode["parallel_batches"] = chance.randint(1, 2)
        if self._is("budget"):
            mode["budget_usd"] = Decimal(chance.randint(1, 400)).scaleb(-8)
        asked = NewRun(
            kind=chance.choice(("run", "run", "calls")),
            actor="a/b",
            workspace_id=self.leader.workspace_id,
            mode=cb.BatchProcessingMode(**mode),
            created=now,
        )
        self._runs += 1
        name = f"run-{self._runs:03}"
        prefixed = self._is("prefix")
        prefixes = (1, 2, 3, None) if prefixed else (None,)
        more: dict[str, Any] = {"deadline_margin": 10.0}
        if self._is("deadline"):
            more["deadline"] = now + 1e6
            more["deadline_closed"] = self._chance.choice((now, None))
        with (
            self._ledger.write() as tx,
            # Runs are read in the order of their ids in both ledgers.
            mock.patch.object(enqueue, "new_run_id", lambda: name),
        ):
            enqueue.begin_run(tx, asked)
            tx.execute(update(runs).where(runs.c.id == name).values(more))
            new = [self._request(number, prefixes) for number in range(chance.choice((1, 5, 30)))]
            enqueue.add_requests(
                tx, name, new, created=now, due=now + chance.choice((0, 0, 5)), prefixed=prefixed
            )
            enqueue.finish_storing(tx, name, digest=name, stored=now, prefixed=prefixed)

    def _request(self, number: int, prefixes: tuple[int | None, ...]) -> NewRequest:
        self._requests += 1
        return NewRequest(
            f"{self._requests:032x}",
            number,
            None,
            self._chance.choice(self._lanes),
            b"{}" + b" " * self._chance.randint(0, 9),
            prefix=self._chance.choice(prefixes),
            reserve=self._chance.choice([*range(100, 1000, 100), -1]),
        )
