"""Retrying what failed: which requests of a run are meant, and what cannot be retried."""

from __future__ import annotations

import time
from collections.abc import Iterable

from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.states import RequestState
from claude_batch.ledger import reading, retrying
from claude_batch.ledger.retrying import FAILED, Retried
from claude_batch.ledger.store import Ledger

__all__ = ["parse_only", "retry_run"]

_TYPE = "type="


def parse_only(
    only: Iterable[str] | None,
) -> tuple[frozenset[RequestState] | None, frozenset[str]]:
    """Outcomes and error types of ``expired``, ``errored``, ``canceled`` and ``type=…``.

    None, or nothing, means every failure. Raises `ActorConfigurationError`.
    """
    words = [] if only is None else [only] if isinstance(only, str) else list(only)
    states: set[RequestState] = set()
    types: set[str] = set()
    for word in words:
        if word.startswith(_TYPE) and word != _TYPE:
            types.add(word.removeprefix(_TYPE))
        elif word in [str(state) for state in FAILED]:
            states.add(RequestState(word))
        else:
            raise ActorConfigurationError(
                f"only: {word!r} is none of expired, errored, canceled, and type=… with an error's "
                "type, such as type=overloaded_error"
            )
    return (frozenset(states) if words else None), frozenset(types)


def retry_run(ledger: Ledger, run_id: str, only: Iterable[str] | None) -> Retried:
    """Queue the failed requests of a run again, in one transaction.

    Raises `ActorConfigurationError` for what ``only`` cannot mean, and `InvalidRequestError` for
    single calls and for a run whose cancellation is still under way.
    """
    states, types = parse_only(only)
    try:
        with ledger.write() as tx:
            if reading.run_row(tx, run_id).kind != "run":
                raise InvalidRequestError(
                    f"{run_id} holds single calls: whoever wants their answers makes the call "
                    "again. Nothing was changed"
                )
            return retrying.retry_failed(
                tx, run_id, states=states, error_types=types, now=time.time()
            )
    except retrying.StillCancelling:
        raise InvalidRequestError(
            f"{run_id} is being cancelled, and its batches have not ended; "
            f"`claude-batch resume {run_id}` waits for them. Nothing was changed"
        ) from None
