"""Inspect a ledger, and recover one that was restored from a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from claude_batch.core.errors import LedgerError
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger import queries
from claude_batch.ledger.backends.backend import Worker
from claude_batch.ledger.high_water import HighWater, is_known, posts_of
from claude_batch.ledger.schema import SCHEMA_VERSION
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle import api_sessions
from claude_batch.lifecycle.recovery import Recovered, is_whole, recover
from claude_batch.providers.status import find_run_id
from claude_batch.wire.batches_client import BatchesClient

if TYPE_CHECKING:
    from claude_batch.providers.batch import ClaudeBatchProvider

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """Facts that `claude-batch ledger show` prints. Sizes are bytes."""

    path: str
    schema_version: int
    incarnation: str
    size: int
    log_size: int
    """Size of the ``-wal`` file next to the ledger."""
    requests: dict[str, int]
    batches: dict[str, int]
    """Both by state."""
    posts: int
    """What the high-water mark counts, as far as the ledger records it.

    POSTs, claims of live calls, and starts of tools that are not repeatable.
    """
    high_water_mark: str
    """Location of the high-water mark."""
    high_water: str
    """``missing``, ``unreadable``, ``reached``, ``below`` or ``above``.

    With ``below``, the ledger is ahead of the mark. With ``above``, the ledger is behind the mark
    and must be recovered.
    """
    waiting_to_be_recovered: list[str]
    """Base URLs of workspaces that send nothing until the ledger is recovered."""
    workers: list[Worker]
    """The living processes of a ledger on PostgreSQL; empty for a file."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class MarkFacts(NamedTuple):
    """A ledger's relation to its high-water mark; the fields are those of `LedgerFacts`."""

    posts: int
    path: str
    state: str


def mark_of(ledger: Ledger) -> MarkFacts:
    """Return a ledger's relation to its high-water mark. Raises `LedgerError`."""
    high_water = HighWater(ledger)
    try:
        mark, state = high_water.read(), "missing"
    except LedgerError:
        mark, state = None, "unreadable"
    with ledger.read() as tx:
        posts = posts_of(tx)
    if mark is not None:
        state = "reached" if mark.posts == posts else "below"
        if not is_known(mark, ledger.incarnations, posts):
            state = "above"
    return MarkFacts(posts, str(high_water.path), state)


def facts_of(location: str) -> LedgerFacts:
    """Return a ledger's contents and its relation to its high-water mark; needs no key.

    Raises `LedgerError`.
    """
    with closing(Ledger(location)) as ledger:
        mark = mark_of(ledger)
        with ledger.read() as tx:
            requests, batches = queries.counts_by_state(tx)
            behind = queries.behind(tx)
        size = ledger.size()
        return LedgerFacts(
            path=ledger.backend.address,
            schema_version=SCHEMA_VERSION,
            incarnation=ledger.incarnation,
            size=size.data,
            log_size=size.log,
            requests=requests,
            batches=batches,
            posts=mark.posts,
            high_water_mark=mark.path,
            high_water=mark.state,
            waiting_to_be_recovered=behind,
            workers=ledger.workers(),
        )


def recover_ledger(
    provider: ClaudeBatchProvider, *, force: bool = False, even_if_whole: bool = False
) -> Recovered:
    """Recover the provider's ledger in the workspace of its key; see `lifecycle.recovery`.

    No process may drive the ledger meanwhile, the provider included. A ledger that its mark shows
    to be whole is left alone unless ``even_if_whole``, because a recovery keeps it from sending.
    """
    if not even_if_whole:
        with closing(Ledger(provider.ledger)) as ledger:
            if is_whole(ledger):
                return Recovered(was_whole=True)
    return _with_client(
        provider,
        lambda ledger, client: recover(
            ledger, client, provider.settings, force=force, even_if_whole=even_if_whole
        ),
    )


def confirm_key(provider: ClaudeBatchProvider, run_id: str) -> tuple[str, bool]:
    """Allow the provider's key to continue a run of another key; see `lifecycle.key_confirmation`.

    Returns the run's full id, and False if the key may already continue it. Raises
    `RunNotFoundError`.
    """

    async def work(ledger: Ledger, client: BatchesClient) -> tuple[str, bool]:
        found = find_run_id(ledger, run_id)
        return found, await api_sessions.confirm_key(ledger, client, found)

    return _with_client(provider, work)


def _with_client(
    provider: ClaudeBatchProvider, work: Callable[[Ledger, BatchesClient], Awaitable[_T]]
) -> _T:
    """Work on the provider's ledger with its key, independent of what the provider has open."""

    async def whole(ledger: Ledger) -> _T:
        given = provider.credentials()
        client = await api_sessions.open_client(
            given.get("base_url"),
            given.get("api_key"),
            write_timeout=LedgerSettings().arm_window,
        )
        try:
            return await work(ledger, client)
        finally:
            await client.close()

    with closing(Ledger(provider.ledger)) as ledger:
        return asyncio.run(whole(ledger))
