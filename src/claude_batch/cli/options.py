"""Options that several commands share, each with its environment variable."""

from __future__ import annotations

import functools
import gc
import os
import shlex
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource

from claude_batch.cli.faults import say
from claude_batch.core.dollars import nano_dollars, usd
from claude_batch.core.durations import parse_duration
from claude_batch.core.settings import ENVIRONMENT_PREFIX, default_ledger, from_environment

if TYPE_CHECKING:
    from claude_batch.providers.batch import ClaudeBatchProvider

__all__ = [
    "ProviderOptions",
    "base_url_option",
    "import_provider",
    "key_option",
    "ledger_option",
    "open_provider",
    "prices_option",
    "provider_options",
    "run_options",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

SANDBOX_LATENCY = 1.0
SANDBOX_POLL_INTERVAL = 0.2
"""Seconds; with ``--sandbox`` a batch ends soon, but not before one has seen it."""


class Written(click.ParamType[_T]):
    """A value that people write in a form of its own; says what is wrong with another one."""

    def __init__(self, name: str, read: Callable[[Any], _T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _T:
        """click's hook: from what was written."""
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION: Written[float] = Written("duration", parse_duration)
"""Such as ``30s``; seconds."""

DOLLARS: Written[Decimal] = Written("usd", lambda value: usd(nano_dollars(value)))
"""Such as ``20`` or ``0.50``."""


def _option(name: str, **attributes: Any) -> Callable[[_F], _F]:
    words = name.partition("/")[0].removeprefix("--")
    variable = ENVIRONMENT_PREFIX + words.replace("-", "_").upper()
    return click.option(name, envvar=variable, show_envvar=True, **attributes)


Format = Literal["jsonl", "csv", "csv-safe"]
"""How OUT is written. ``csv-safe``: no cell of text begins as a spreadsheet's formula does."""


def format_option(command: _F) -> _F:
    """Add ``--format`` and ``--csv-safe`` to a command, which gets both as ``form``."""

    @functools.wraps(command)  # which brings along the options that it has already
    def wrapped(*args: Any, form: Format | None, csv_safe: bool, **given: Any) -> Any:
        if csv_safe and form == "jsonl":
            raise click.UsageError("--csv-safe writes CSV; leave out --format jsonl")
        return command(*args, form="csv-safe" if csv_safe else form, **given)

    with_safety = click.option(
        "--csv-safe",
        is_flag=True,
        help="Write CSV in which no text is taken for a formula: one that begins with =, +, -, @, "
        "a tab or a carriage return gets an apostrophe before it.",
    )
    with_format = click.option(
        "--format",
        "form",
        type=click.Choice(["jsonl", "csv"]),
        help="How OUT is written; by default CSV where its name ends in .csv, else JSON lines.",
    )
    decorated: Any = wrapped
    return with_format(with_safety(decorated))


folder_option: Callable[[Any], Any] = click.option(
    "--results-dir",
    metavar="DIR",
    help="A folder for one JSON file a result, the API's own lines, and a summary.",
)

budget_option: Callable[[Any], Any] = click.option(
    "--budget",
    type=DOLLARS,
    metavar="USD",
    envvar=f"{ENVIRONMENT_PREFIX}BUDGET_USD",
    show_envvar=True,
    help="What the run may cost; what does not fit is held.",
)

ledger_option: Callable[[Any], Any] = _option(
    "--ledger", metavar="PATH|URL", help="The ledger; by default in your data directory."
)

base_url_option: Callable[[Any], Any] = _option(
    "--base-url", metavar="URL", help="The API; by default as ANTHROPIC_BASE_URL says."
)
key_option: Callable[[Any], Any] = _option(
    "--api-key-env", metavar="NAME", help="The variable that holds the key (ANTHROPIC_API_KEY)."
)

prices_option: Callable[[Any], Any] = _option(
    "--prices", metavar="FILE", help="Own prices of models, before the known ones."
)

_SHARED: tuple[Callable[[Any], Any], ...] = (
    ledger_option,
    base_url_option,
    key_option,
    _option("--linger", type=DURATION, help="How long single calls wait for company (2s)."),
    _option("--poll-interval", type=DURATION, help="Shortest wait between two checks (30s)."),
    _option("--max-wait", type=DURATION, help="How long to wait for an answer (26h)."),
    _option("--max-requests", type=int, help="Requests in one batch (100000)."),
    _option(
        "--on-timeout",
        type=click.Choice(["park", "cancel"]),
        help="After --max-wait: leave the batches to a later resume, or cancel them (park).",
    ),
    _option(
        "--mode",
        type=click.Choice(["batch", "live", "auto"]),
        help="In batches, by the live API at full price, or live where few requests wait (batch).",
    ),
    _option("--auto-threshold", type=int, help="The most requests that auto asks live (10)."),
    _option("--deadline", metavar="TIME", help="When all is wanted: 2h, or 2026-11-22T08:00Z."),
    _option(
        "--deadline-margin",
        type=DURATION,
        help="How long before the deadline batches are cancelled; by default learned.",
    ),
    _option(
        "--fallback",
        type=click.Choice(["live", "none"]),
        help="What did not run before the margin: asked live, or expired (live).",
    ),
    _option("--live-concurrency", type=int, help="Live calls under way at once (8)."),
    _option(
        "--live-retry",
        type=click.Choice(["safe", "always"]),
        help="A failed live call is made again if it was certainly not billed, or always (safe).",
    ),
    _option(
        "--settling",
        type=DURATION,
        help="How long a batch whose sending had no answer may take to appear (15m).",
    ),
    _option("--arm-window", type=DURATION, help="How long the end of a sending may take (5s)."),
    _option(
        "--lookback", type=DURATION, help="How much older than its sending a batch may look (10m)."
    ),
    _option(
        "--not-found-after", type=DURATION, help="How long until a missing batch is gone (24h)."
    ),
    _option(
        "--missing-after",
        type=DURATION,
        help="How long missing results are fetched again before they are lost (24h).",
    ),
    _option(
        "--on-unknown",
        type=click.Choice(["wait", "resubmit"]),
        help="A sending without an answer: wait for certainty, or risk to pay twice (wait).",
    ),
    _option(
        "--resubmit-after",
        type=DURATION,
        help="How long --on-unknown resubmit waits for certainty first (1h).",
    ),
    _option(
        "--exclusive-workspace/--shared-workspace",
        default=None,
        help="Whether this ledger alone makes batches in its workspace (shared).",
    ),
    _option("--probe-interval", type=DURATION, help="The wait before a halt is first probed (5m)."),
    _option(
        "--allow-tools-from-ledger",
        is_flag=True,
        default=None,
        help="Import the tools that runs of the ledger name: code that its writer chose.",
    ),
    prices_option,
    click.option(
        "--daily-budget",
        "daily_budget_usd",
        type=DOLLARS,
        metavar="USD",
        envvar=f"{ENVIRONMENT_PREFIX}DAILY_BUDGET_USD",
        show_envvar=True,
        help="What all that is sent on a day (UTC) may cost.",
    ),
)
_OF_RUNS: tuple[Callable[[Any], Any], ...] = (
    _option(
        "--preflight/--no-preflight",
        default=None,
        help="Let the API look at one request of each shape first (above 100 requests).",
    ),
    _option(
        "--cache",
        type=click.Choice(["off", "auto"]),
        help="Mark what requests share at their beginning for the prompt cache (off).",
    ),
    _option(
        "--prime/--no-prime",
        default=None,
        help="With --cache auto: send one request of each prefix ahead (--no-prime).",
    ),
    _option(
        "--reuse/--no-reuse",
        default=None,
        help="Take the answers that equal requests had before, at no cost (--no-reuse).",
    ),
    _option(
        "--dedupe/--no-dedupe",
        default=None,
        help="Send equal requests of a run once (--no-dedupe).",
    ),
    _option(
        "--max-attempts",
        type=click.IntRange(min=1),
        help="Outcomes of a request until a passing failure is final (3).",
    ),
    _option(
        "--max-turns",
        type=click.IntRange(min=1),
        help="Answers that a conversation with tools or pauses may have (10).",
    ),
    _option("--turn-linger", type=DURATION, help="How long a ready turn waits for others (30s)."),
    _option(
        "--validation-attempts",
        type=click.IntRange(min=1),
        help="Answers until one is of the shape that was asked for (1).",
    ),
)
_NEEDED_AGAIN = ("ledger", "base_url", "api_key_env")
"""What a later command must be told again to find the same run and server."""


_COMMON = (
    "linger",
    "max_wait",
    "max_requests",
    "on_timeout",
    "mode",
    "auto_threshold",
    "deadline",
    "deadline_margin",
    "fallback",
    "live_concurrency",
    "live_retry",
    "settling",
    "arm_window",
    "lookback",
    "not_found_after",
    "missing_after",
    "on_unknown",
    "resubmit_after",
    "exclusive_workspace",
    "probe_interval",
    "allow_tools_from_ledger",
    "prices",
    "daily_budget_usd",
    "preflight",
    "cache",
    "prime",
    "reuse",
    "dedupe",
    "max_attempts",
    "max_turns",
    "turn_linger",
    "validation_attempts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """The shared options as given; None where they were not."""

    ledger: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    linger: float | None = None
    poll_interval: float | None = None
    max_wait: float | None = None
    max_requests: int | None = None
    on_timeout: Literal["park", "cancel"] | None = None
    mode: Literal["batch", "live", "auto"] | None = None
    auto_threshold: int | None = None
    deadline: str | None = None
    deadline_margin: float | None = None
    fallback: Literal["live", "none"] | None = None
    live_concurrency: int | None = None
    live_retry: Literal["safe", "always"] | None = None
    settling: float | None = None
    arm_window: float | None = None
    lookback: float | None = None
    not_found_after: float | None = None
    missing_after: float | None = None
    on_unknown: Literal["wait", "resubmit"] | None = None
    resubmit_after: float | None = None
    exclusive_workspace: bool | None = None
    probe_interval: float | None = None
    allow_tools_from_ledger: bool | None = None
    prices: str | None = None
    daily_budget_usd: Decimal | None = None
    preflight: bool | None = None
    cache: Literal["off", "auto"] | None = None
    prime: bool | None = None
    reuse: bool | None = None
    dedupe: bool | None = None
    max_attempts: int | None = None
    max_turns: int | None = None
    turn_linger: float | None = None
    validation_attempts: int | None = None
    sandbox: bool = False
    """Whether all happens in a sandbox that ends with the command."""
    flags: str = ""
    """The flags that a later command needs too, as they are typed."""

    @property
    def location(self) -> str:
        """The ledger that these options name."""
        return default_ledger(self.ledger)

    @property
    def key_variable(self) -> str:
        """The environment variable that the key is read from."""
        return self.api_key_env or from_environment("api_key_env") or "ANTHROPIC_API_KEY"

    def common(self) -> dict[str, Any]:
        """The settings that mean the same in the sandbox, as the provider's keywords."""
        return {name: getattr(self, name) for name in _COMMON}

    def command(self, verb: str, run_id: str) -> str:
        """A command about a run that can be typed as it stands."""
        return f"claude-batch {verb} {run_id}{self.flags}"

    def how_to_go_on(self, run_id: str) -> str:
        """How the work on a run that was left is taken up again."""
        if self.sandbox:
            return "the sandbox and its ledger are gone"
        return f"go on with: {self.command('resume', run_id)}"


def run_options(command: _F) -> _F:
    """Add the options of commands that make a run; `ProviderOptions` holds them too."""
    decorated: Any = command
    for option in reversed(_OF_RUNS):
        decorated = option(decorated)
    return decorated


def provider_options(command: _F) -> _F:
    """Add the shared options to a command, which gets them as one `ProviderOptions`."""

    @functools.wraps(command)  # which brings along the options that it has already
    def wrapped(*args: Any, **given: Any) -> Any:
        names = [field.name for field in fields(ProviderOptions) if field.name in given]
        shared = {name: given.pop(name) for name in names}
        options = ProviderOptions(**shared, flags=_typed(click.get_current_context()))
        return command(*args, options=options, **given)

    decorated: Any = wrapped
    for option in reversed(_SHARED):
        decorated = option(decorated)
    return decorated


def _typed(context: click.Context) -> str:
    words: list[str] = []
    for name in _NEEDED_AGAIN:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += ["", f"--{name.replace('_', '-')}", shlex.quote(context.params[name])]
    return " ".join(words).replace("  ", " ")


def import_provider() -> type[ClaudeBatchProvider]:
    """The provider and all that comes with it: most of what a command imports.

    That makes half a million objects that stay, which Python would search for cycles again and
    again, now and for the rest of the command: a tenth of a second.
    """
    gc.disable()
    try:
        from claude_batch.providers.batch import ClaudeBatchProvider
    finally:
        gc.freeze()
        gc.enable()
    return ClaudeBatchProvider


@contextmanager
def _state_in(folder: str) -> Generator[None]:
    """Keep the high-water mark of a ledger that ends with the command in its own folder."""
    name = f"{ENVIRONMENT_PREFIX}STATE_DIR"
    before = os.environ.get(name)
    os.environ[name] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def open_provider(
    options: ProviderOptions, *, drive: bool = True
) -> Generator[ClaudeBatchProvider]:
    """A provider with these options, parked and closed when the block ends.

    With ``options.sandbox`` a sandbox is started for this block alone, with a ledger of its own:
    nothing of the user's is touched.
    """
    provider_class = import_provider()
    if not options.sandbox:
        with provider_class(
            ledger=options.ledger,
            base_url=options.base_url,
            api_key_env=options.api_key_env,
            poll_interval=options.poll_interval,
            drive=drive,
            **options.common(),
        ) as provider:
            yield provider
        return
    try:
        from claude_batch.sandbox import SandboxServer, SandboxSettings
    except ImportError as error:
        raise click.UsageError(str(error)) from None
    with (
        tempfile.TemporaryDirectory(prefix="claude-batch-sandbox-") as folder,
        _state_in(folder),
        SandboxServer(SandboxSettings(latency=SANDBOX_LATENCY, uses_tools=True)) as server,
        provider_class(
            ledger=f"{folder}/ledger.db",
            base_url=server.url,
            api_key="sk-sandbox",
            poll_interval=options.poll_interval or SANDBOX_POLL_INTERVAL,
            **options.common(),
        ) as provider,
    ):
        say(f"sandbox at {server.url}: answers are made up, nothing leaves this machine or is paid")
        yield provider
