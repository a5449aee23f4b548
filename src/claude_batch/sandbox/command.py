"""The sandbox's command line, for `python -m claude_batch.sandbox` and `claude-batch sandbox`.

One click command, so that both have the same options. No part of the server is imported before the
command runs: `--help` works without starlette.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from .sandbox_settings import SandboxSettings, parse_duration, parse_offset

_DEFAULTS = SandboxSettings()

_TOKEN_VARIABLE = "CLAUDE_BATCH_SANDBOX_TOKEN"


class Duration(click.ParamType[float]):
    """Seconds (`0.5`) or a number with a unit (`50ms`, `2s`, `10m`, `24h`, `29d`)."""

    name = "duration"
    read: Callable[[Any], float] = staticmethod(parse_duration)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Implement click's hook."""
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()


class Offset(Duration):
    """A `Duration` that may be negative (`-5m`)."""

    read: Callable[[Any], float] = staticmethod(parse_offset)


def _require_token(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse an empty token, which is usually an unset variable of the shell; click's callback."""
    # click takes an empty variable for one that is not set.
    if value == "" or (value is None and os.environ.get(_TOKEN_VARIABLE) == ""):
        raise click.UsageError(
            f"--admin-token or {_TOKEN_VARIABLE} is empty; give a value, or leave it out", context
        )
    return value


_F = TypeVar("_F", bound=Callable[..., Any])


def _setting(name: str, *, show_default: bool = True, **more: Any) -> Callable[[_F], _F]:
    """Add the option of a setting, with the setting's default."""
    flag, default = "--" + name.replace("_", "-"), getattr(_DEFAULTS, name)
    return click.option(flag, default=default, show_default=show_default, **more)


@click.command("sandbox")
@_setting("host", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="TCP port; 0 takes a free one.",
)
@click.option(
    "--admin-token",
    metavar="TOKEN",
    envvar=_TOKEN_VARIABLE,
    show_envvar=True,
    callback=_require_token,
    help="Token that lets other machines use the routes under /sandbox, sent in the header "
    "x-sandbox-token.",
)
@_setting("latency", type=DURATION, help="Time from a batch's creation to its end.")
@_setting(
    "cancel_latency",
    type=DURATION,
    help="Time from a cancel request to the batch's end; about 25s in the API.",
)
@_setting("live_latency", type=DURATION, help="Time before a live message is answered.")
@_setting("seed", help="Seed of the order of results and of the digest in answers.")
@click.option(
    "--faults", type=click.Path(dir_okay=False, path_type=Path), help="JSON file with a fault plan."
)
@_setting(
    "expires_after",
    show_default=False,
    type=DURATION,
    help="Age at which an unfinished batch expires.  [default: 24h]",
)
@_setting(
    "results_kept",
    show_default=False,
    type=DURATION,
    help="Age at which results can no longer be read.  [default: 29d]",
)
@_setting(
    "counts",
    type=click.Choice(["zero", "live"]),
    help="Counts of a batch in progress: zero until its end, or live as it proceeds.",
)
@_setting("counts_after", type=DURATION, help="Age until which a young batch's counts are all 0.")
@_setting("listed_after", type=DURATION, help="Age from which a batch is listed.")
@click.option("--responder", metavar="MODULE:FUNCTION", help="Function that makes the answers.")
@click.option(
    "--uses-tools",
    is_flag=True,
    help="Call each tool of a request once, then answer with their results.",
)
@_setting(
    "queue_limit",
    type=click.IntRange(0),
    help="Requests in unfinished batches, above which a create answers 429.",
)
@_setting("clock_offset", type=Offset(), help="Time added to the machine's clock; may be negative.")
@click.option(
    "--any-id",
    is_flag=True,
    help="Answer for a batch, file or model that does not exist with an example, as a mock server "
    "does: for the test suites of client libraries.",
)
@click.option("--no-workspace-header", is_flag=True,
              help="Do not send anthropic-workspace-id.")  # fmt: skip
def sandbox(*, faults: Path | None, no_workspace_header: bool, **fields: Any) -> None:
    """Serve a local imitation of the Message Batches API.

    It can refuse, delay, drop and contradict on demand. Prints one line, "sandbox listening on
    http://127.0.0.1:PORT", and serves until it is interrupted. Point ANTHROPIC_BASE_URL at that
    address; any key that does not contain "invalid" is taken.
    """
    settings = SandboxSettings(
        faults=None if faults is None else read_plan(faults),
        workspace_header=not no_workspace_header,
        **fields,
    )
    try:
        from . import serve
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    try:
        serve(settings, on_start=_announce)
    except ValueError as error:  # an unusable plan or responder
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(
            f"{settings.host}:{settings.port}: {error.strerror}. Choose another address with "
            "--host or --port; --port 0 takes a free port"
        ) from error


def _announce(url: str) -> None:
    try:
        click.echo(f"sandbox listening on {url}")
    except OSError as error:
        with suppress(OSError):  # else Python would report at exit what is left in the buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.UsageError(
            f"standard output: cannot be written: {error.strerror}; the address is printed there"
        ) from error


def read_plan(path: Path) -> dict[str, Any]:
    """Return the JSON object in a fault plan's file; raises `click.UsageError`."""
    try:
        plan: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise click.UsageError(f"--faults {path}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"--faults {path}: not valid JSON: {error}") from error
    if not isinstance(plan, dict):
        raise click.UsageError(f"--faults {path}: a fault plan is a JSON object")
    return cast(dict[str, Any], plan)
