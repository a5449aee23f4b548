"""A Dag that asks a file of prompts each night, and reports what the answers cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from claude_batch.integrations.airflow import ClaudeBatchOperator

with DAG(
    "nightly_reviews",
    schedule="0 22 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
):
    ask = ClaudeBatchOperator(
        task_id="ask",
        actor="/srv/reviews/reviewer.yaml",
        input_file="/srv/reviews/{{ ds }}.jsonl",
        output_file="/srv/reviews/{{ ds }}-answers.jsonl",
        conn_id="anthropic",
        settings={"budget_usd": "20"},
        retries=2,
        retry_delay=timedelta(minutes=10),
    )

    @task
    def report(value: dict[str, Any]) -> None:
        print(value["run_id"], value["counts"], value["cost_usd"], value["output_file"])

    report(ask.output)
