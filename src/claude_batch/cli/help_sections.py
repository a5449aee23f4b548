"""Help in sections, for the commands that take the flags of many settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from claude_batch.cli.options import unused_flags
from claude_batch.core.settings import ENVIRONMENT_PREFIX

_OTHERS: Final = "Options"

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Input": (
        "model",
        "system",
        "max_tokens",
        "prompt_column",
        "id_column",
        "prompt",
        "documents",
        "citations",
        "documents_root",
        "skip_invalid",
    ),
    "Output": ("output", "form", "csv_safe", "results_dir"),
    _OTHERS: (),
    "Costs": ("budget_usd", "confirm_above", "daily_budget_usd", "prices"),
    "Cache and reuse": ("cache", "prime", "reuse", "dedupe"),
    "Retries and conversations": (
        "max_attempts",
        "retry_on",
        "failure_ttl",
        "preflight",
        "max_turns",
        "turn_linger",
        "validation_attempts",
    ),
    "Batches and waiting": (
        "max_wait",
        "on_timeout",
        "on_disconnect",
        "poll_interval",
        "linger",
        "max_linger",
        "max_requests",
        "parallel_batches",
        "batches_per_hour",
    ),
    "Deadlines and live calls": (
        "deadline",
        "deadline_margin",
        "fallback",
        "mode",
        "auto_threshold",
        "live_concurrency",
        "live_retry",
        "requests_per_minute",
        "tokens_per_minute",
    ),
    "Ledger and API": (
        "ledger",
        "base_url",
        "api_key_env",
        "exclusive_workspace",
        "allow_tools_from_ledger",
        "heartbeat",
        "take_over",
    ),
    "Lost responses and missing batches (the defaults are safe)": (
        "on_unknown",
        "resubmit_after",
        "settling",
        "arm_window",
        "lookback",
        "not_found_after",
        "missing_after",
        "probe_interval",
    ),
}
"""The headings of help, and the names of the parameters below each. Others are below `_OTHERS`."""

_SECTION_OF: Final = {name: title for title, names in SECTIONS.items() for name in names}

_READING: Final = {"ledger", "prices"}
"""Settings that a command uses which only reads a ledger."""


def _variable(flag: str) -> str:
    return ENVIRONMENT_PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def _options(parameters: Iterable[click.Parameter]) -> Iterator[click.Option]:
    return (each for each in parameters if isinstance(each, click.Option))


class SectionedCommand(click.Command):
    """A command whose help lists its options below the headings of `SECTIONS`.

    One sentence names the environment variables that are named after their flags. Flags that the
    command accepts, but does not use, are left out.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        unused = {*unused_flags(self.name or "")}
        if self.name == "dashboard":
            unused |= _SECTION_OF.keys() - _READING
        for option in _options(self.params):
            option.hidden = option.hidden or option.name in unused
            usual = [_variable(flag) for flag in option.opts]
            option.show_envvar = option.show_envvar and option.envvar not in usual

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Implement click's hook."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for option in _options(self.get_params(ctx)):
            record = option.get_help_record(ctx)
            if record is not None:
                sections[_SECTION_OF.get(option.name or "", _OTHERS)].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        formatter.write_paragraph()
        shown = {option.name for option in _options(self.params) if not option.hidden}
        flag = "--poll-interval" if "poll_interval" in shown else "--ledger"
        formatter.write_text(
            f"Most settings can be environment variables too: {flag} is {_variable(flag)}. A flag "
            "overrides its variable."
        )
