"""Workers of procrastinate that send and collect what a ledger holds.

PYTHONPATH=. procrastinate --app=fleet.app schema --apply
PYTHONPATH=. procrastinate --app=fleet.app worker
"""

import os

from procrastinate import App, PsycopgConnector

from claude_batch.integrations.procrastinate import claude_batch_tasks

app = App(
    connector=PsycopgConnector(conninfo=os.environ["JOBS_URL"]),
    worker_defaults={
        "queues": ["claude-batch"],
        "concurrency": 4,
        "update_heartbeat_interval": 2.0,
        "stalled_worker_timeout": 8.0,
        "shutdown_graceful_timeout": 20.0,
    },
)
app.add_tasks_from(claude_batch_tasks(take_over="8s"), namespace="claude_batch")
