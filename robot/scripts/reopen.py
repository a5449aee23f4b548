"""Opens a run of another process and prints its answers in order: python reopen.py RUN."""

from __future__ import annotations

import sys

import claude_batch as cb

run = cb.open_run(sys.argv[1])
with run.provider:
    for result in run.results_sync():
        print(result.response.text if result.response else f"failed: {result.error}")
    print(run.status().state)
