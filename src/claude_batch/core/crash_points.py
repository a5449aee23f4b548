"""The points between two effects, by name: where a process may die, tests make it die.

Each stands between something that is on disk (or at the API) and what has to follow it. Whatever
dies there, or anywhere between, the next process goes on from the ledger. Nothing happens at a
point unless a test has put a function in `on_reach`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

__all__ = ["CrashPoint", "on_reach", "reach"]


class CrashPoint(StrEnum):
    """Where a process may die."""

    # Storing a run
    DURING_STORE_CHUNK = "during_store_chunk"  # some requests of a run are stored, others not
    BEFORE_STORED = "before_stored"  # all are stored, the run is not yet said to be whole
    AFTER_STORED = "after_stored"
    AFTER_CALLS_STORED = "after_calls_stored"  # single calls are stored, their callers know nothing
    # Packing and submission
    BEFORE_PACK = "before_pack"
    AFTER_PACK = "after_pack"
    AFTER_RELEASE = "after_release"  # what waited for another request goes on
    BEFORE_INTENT = "before_intent"  # the list was read, the intent is not on disk
    AFTER_INTENT = "after_intent"  # nothing has left yet
    DURING_UPLOAD = "during_upload"  # some of the body has left
    BEFORE_ARMED = "before_armed"  # all but the tail has left
    AFTER_ARMED = "after_armed"  # ``armed`` is on disk, the tail has not left
    AFTER_POST_BEFORE_RECORD = "after_post_before_record"  # the answer is here and nowhere else
    AFTER_RECORD = "after_record"
    # Reconciliation
    BEFORE_ADOPT = "before_adopt"  # a batch was proved to be ours, which is not on disk
    AFTER_ADOPT = "after_adopt"
    BEFORE_DISPROVED = "before_disproved"  # no candidate is left, which is not on disk
    # Polling, cancelling and collection
    AFTER_CANCEL_BEFORE_RECORD = "after_cancel_before_record"
    AFTER_CHECK_BEFORE_RECORD = "after_check_before_record"
    DURING_COLLECT_CHUNK = "during_collect_chunk"  # some result lines are stored, others not
    BETWEEN_RESULTS_AND_STATE = "between_results_and_state"  # all are stored, none is judged
    AFTER_COLLECTED = "after_collected"
    # Live calls and deadlines
    AFTER_LIVE_CLAIM = "after_live_claim"  # calls are on disk as under way, none has left
    AFTER_LIVE_ANSWER = "after_live_answer"  # an answer is here and nowhere else
    AFTER_LIVE_RECORD = "after_live_record"
    AFTER_MARGIN = "after_margin"  # a run is past its margin, nothing was cancelled at the API
    # Conversations
    AFTER_TOOL_STARTED = "after_tool_started"  # it is noted that a tool starts, it has not
    AFTER_TOOL_RUN = "after_tool_run"  # it has run, its result is nowhere else
    AFTER_TOOL_RECORDED = "after_tool_recorded"
    BEFORE_NEXT_TURN = "before_next_turn"  # all is there that it needs, it is not queued
    AFTER_NEXT_TURN = "after_next_turn"
    # Delivery
    BEFORE_DELIVERY = "before_delivery"  # all is final, no line is written
    DURING_DELIVERY = "during_delivery"  # some lines are in the temporary file
    AFTER_RENAME_BEFORE_DELIVERED = "after_rename_before_delivered"
    # The ledger itself
    DURING_MIGRATION = "during_migration"  # the backup is made, the tables are not changed
    AFTER_FILE_UPLOADED = "after_file_uploaded"  # the API has it, which is not on disk
    DURING_PRUNING = "during_pruning"  # some of a finished run is removed, some is not
    BEFORE_FILES_DELETED = "before_files_deleted"  # no run names them any more
    BEFORE_HIGH_WATER = "before_high_water"  # the ledger is ahead of its high-water mark


on_reach: Callable[[CrashPoint], None] | None = None
"""Called at every point; None, as always but in tests, costs one comparison."""


def reach(point: CrashPoint) -> None:
    """Say that the process stands at a point."""
    if on_reach is not None:
        on_reach(point)
