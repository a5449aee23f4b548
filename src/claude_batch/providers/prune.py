"""Remove finished runs that are no longer needed from the ledger, and their files from the API."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError, RunNotFoundError
from claude_batch.ledger import pruned_runs, queries, uploaded_files
from claude_batch.lifecycle.doors import Door
from claude_batch.lifecycle.engine import Engine
from claude_batch.wire.batches_client import ApiError, Unreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What `ClaudeBatchProvider.prune` has removed, or would remove."""

    runs: list[str]
    """Ids of the removed runs."""
    requests: int
    size: int
    """Bytes of prompts and answers.

    The ledger's file does not shrink, because later data fills the free space.
    """
    files: int
    """Number of uploaded documents that were deleted at the API."""
    kept: dict[str, str]
    """Runs that were old enough but stay, with the reason for each."""
    files_left: int = 0
    """Unused uploaded documents that could not be deleted; the next prune tries again."""
    reason: str = ""
    """Why they could not be deleted."""


def prune(
    engine: Engine,
    door: Callable[[], Door],
    *,
    older_than: float,
    run_ids: Sequence[str] = (),
    dry_run: bool = False,
) -> Pruned:
    """Remove runs that were delivered ``older_than`` seconds ago, or only the named ones.

    Raises `RunNotFoundError`, and `InvalidRequestError` for a named run that must be kept, before
    anything is removed.
    """
    ledger = engine.ledger
    with ledger.read() as tx:
        chosen = [_found(queries.find_run(tx, each), each) for each in run_ids]
        if not run_ids:
            chosen = pruned_runs.delivered_runs(tx, time.time() - older_than)
        kept = {each: why for each in chosen if (why := pruned_runs.why_kept(tx, each)) is not None}
    if run_ids and kept:
        run_id, why = next(iter(kept.items()))
        raise InvalidRequestError(f"{run_id} was kept: {why}. Nothing was removed")
    going = [each for each in chosen if each not in kept]
    if dry_run:
        return Pruned(runs=going, requests=0, size=0, files=0, kept=kept)
    gone: list[str] = []
    requests = size = 0
    for run_id in going:
        with ledger.write() as tx:
            why = pruned_runs.begin_pruning(tx, run_id, engine.process)
        if why is not None:  # submitted again meanwhile
            kept[run_id] = why
            continue
        more = True
        while more:
            reach(CrashPoint.DURING_PRUNING)
            with ledger.write() as tx:
                removed = pruned_runs.remove_some(tx, run_id)
            requests, size, more = requests + removed.requests, size + removed.size, removed.more
        gone.append(run_id)
    deleted, left, reason = _delete_files(engine, door)
    return Pruned(
        runs=gone,
        requests=requests,
        size=size,
        files=deleted,
        kept=kept,
        files_left=left,
        reason=reason,
    )


def _found(row: queries.Record | None, run_id: str) -> str:
    if row is None:
        raise RunNotFoundError(run_id)
    return row.id


def _delete_files(engine: Engine, door: Callable[[], Door]) -> tuple[int, int, str]:
    """Delete unused files; return how many were deleted, how many are left, and why."""
    ledger = engine.ledger
    with ledger.read() as tx:
        unused = uploaded_files.count_unused(tx)
    if not unused:
        return 0, 0, ""
    try:
        opened = door()
    except ActorConfigurationError as error:
        return 0, unused, str(error)
    with ledger.write() as tx:
        uploaded_files.dismiss_unused(tx, opened.workspace_id)
        leaving = uploaded_files.files_leaving(tx, opened.workspace_id)
    reach(CrashPoint.BEFORE_FILES_DELETED)
    for number, file_id in enumerate(leaving):
        try:
            engine.do(opened.client.delete_file(file_id)).result()
        except (ApiError, Unreachable) as error:
            return number, unused - number, str(error)
        with ledger.write() as tx:
            uploaded_files.file_left(tx, opened.workspace_id, file_id)
    elsewhere = unused - len(leaving)
    return (
        len(leaving),
        elsewhere,
        "they belong to the workspace of another key" if elsewhere else "",
    )
