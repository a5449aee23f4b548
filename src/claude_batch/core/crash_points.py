"""Named points between two effects, at which tests make a process die.

Each point lies between a state on disk (or at the API) and the step that must follow it. If a
process dies there, or anywhere in between, the next process continues from the ledger. A point does
nothing unless a test has set a function in `on_reach`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class CrashPoint(StrEnum):
    """Points at which a process may die."""

    # Storing a run
    DURING_STORE_CHUNK = "during_store_chunk"  # some requests of a run are stored, others not
    BEFORE_STORED = "before_stored"  # all are stored, the run is not marked as complete yet
    AFTER_STORED = "after_stored"
    AFTER_CALLS_STORED = "after_calls_stored"  # single calls are stored, callers not notified
    # Packing and submission
    BEFORE_PACK = "before_pack"
    AFTER_PACK = "after_pack"
    AFTER_RELEASE = "after_release"  # held requests were queued
    BEFORE_INTENT = "before_intent"  # the list was read, the intent is not on disk
    AFTER_INTENT = "after_intent"  # nothing was sent yet
    DURING_UPLOAD = "during_upload"  # some of the body was sent
    BEFORE_ARMED = "before_armed"  # all but the tail was sent
    AFTER_ARMED = "after_armed"  # ``armed`` is on disk, the tail was not sent
    AFTER_POST_BEFORE_RECORD = "after_post_before_record"  # the response is only in memory
    AFTER_RECORD = "after_record"
    BETWEEN_REFUSED = "between_refused"  # some requests of a refused batch failed, others not yet
    # Reconciliation
    BEFORE_ADOPT = "before_adopt"  # a batch is proved to be ours; the proof is not on disk
    AFTER_ADOPT = "after_adopt"
    BEFORE_DISPROVED = "before_disproved"  # no candidate is left; this is not on disk
    # Polling, cancelling and collection
    AFTER_CANCEL_BEFORE_RECORD = "after_cancel_before_record"
    AFTER_CHECK_BEFORE_RECORD = "after_check_before_record"
    DURING_COLLECT_CHUNK = "during_collect_chunk"  # some result lines are stored, others not
    BETWEEN_RESULTS_AND_STATE = "between_results_and_state"  # all are stored, none is judged
    BETWEEN_SLICES = "between_slices"  # some successes of a large batch are final, others not
    AFTER_COLLECTED = "after_collected"
    # Live calls and deadlines
    AFTER_LIVE_CLAIM = "after_live_claim"  # calls are on disk as under way, none was sent
    AFTER_LIVE_ANSWER = "after_live_answer"  # an answer is only in memory
    AFTER_LIVE_RECORD = "after_live_record"
    AFTER_MARGIN = "after_margin"  # a run is past its margin, nothing was cancelled at the API
    # Conversations
    AFTER_TOOL_STARTED = "after_tool_started"  # the tool's start is recorded, it has not run
    AFTER_TOOL_RUN = "after_tool_run"  # the tool has run, its result is only in memory
    AFTER_TOOL_RECORDED = "after_tool_recorded"
    BEFORE_NEXT_TURN = "before_next_turn"  # the next turn is ready, it is not queued
    AFTER_NEXT_TURN = "after_next_turn"
    # Delivery
    BEFORE_DELIVERY = "before_delivery"  # all requests are final, no line is written
    DURING_DELIVERY = "during_delivery"  # some lines are in the temporary file
    AFTER_RENAME_BEFORE_DELIVERED = "after_rename_before_delivered"
    # The ledger itself
    DURING_MIGRATION = "during_migration"  # the backup exists, the tables are not changed
    AFTER_FILE_UPLOADED = "after_file_uploaded"  # the API has the file, which is not on disk
    DURING_PRUNING = "during_pruning"  # some of a finished run is removed, some is not
    BEFORE_FILES_DELETED = "before_files_deleted"  # no run names the files any more
    DURING_ARRIVAL = "during_arrival"  # a table was copied to a server, nothing is committed
    AFTER_ARRIVING = "after_arriving"  # all is on the server, the file is not marked as moved
    AFTER_MOVED = "after_moved"  # the file is marked, the ledger on the server still as arriving
    AFTER_ARRIVED = "after_arrived"  # the ledger on the server can be used
    BEFORE_HIGH_WATER = "before_high_water"  # the ledger is ahead of its high-water mark


on_reach: Callable[[CrashPoint], None] | None = None
"""Called at every point. None, the value outside tests, costs one comparison."""


def reach(point: CrashPoint) -> None:
    """Call `on_reach`, if set, with the point that the process has reached."""
    if on_reach is not None:
        on_reach(point)
