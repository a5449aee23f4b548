"""Settings: those of an actor's batch mode, those of the ledger, and the order they rank in.

Precedence, highest first: command line and Python keywords, environment (``CLAUDE_BATCH_…``), YAML,
default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from claude_batch.core.dollars import nano_dollars, usd
from claude_batch.core.durations import (
    format_deadline,
    format_duration,
    parse_deadline,
    parse_duration,
)
from claude_batch.core.errors import ActorConfigurationError

__all__ = [
    "ENVIRONMENT_PREFIX",
    "BatchProcessingMode",
    "Dollars",
    "Duration",
    "LedgerSettings",
    "default_ledger",
    "default_state_dir",
    "from_environment",
    "resolve_ledger_settings",
    "resolve_mode",
]

ENVIRONMENT_PREFIX = "CLAUDE_BATCH_"

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": ["string", "number"], "examples": ["30s", "10m", "24h", "PT10M"]}),
]
"""Seconds, written as `claude_batch.core.durations` says."""

Deadline = Annotated[
    float | datetime,
    BeforeValidator(parse_deadline),
    PlainSerializer(format_deadline, return_type=str, when_used="json"),
    WithJsonSchema({"type": ["string", "number"], "examples": ["2h", "2026-11-22T08:00:00Z"]}),
]
"""Seconds from the submission on, or a time with its offset."""

Dollars = Annotated[
    Decimal,
    BeforeValidator(lambda value: usd(nano_dollars(value))),
    PlainSerializer(lambda value: f"{value:f}", return_type=str, when_used="json"),
    WithJsonSchema({"type": ["string", "number"], "examples": [20, "0.50"]}),
]
"""Dollars, as `claude_batch.core.dollars` reads them."""

SHORTEST_INTERVAL = 0.05
"""Seconds; intervals below 50 ms would only load the server."""


class BatchProcessingMode(BaseModel):
    """How an actor's requests are batched: the value of ``batch_processing`` in its YAML."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", validate_default=True
    )

    linger: Duration = 2.0
    """How long the oldest queued request waits for company before it is packed, in seconds."""
    max_requests: int = Field(default=100_000, ge=1, le=100_000)
    """Requests in one batch; the API takes at most 100,000."""
    poll_interval: Duration = Field(default=30.0, ge=SHORTEST_INTERVAL)
    """Shortest wait between two checks of a batch, in seconds."""
    max_poll_interval: Duration = Field(default=300.0, ge=SHORTEST_INTERVAL)
    """Longest wait between two checks of a batch, in seconds."""
    max_wait: Duration = Field(default=26 * 3600.0, gt=0)
    """How long an answer is waited for from enqueueing on, in seconds; a batch may take 24 h."""
    on_timeout: Literal["park", "cancel"] = "park"
    """After `max_wait`: leave the batches to a later ``resume``, or cancel them."""
    max_attempts: int = Field(default=3, ge=1)
    """How many outcomes a request may have before a passing failure becomes final."""
    mode: Literal["batch", "live", "auto"] = "batch"
    """How requests are answered: in batches, by the live API at full price, or ``auto``: live where
    no more than `auto_threshold` wait when they would be packed, and in batches where more do. A
    run counts whole: a few of its requests that are tried again do not go live for it."""
    auto_threshold: int = Field(default=10, ge=0)
    """The most requests that ``auto`` asks live."""
    live_concurrency: int = Field(default=8, ge=1)
    """Live calls to a model that are under way at once; the API's limits may allow fewer."""
    live_retry: Literal["safe", "always"] = "safe"
    """Which failed live calls are made again: ``safe``: only those that were certainly not billed;
    ``always``: also those that ended with a passing error of the API (such as a 500), which may
    have been billed, so that an answer may be paid twice."""
    deadline: Deadline | None = None
    """When all answers are wanted: a time, or a duration from the submission on."""
    deadline_margin: Duration | None = None
    """How long before `deadline` what is unfinished is cancelled at the API, in seconds; by default
    learned from the ledger: how long cancelled batches took to end, and live calls to be made."""
    fallback: Literal["live", "none"] = "live"
    """What becomes of requests that did not run before the margin: asked live, or ``expired``."""
    budget_usd: Dollars | None = None
    """What a run may cost; what does not fit is held. The single calls of a process are one run."""
    actor_budget_usd: Dollars | None = None
    """What all runs of the actor may cost together."""
    max_turns: int = Field(default=10, ge=1)
    """How many answers of the model a conversation with tools or pauses may have; those that
    `validation_attempts` asks for again are not counted here."""
    turn_linger: Duration = 30.0
    """How long a conversation whose next turn is ready waits for the others of its run that are
    between two turns, so that they travel together, in seconds."""
    validation_attempts: int = Field(default=1, ge=1)
    """How many answers are asked for until one is of the shape that was asked for."""
    preflight: bool | Literal["auto"] = "auto"
    """Whether the API looks at one request of each shape of a run before anything of it is sent;
    ``auto``: where the run has more than 100 requests."""
    cache: Literal["off", "auto"] = "off"
    """``auto``: what requests of a run share at their beginning is marked for the prompt cache;
    ``off``: requests are sent exactly as given."""

    prime: bool = False
    """Whether one request of each prefix that ``cache: auto`` finds goes ahead, in a batch of its
    own, and the others after it."""
    reuse: bool = False
    """Whether a request whose params were answered before in this ledger gets that answer."""
    dedupe: bool = False
    """Whether requests of a run that are equal are sent once."""

    @property
    def budget(self) -> int | None:
        """`budget_usd` in nano-dollars."""
        return None if self.budget_usd is None else nano_dollars(self.budget_usd)

    @property
    def actor_budget(self) -> int | None:
        """`actor_budget_usd` in nano-dollars."""
        return None if self.actor_budget_usd is None else nano_dollars(self.actor_budget_usd)

    @field_validator("cache", mode="before")
    @classmethod
    def _read_cache(cls, value: Any) -> Any:
        # YAML reads a bare `off` as false.
        return {False: "off", True: "auto"}.get(value, value) if isinstance(value, bool) else value

    @field_validator("prime")
    @classmethod
    def _check_prime(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("cache") == "off":
            raise ValueError("it needs `cache: auto`, which finds what is to go ahead")
        return value

    @model_validator(mode="before")
    @classmethod
    def _raise_unset_maximum(cls, data: Any) -> Any:
        # A poll_interval above the default maximum means "poll that seldom", not a contradiction.
        if not isinstance(data, dict):
            return data
        values = cast("dict[str, Any]", data)
        if "poll_interval" not in values or "max_poll_interval" in values:
            return values
        try:
            seconds = parse_duration(values["poll_interval"])
        except ValueError:
            return values  # the field's own validation says what is wrong
        if seconds > cls.model_fields["max_poll_interval"].default:
            return {**values, "max_poll_interval": seconds}
        return values

    def deadline_after(self, submitted: float) -> float | None:
        """The time of the deadline, as seconds since the epoch; None where there is none."""
        if isinstance(self.deadline, datetime):
            return self.deadline.timestamp()
        return None if self.deadline is None else submitted + self.deadline

    @model_validator(mode="after")
    def _check_intervals(self) -> BatchProcessingMode:
        if self.max_poll_interval < self.poll_interval:
            raise ValueError("max_poll_interval is shorter than poll_interval")
        return self


def from_environment(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The value of ``CLAUDE_BATCH_<NAME>``; None where it is unset or empty."""
    value = (os.environ if environ is None else environ).get(ENVIRONMENT_PREFIX + name.upper())
    return value or None


def resolve_mode(
    configured: bool | BatchProcessingMode = True,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> BatchProcessingMode:
    """Merge keywords, environment and YAML into one mode.

    ``overrides`` are keywords or flags (None: not given). Raises `ActorConfigurationError` that
    names where the wrong value came from.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if isinstance(configured, BatchProcessingMode):
        for name in configured.model_fields_set:
            values[name], sources[name] = getattr(configured, name), "batch_processing"
    for name in BatchProcessingMode.model_fields:
        override = (overrides or {}).get(name)
        if override is not None:
            values[name], sources[name] = override, name
        elif (variable := from_environment(name, environ)) is not None:
            values[name], sources[name] = variable, ENVIRONMENT_PREFIX + name.upper()
    asked, bound = sources.get("poll_interval"), sources.get("max_poll_interval")
    if asked is not None and bound == "batch_processing" and asked != bound:
        # A higher-ranking poll_interval pushes a lower-ranking maximum up, it does not contradict.
        values["max_poll_interval"] = _longer(values["max_poll_interval"], values)
    try:
        return BatchProcessingMode.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "poll_interval"
        where = sources.get(name, name)
        raise ActorConfigurationError(f"{where}: {_plain(first['msg'])}") from None


def _longer(maximum: float, values: Mapping[str, Any]) -> float:
    try:
        return max(maximum, parse_duration(values["poll_interval"]))
    except ValueError:
        return maximum


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Settings of a ledger: requests that share a batch cannot differ in them. Times in seconds."""

    settling: float = 900.0
    """How long a batch whose POST had no answer may take to appear in the API's list."""
    arm_window: float = 5.0
    """How long after ``armed`` is on disk the last bytes of a POST may leave."""
    lookback: float = 600.0
    """How far before the intent to POST a batch may have been created, to be taken for ours."""
    not_found_after: float = 86400.0
    """How long a batch must be answered with 404 before it counts as gone."""
    missing_after: float = 86400.0
    """How long results must stay missing, fetch after fetch, before their requests are lost."""
    on_unknown: Literal["wait", "resubmit"] = "wait"
    """What becomes of an unknown sending that cannot be decided yet: wait for certainty, or, after
    `resubmit_after`, send again at the risk of paying twice."""
    resubmit_after: float = 3600.0
    """How long ``on_unknown: resubmit`` waits for certainty first."""
    exclusive_workspace: bool = False
    """True where nobody but this ledger makes batches in its workspace: a lone candidate is then
    adopted at once, and a batch that cannot be explained stops sending."""
    probe_interval: float = 300.0
    """How long a halted workspace waits before its first probe; each refused one doubles it."""
    prices: str = ""
    """A file of own prices, as `claude_batch.money.files` reads it; empty for none."""
    allow_tools_from_ledger: bool = False
    """Whether functions are imported because a run of the ledger names them. Whoever wrote the
    ledger then chooses code that this process runs."""
    daily_budget_usd: Decimal | None = None
    """What all that is sent on one day (UTC) may cost; None: what the ledger was last told."""


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _choice(value: Any) -> str:
    if value not in ("wait", "resubmit"):
        raise ValueError(f"{value!r} is neither wait nor resubmit")
    return str(value)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError(f"{value!r} is neither true nor false")
    return word in _TRUE


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "on_unknown": _choice,
    "exclusive_workspace": _flag,
    "allow_tools_from_ledger": _flag,
    "prices": os.fspath,
    "daily_budget_usd": lambda value: usd(nano_dollars(value)),
}


def resolve_ledger_settings(
    overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> LedgerSettings:
    """Merge keywords and environment into the settings of a ledger.

    Raises `ActorConfigurationError` that names where the wrong value came from.
    """
    settings = LedgerSettings()
    for field in fields(LedgerSettings):
        value = (overrides or {}).get(field.name)
        where = field.name
        if value is None:
            value = from_environment(field.name, environ)
            where = ENVIRONMENT_PREFIX + field.name.upper()
        if value is not None:
            parse = _PARSERS.get(field.name, parse_duration)
            try:
                settings = replace(settings, **{field.name: parse(value)})
            except ValueError as error:
                raise ActorConfigurationError(f"{where}: {error}") from None
    return settings


def default_ledger(explicit: str | os.PathLike[str] | None = None) -> str:
    """The ledger to use: the argument, ``CLAUDE_BATCH_LEDGER``, or the user's data directory.

    A path, or a URL with ``://`` in it, as text.
    """
    if explicit is not None:
        return os.fspath(explicit)
    if (variable := from_environment("ledger")) is not None:
        return variable
    from platformdirs import user_data_path

    return str(user_data_path("claude-batch", appauthor=False) / "ledger.db")


def default_state_dir() -> Path:
    """Where what must not be lost together with the ledger lies: ``CLAUDE_BATCH_STATE_DIR``."""
    if (variable := from_environment("state_dir")) is not None:
        return Path(variable)
    from platformdirs import user_state_path

    return user_state_path("claude-batch", appauthor=False)
