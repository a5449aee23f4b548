"""Which process fetches the results of which batch, on a ledger of several machines.

A row is an offer of the driver, or the claim of another process that stores the results for it. The
driver alone judges them. A lost row loses nothing: the driver then fetches the batch itself, and a
result that is stored twice is stored once.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from claude_batch.ledger.backends.backend import FetchClaim, FetchedBy, Fetches
from claude_batch.ledger.backends.leases import Leases
from claude_batch.ledger.backends.postgres_sql import fetches


class SharedFetches(Fetches):
    """The rows of one ledger."""

    def __init__(self, leases: Leases) -> None:
        """Use the heartbeats by which processes know of each other."""
        self._leases = leases
        self._connections = leases.connections
        self._held: set[str] = set()
        """The claims that this process knows of. The server may have others in its name, from a
        COMMIT whose answer was lost; their batches have to be claimed again.
        """

    def offer(self, workspace_id: int, batch_ids: Sequence[int]) -> None:
        rows = [
            {
                "batch_id": batch_id,
                "workspace_id": workspace_id,
                "process": "",
                "holder": "",
                "done": False,
            }
            for batch_id in batch_ids
        ]
        # No notice is sent, because the others look for offers twice a second anyway.
        with self._connections.translating("written"), self._connections.leasing() as tx:
            tx.execute(insert(fetches).on_conflict_do_nothing(), rows)

    def offered(self) -> list[int]:
        query = select(fetches.c.batch_id).where(~fetches.c.done).order_by(fetches.c.batch_id)
        # If an earlier version made the ledger, the first process that may drive makes this table.
        exists = select(func.to_regclass(fetches.name).is_not(None))
        with (
            self._connections.translating("read"),
            self._connections.engine.connect() as connection,
            connection.begin(),
        ):
            return list(connection.scalars(query)) if connection.scalar(exists) else []

    def withdraw(self, batch_id: int) -> FetchedBy:
        with self._connections.translating("written"):
            # Most batches were never offered. A read delays no write.
            with self._connections.engine.connect() as connection, connection.begin():
                if self._fetched_by(connection, batch_id) is None:
                    return "driver"
            with self._connections.leasing() as tx:
                by = self._fetched_by(tx, batch_id)
                if by != "other":
                    tx.execute(delete(fetches).where(fetches.c.batch_id == batch_id))
        return by or "driver"

    def _fetched_by(self, tx: Connection, batch_id: int) -> FetchedBy | None:
        row = tx.execute(select(fetches).where(fetches.c.batch_id == batch_id)).first()
        if row is None:
            return None
        if row.done:
            return "done"
        if row.process == self._leases.process:
            return "other" if row.holder in self._held else "driver"
        return "other" if row.process and self._leases.lives(tx, row.process) else "driver"

    def claim(self, workspace_id: int) -> FetchClaim | None:
        lost = (
            (fetches.c.process == self._leases.process)
            & fetches.c.holder.not_in(self._held)
            & ~fetches.c.done
        )
        offered = (
            select(fetches.c.batch_id)
            .where(fetches.c.workspace_id == workspace_id, (fetches.c.process == "") | lost)
            .order_by(fetches.c.batch_id)
            .limit(1)
        )
        with self._connections.translating("written"):
            with self._connections.engine.connect() as connection, connection.begin():
                if connection.scalar(offered) is None:
                    return None
            process = self._leases.live()
            with self._connections.leasing() as tx:
                batch_id = tx.scalar(offered)
                if batch_id is None:
                    return None
                claim = FetchClaim(batch_id, secrets.token_hex(8))
                tx.execute(
                    update(fetches)
                    .where(fetches.c.batch_id == batch_id)
                    .values(process=process, holder=claim.holder)
                )
        self._held.add(claim.holder)
        return claim

    def holds(self, tx: Connection, claim: FetchClaim) -> bool:
        # Every write holds the ledger's lock, so the claim cannot pass to another process before
        # this transaction ends.
        return tx.scalar(select(fetches.c.done).where(_is(claim))) is False

    def finish(self, tx: Connection, claim: FetchClaim) -> None:
        tx.execute(update(fetches).where(_is(claim)).values(done=True))
        self._held.discard(claim.holder)

    def leave(self, claim: FetchClaim, *, offer: bool) -> None:
        self._held.discard(claim.holder)
        # What another process has taken over, or what is done, stays as it is.
        unfinished = _is(claim) & ~fetches.c.done
        self._leases.write_soon(
            update(fetches).where(unfinished).values(process="", holder="")
            if offer
            else delete(fetches).where(unfinished)
        )


def _is(claim: FetchClaim) -> ColumnElement[bool]:
    return (fetches.c.batch_id == claim.batch_id) & (fetches.c.holder == claim.holder)
