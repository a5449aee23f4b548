"""`open_run`: a run by its id, with a provider of its own."""

from __future__ import annotations

import os
from typing import Any

from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.providers.run import Run


def open_run(run_id: str, *, ledger: str | os.PathLike[str] | None = None, **settings: Any) -> Run:
    """Return a run by its id, in any process, at any time; needs no YAML.

    ``settings`` are those of `ClaudeBatchProvider`; closing the run closes that provider. Raises
    `RunNotFoundError`.
    """
    provider = ClaudeBatchProvider(ledger=ledger, **settings)
    try:
        run = provider.open_run(run_id)
    except BaseException:
        provider.close()
        raise
    run.owns_provider = True
    return run
