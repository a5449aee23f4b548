"""Retry failed requests: select them, and reject what cannot be retried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.states import RequestState
from claude_batch.ledger import queries, retries
from claude_batch.ledger.retries import ON_ORDER, Retried
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.refetch import Refetched

_TYPE = "type="
_MISSING = "missing"


class Only(NamedTuple):
    """Selection of a run's requests to retry."""

    states: frozenset[RequestState] | None
    """Failures with these outcomes; None for all failures."""
    error_types: frozenset[str]
    """Failures with these error types as well."""
    missing: bool
    """Whether to fetch missing results again, and to resend their requests if need be."""


def parse_only(only: Iterable[str] | None) -> Only:
    """Parse the words of ``only`` into a selection.

    They are ``expired``, ``errored``, ``canceled``, ``malformed``, ``missing`` and ``type=…``. None
    or an empty iterable means every failure, but nothing that may have been paid for. Raises
    `ActorConfigurationError`.
    """
    words = [] if only is None else [only] if isinstance(only, str) else list(only)
    states: set[RequestState] = set()
    types: set[str] = set()
    for word in words:
        if word == _MISSING:
            continue
        if word.startswith(_TYPE) and word != _TYPE:
            types.add(word.removeprefix(_TYPE))
        elif word in [str(state) for state in ON_ORDER]:
            states.add(RequestState(word))
        else:
            raise ActorConfigurationError(
                f"only: {word!r} is unknown; use expired, errored, canceled, malformed, missing, "
                "or type=… with a type of error, such as type=overloaded_error"
            )
    return Only(frozenset(states) if words else None, frozenset(types), _MISSING in words)


def retry_run(ledger: Ledger, run_id: str, only: Only, refetch: Callable[[], Refetched]) -> Retried:
    """Queue the failed requests of a run again, in one transaction.

    If missing results are selected, ``refetch`` fetches them first. Requests of completely read
    batches whose results are still missing are queued in the same transaction. Raises
    `InvalidRequestError` for single calls and for a run whose cancellation is still in progress,
    and what ``refetch`` raises.
    """
    with ledger.read() as tx:
        if queries.run_row(tx, run_id).kind != "run":
            raise InvalidRequestError(
                f"{run_id} contains single calls; to retry a call, make it again. Nothing was "
                "changed"
            )
    fetched = refetch() if only.missing else Refetched()
    now = time.time()
    try:
        with ledger.write() as tx:
            missing = retries.send_missing(tx, run_id, fetched.batches, now=now)
            retried = retries.retry_failed(
                tx, run_id, states=only.states, error_types=only.error_types, now=now
            )
    except retries.StillCancelling:
        raise InvalidRequestError(
            f"{run_id} is being cancelled, and its batches have not ended. Nothing was sent "
            f"again. Wait for them with: claude-batch resume {run_id}"
        ) from None
    return retried._replace(
        queued=retried.queued + missing,
        missing=missing,
        found=fetched.found,
        refused=fetched.refused,
    )
