"""The table of settings: each one's type, default, scope, environment variable, flag and help.

A setting is declared here, and as a keyword for type checkers in
`claude_batch.providers.keywords`. The command line, the environment, an actor's YAML and
``docs/reference/settings.md`` are derived from `SETTINGS`.

Precedence, highest first: command line and Python keywords, environment (``CLAUDE_BATCH_…``), YAML,
default.
"""

from __future__ import annotations

import difflib
import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, cast, get_args, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from claude_batch.core.errors import STATUS_OF_TYPE, ActorConfigurationError
from claude_batch.core.quantities import (
    format_deadline,
    format_duration,
    nano_dollars,
    parse_deadline,
    parse_duration,
    usd,
)

# One setting --------------------------------------------------------------------------------------

ENVIRONMENT_PREFIX = "CLAUDE_BATCH_"


class Kind(enum.Enum):
    """The type of a setting's values."""

    DURATION = enum.auto()
    DEADLINE = enum.auto()
    DOLLARS = enum.auto()
    CHOICE = enum.auto()
    COUNT = enum.auto()
    SWITCH = enum.auto()
    ERROR_TYPES = enum.auto()
    TEXT = enum.auto()


Scope = Literal["provider", "run", "ledger"]

Commands = Literal["all", "run, submit, estimate", "run, submit", "gateway"]
"""Which commands take a flag; ``all``: all that open a provider."""

ASKING: Commands = "run, submit, estimate"
SERVING: Commands = "gateway"


@dataclass(frozen=True, slots=True)
class Flag:
    """The flag of a setting, as far as its name, type and default do not determine it."""

    help: str
    """The text of ``--help``, without the default and the full stop."""
    commands: Commands = "all"
    """Which commands take it."""
    off: str = ""
    """The flag that turns a switch off, such as ``--no-prime``."""
    metavar: str | None = None
    """The placeholder of the value in ``--help``; None: the name of its kind."""
    bounded: bool = False
    """Whether the command line itself checks the least value, and ``--help`` shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table."""

    name: str
    """The keyword in Python; if the scope is ``run``, also the key in ``batch_processing``."""
    scope: Scope
    kind: Kind
    default: Any
    flag: Flag | None
    """Its flag on the command line; None if it has none."""
    choices: tuple[str, ...]
    """The words that it accepts, apart from true and false."""
    least: int | None
    """The least value of a count."""

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flag, and the one that turns it off.

        ``_usd`` is omitted, because ``--budget USD`` shows the unit.
        """
        if self.flag is None:
            return ()
        on = "--" + self.name.removesuffix("_usd").replace("_", "-")
        return (on, self.flag.off) if self.flag.off else (on,)

    @property
    def written_default(self) -> str:
        """The default as people write it; empty if there is none."""
        if self.kind is Kind.DURATION and self.default is not None:
            hours, rest = divmod(self.default, 3600)
            return format_duration(self.default) if rest else f"{hours:g}h"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return "" if self.default is None else str(self.default)

    @property
    def help(self) -> str:
        """The text of ``--help`` for its flag. The text of a switch includes its default."""
        words = self.flag.help if self.flag is not None else ""
        if self.kind is Kind.SWITCH or not self.written_default:
            return f"{words}."
        return f"{words} ({self.written_default})."

    def read(self, value: Any) -> Any:
        """Convert a value as people write it. Raises ``ValueError`` if it is not valid."""
        if self.kind is Kind.DURATION:
            return parse_duration(value)
        if self.kind is Kind.DOLLARS:
            return usd(nano_dollars(value))
        if self.kind is Kind.SWITCH:
            return _read_switch(value)
        if self.kind is Kind.COUNT:
            return _read_count(value, self.least)
        if self.kind is Kind.CHOICE and value not in self.choices:
            raise ValueError(f"{value!r} is neither {' nor '.join(self.choices)}")
        return os.fsdecode(value)


_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _read_switch(value: Any) -> bool:
    try:
        return _SWITCHES[str(value).lower()]
    except KeyError:
        raise ValueError(f"{value!r} is neither true nor false") from None


def _read_count(value: Any, least: int | None) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a whole number") from None
    if count != float(value) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    if least is not None and count < least:
        raise ValueError(f"{count} is less than {least}")
    return count


def _annotations(settings: type[Any]) -> Mapping[str, Any]:
    if issubclass(settings, BaseModel):
        # pydantic has already resolved the annotations, and cannot read its own base class's hints.
        fields = settings.model_fields.items()
        return {name: Annotated[field.annotation, None, *field.metadata] for name, field in fields}
    return get_type_hints(settings, include_extras=True)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types, the words and the metadata of an annotation."""
    if not (arguments := get_args(annotation)):
        yield annotation
    for argument in arguments:
        yield from _parts(argument)


_KINDS = {bool: Kind.SWITCH, int: Kind.COUNT, str: Kind.TEXT}


def rows(scope: Scope, settings: type[Any]) -> Iterator[Setting]:
    """Yield the fields of a pydantic model or a dataclass with a `Flag` among their annotations."""
    defaults = settings()
    for name, annotation in _annotations(settings).items():
        parts = list(_parts(annotation))
        kind = next((part for part in parts if isinstance(part, Kind)), None)
        if kind is None:
            kind = next((_KINDS[part] for part in parts if part in _KINDS), Kind.CHOICE)
        yield Setting(
            name=name,
            scope=scope,
            kind=kind,
            default=getattr(defaults, name),
            flag=next((part for part in parts if isinstance(part, Flag)), None),
            choices=tuple(part for part in parts if isinstance(part, str)),
            least=next((part.ge for part in parts if hasattr(part, "ge")), None),
        )


def from_environment(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the value of ``CLAUDE_BATCH_<NAME>``; None if it is unset or empty."""
    value = (os.environ if environ is None else environ).get(ENVIRONMENT_PREFIX + name.upper())
    return value or None


# The settings -------------------------------------------------------------------------------------

Duration = Annotated[
    float,
    Kind.DURATION,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": ["string", "number"], "examples": ["30s", "10m", "24h", "PT10M"]}),
]
"""Seconds, in the notation of `claude_batch.core.quantities`."""

Deadline = Annotated[
    float | datetime,
    Kind.DEADLINE,
    BeforeValidator(parse_deadline),
    PlainSerializer(format_deadline, return_type=str, when_used="json"),
    WithJsonSchema({"type": ["string", "number"], "examples": ["2h", "2026-11-22T08:00:00Z"]}),
]
"""Seconds from the submission, or a time with its offset."""

Dollars = Annotated[
    Decimal,
    Kind.DOLLARS,
    BeforeValidator(lambda value: usd(nano_dollars(value))),
    PlainSerializer(lambda value: f"{value:f}", return_type=str, when_used="json"),
    WithJsonSchema({"type": ["string", "number"], "examples": [20, "0.50"]}),
]
"""Dollars, as `claude_batch.core.quantities` reads them."""

ACCOUNT_TYPES = ("authentication_error", "billing_error", "permission_error")
"""Error types that are the account's fault. Sending halts, and nothing has to be retried."""


def _read_retry_on(value: object) -> str | None:
    """Return the types of errors that a value names, sorted and separated by commas."""
    if value is None:
        return None
    # A flag and a variable may have the brackets and quotation marks of the YAML.
    given = value.strip().strip("[]").split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple | set | frozenset):
        raise ValueError(f"{value!r} is not a list of error types")
    of_status = {str(status): name for name, status in STATUS_OF_TYPE.items()}
    words = {str(word).strip(" \t'\"") for word in cast("list[object]", given)} - {""}
    found = {of_status.get(word, word) for word in words}
    for word in sorted(found):
        if word in ACCOUNT_TYPES:
            raise ValueError(
                f"{word} is the account's fault: sending halts, and its requests are not failed"
            )
        if word not in STATUS_OF_TYPE:
            known = sorted(STATUS_OF_TYPE.keys() - set(ACCOUNT_TYPES))
            close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(
                f"{word!r} is not an error type of the API{hint}; the types are {', '.join(known)}"
            )
    return ", ".join(sorted(found)) or None


RetryOn = Annotated[
    str | None,
    Kind.ERROR_TYPES,
    BeforeValidator(_read_retry_on),
    WithJsonSchema({"type": ["array", "string"], "examples": [["not_found_error", 413]]}),
]
"""Types of errors, sorted and separated by commas."""

SHORTEST_INTERVAL = 0.05
"""Seconds. Intervals below 50 ms would only load the server."""


# The rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """Locations of a provider's ledger, API and key."""

    ledger: Annotated[
        str | None, Flag("The ledger; by default in your data directory", metavar="PATH|URL")
    ] = None
    """A path, or a URL of SQLite. Default: ``ledger.db`` in the user's data directory."""
    base_url: Annotated[
        str | None, Flag("The API; by default the value of ANTHROPIC_BASE_URL", metavar="URL")
    ] = None
    """The URL of the API. Default: ``ANTHROPIC_BASE_URL``, then Anthropic's API."""
    api_key_env: Annotated[
        str, Flag("The environment variable with the API key", metavar="NAME")
    ] = "ANTHROPIC_API_KEY"
    """The environment variable that holds the API key."""
    state_dir: str | None = None
    """The directory of each ledger's high-water mark, which must not be lost with the ledger.
    Default: the user's state directory.
    """


class BatchProcessingMode(BaseModel):
    """Settings of a run: ``batch_processing`` in an actor's YAML. Durations are in seconds."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", validate_default=True
    )

    linger: Annotated[Duration, Flag("How long single calls wait for others to share a batch")] = (
        2.0
    )
    """How long single calls wait for others, counted from the newest one, before all of them are
    packed. `max_requests` waiting requests are packed at once."""
    max_requests: Annotated[int, Flag("Most requests in one batch")] = Field(
        default=100_000, ge=1, le=100_000
    )
    """The most requests in one batch; the API accepts at most 100,000."""
    max_linger: Annotated[
        Duration, Flag("How long the oldest single call waits at most while others keep arriving")
    ] = 30.0
    """How long the oldest single call waits at most, if others keep arriving within `linger` of
    each other. A longer `linger` counts instead. A `deadline` or a `max_wait` may shorten it: at
    most half of the time that they leave is spent on waiting for others."""
    parallel_batches: Annotated[
        int | None, Flag("Most batches of the run in flight at once", ASKING, bounded=True)
    ] = Field(default=None, ge=1)
    """The most batches with requests of a run that are in flight at once; its other requests wait.
    Default: no limit."""
    poll_interval: Annotated[Duration, Flag("Shortest time between two checks")] = Field(
        default=30.0, ge=SHORTEST_INTERVAL
    )
    """The shortest wait between two checks of a batch. The wait is a tenth of the batch's age,
    within this and `max_poll_interval`."""
    max_poll_interval: Duration = Field(default=300.0, ge=SHORTEST_INTERVAL)
    """The longest wait between two checks of a batch."""
    max_wait: Annotated[Duration, Flag("How long to wait for an answer")] = Field(
        default=26 * 3600.0, gt=0
    )
    """How long to wait for an answer, counted from the submission, across restarts. A batch may
    take 24 h."""
    on_timeout: Annotated[
        Literal["park", "cancel"],
        Flag("After --max-wait: leave the batches to a later resume, or cancel them"),
    ] = "park"
    """What happens after `max_wait`: ``park`` leaves the batches to a later ``resume``; ``cancel``
    cancels them."""
    max_attempts: Annotated[
        int, Flag("Attempts of a request before a temporary failure is final", ASKING, bounded=True)
    ] = Field(default=3, ge=1)
    """How many attempts a request has before a transient error is final."""
    retry_on: Annotated[
        RetryOn,
        Flag("Further error types to retry, or their statuses", ASKING, metavar="TYPE,..."),
    ] = None
    """Further types of errors that are retried, or their HTTP statuses, such as
    ``[not_found_error, 413]``. Only errors for which nothing is billed count, and never those that
    are the account's fault."""
    mode: Annotated[
        Literal["batch", "live", "auto"],
        Flag("Use batches, the live API at full price, or the live API if few requests wait"),
    ] = "batch"
    """How requests are answered. ``batch``: in batches. ``live``: by the live API, at full price.
    ``auto``: live if no more than `auto_threshold` requests are waiting when they would be packed,
    else in batches. A run counts with all its requests: retries of a few do not go live."""
    auto_threshold: Annotated[int, Flag("The most requests that `auto` sends live")] = Field(
        default=10, ge=0
    )
    """The most requests that ``mode: auto`` sends to the live API."""
    live_concurrency: Annotated[int, Flag("Live calls at the same time")] = Field(default=8, ge=1)
    """The most concurrent live calls to one model; the API's rate limits may allow fewer."""
    live_retry: Annotated[
        Literal["safe", "always"],
        Flag("Retry a failed live call if it was certainly not billed, or always"),
    ] = "safe"
    """Which failed live calls are retried. ``safe``: only those that were certainly not billed.
    ``always``: also those that ended with a transient API error (such as a 500). Such a call may
    have been billed, so its answer may be paid for twice. Also for actors without
    ``batch_processing``."""
    deadline: Annotated[
        Deadline | None,
        Flag("When every answer is needed: 2h, or 2026-11-22T08:00Z", metavar="TIME"),
    ] = None
    """The time at which all answers are required, or a duration from the submission."""
    deadline_margin: Annotated[
        Duration | None,
        Flag("How long before the deadline batches are canceled; by default learned"),
    ] = None
    """How long before `deadline` unfinished batches are cancelled at the API. Default: learned from
    the ledger, by how long cancelled batches took to end and how long live calls take."""
    fallback: Annotated[
        Literal["live", "none"],
        Flag("Requests that did not run before the margin: send them live, or let them expire"),
    ] = "live"
    """What happens to requests that did not run before the margin. ``live``: they are sent to the
    live API. ``none``: they end as ``expired``."""
    budget_usd: Annotated[
        Dollars | None,
        Flag("The most that the run may cost; requests that do not fit are held", "run, submit"),
    ] = None
    """What a run may cost, in dollars; requests that do not fit are held. The single calls of a
    process are one run."""
    actor_budget_usd: Dollars | None = None
    """What all runs of the actor may cost together, in dollars."""
    max_turns: Annotated[
        int, Flag("Most answers in a conversation with tools or pauses", ASKING, bounded=True)
    ] = Field(default=10, ge=1)
    """How many answers of the model a conversation with tools or pauses may have. Answers that
    `validation_attempts` asks for are not counted."""
    turn_linger: Annotated[
        Duration, Flag("How long the next turn of a conversation waits for others", ASKING)
    ] = 30.0
    """How long a conversation whose next turn is ready waits for other conversations of its run, so
    that their turns travel in one batch."""
    validation_attempts: Annotated[
        int, Flag("Most answers until one matches the requested format", ASKING, bounded=True)
    ] = Field(default=1, ge=1)
    """How many answers are requested until one matches the response format."""
    preflight: Annotated[
        bool | Literal["auto"],
        Flag(
            "Let the API check one request of each shape first; by default new shapes, and every "
            "shape of a large run",
            ASKING,
            off="--no-preflight",
        ),
    ] = "auto"
    """Whether the API checks one request of each shape before anything of the run is sent.
    ``auto``: each shape that the ledger has not seen accepted yet, and every shape of a run of more
    than 100 requests."""
    cache: Annotated[
        Literal["off", "auto"],
        Flag("Mark common beginnings of requests for the prompt cache", ASKING),
    ] = "off"
    """``auto`` marks the prefixes that requests of a run share for the prompt cache. ``off`` sends
    requests exactly as given."""

    prime: Annotated[
        bool,
        Flag(
            "With --cache auto: send one request of each prefix first (--no-prime)",
            ASKING,
            off="--no-prime",
        ),
    ] = False
    """Whether one request of each prefix that ``cache: auto`` finds is sent first, in a batch of
    its own, and the others after it."""
    reuse: Annotated[
        bool,
        Flag(
            "Reuse the answers of equal earlier requests, at no cost (--no-reuse)",
            ASKING,
            off="--no-reuse",
        ),
    ] = False
    """Whether a request gets the stored answer of an equal request in this ledger, at no cost."""
    dedupe: Annotated[
        bool, Flag("Send equal requests of a run once (--no-dedupe)", ASKING, off="--no-dedupe")
    ] = False
    """Whether equal requests of a run are sent once."""
    failure_ttl: Annotated[
        Duration, Flag("How long equal calls get the same failure again", SERVING)
    ] = 600.0
    """How long a call over `client()`, `http_client()` or the gateway gets the failure of an equal
    call again, without a request. 0 sends a request each time."""
    on_disconnect: Annotated[
        Literal["keep", "drop"],
        Flag("Keep or cancel the sent request of a caller that goes away", SERVING),
    ] = "keep"
    """What happens to the sent request of a call over `client()` or the gateway whose caller goes
    away. ``keep``: its answer is kept for an equal call. ``drop``: it is cancelled, and so is its
    batch if no other caller waits for an answer from it."""

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
            raise ValueError("it needs `cache: auto` (--cache auto), which finds common prefixes")
        return value

    @model_validator(mode="before")
    @classmethod
    def _raise_unset_maximum(cls, data: Any) -> Any:
        # A poll_interval above the default maximum raises the maximum; it is not a contradiction.
        if not isinstance(data, dict):
            return data
        values = cast("dict[str, Any]", data)
        if "poll_interval" not in values or "max_poll_interval" in values:
            return values
        try:
            seconds = parse_duration(values["poll_interval"])
        except ValueError:
            return values  # the field's own validation reports the error
        if seconds > cls.model_fields["max_poll_interval"].default:
            return {**values, "max_poll_interval": seconds}
        return values

    def deadline_after(self, submitted: float) -> float | None:
        """Return the deadline as seconds since the epoch; None if there is none."""
        if isinstance(self.deadline, datetime):
            return self.deadline.timestamp()
        return None if self.deadline is None else submitted + self.deadline

    @model_validator(mode="after")
    def _check_intervals(self) -> BatchProcessingMode:
        if self.max_poll_interval < self.poll_interval:
            raise ValueError("max_poll_interval is shorter than poll_interval")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Settings of a ledger. All requests in one batch share them. Durations are in seconds."""

    settling: Annotated[
        Duration, Flag("How long a batch may take to appear in the list if its POST had no answer")
    ] = 900.0
    """How long a batch may take to appear in the API's list after a POST without a response."""
    arm_window: Annotated[Duration, Flag("How long the end of a POST may take to be sent")] = 5.0
    """How long the last bytes of a POST may be sent after ``armed`` was written to disk."""
    lookback: Annotated[
        Duration, Flag("How long before its POST a batch may have been created")
    ] = 600.0
    """How long before the intent to POST a batch may have been created, to count as a candidate."""
    not_found_after: Annotated[
        Duration, Flag("How long a batch must be missing before it counts as gone")
    ] = 86400.0
    """How long the API must answer 404 for a batch before the batch counts as gone."""
    missing_after: Annotated[
        Duration, Flag("How long missing results are fetched again before they are lost")
    ] = 86400.0
    """How long results must stay missing, fetch after fetch, before their requests are lost."""
    on_unknown: Annotated[
        Literal["wait", "resubmit"],
        Flag(
            "A POST without an answer: wait until it is decided, or send again and risk to pay "
            "twice"
        ),
    ] = "wait"
    """What happens to a POST whose outcome is unknown. ``wait``: wait for certainty. ``resubmit``:
    after `resubmit_after`, send the requests again; they may be paid for twice."""
    resubmit_after: Annotated[
        Duration, Flag("How long --on-unknown resubmit waits for a decision first")
    ] = 3600.0
    """How long ``on_unknown: resubmit`` waits for certainty first."""
    exclusive_workspace: Annotated[
        bool,
        Flag(
            "Whether only this ledger makes batches in its workspace (shared)",
            off="--shared-workspace",
        ),
    ] = False
    """Whether only this ledger creates batches in its workspace. A single candidate is then adopted
    at once, and a batch that cannot be explained stops sending."""
    probe_interval: Annotated[Duration, Flag("The time before a halt is first probed")] = 300.0
    """How long a halted workspace waits before the first probe; each refused probe doubles it."""
    allow_tools_from_ledger: Annotated[
        bool, Flag("Import the tools that the ledger names: code that its writer chose")
    ] = False
    """Whether functions are imported because a run in the ledger names them. Anyone who can write
    the ledger can then choose code that this process runs.
    """
    requests_per_minute: Annotated[
        NonNegativeInt | None, Flag("The most live calls in any minute; 0: no limit", bounded=True)
    ] = None
    """The most live calls of a workspace in any minute, whatever the API allows. It is stored in
    the ledger, and holds for all its processes. 0 removes it. Default: the stored value."""
    tokens_per_minute: Annotated[
        NonNegativeInt | None,
        Flag("The most tokens of live calls in any minute; 0: no limit", bounded=True),
    ] = None
    """The most input and output tokens of a workspace's live calls in any minute, as they are
    estimated before a call and corrected by its answer. Stored as `requests_per_minute` is."""
    batches_per_hour: Annotated[
        NonNegativeInt | None, Flag("The most batches in any hour; 0: no limit", bounded=True)
    ] = None
    """The most batches of a workspace in any hour. Requests wait for the next one together. Stored
    as `requests_per_minute` is."""
    prices: Annotated[
        str, Flag("Your own prices of models, which override the known ones", metavar="FILE")
    ] = ""
    """A file with prices of models, which take precedence over the built-in prices."""
    daily_budget_usd: Annotated[
        Dollars | None, Flag("The most that all requests sent on one day (UTC) may cost")
    ] = None
    """What all requests that are sent on one day (UTC) may cost, in dollars. It is stored in the
    ledger. Default: the stored value."""
    heartbeat: Annotated[
        Duration, Flag("The time between two heartbeats of a process, for a ledger on PostgreSQL")
    ] = 3.0
    """The time between two heartbeats of a process. Only for a ledger on PostgreSQL."""
    take_over: Annotated[
        Duration, Flag("How long a process may send no heartbeat before another takes over")
    ] = 10.0
    """How long a process may send no heartbeat before another takes over its work. It is at least
    `heartbeat` and `arm_window` together. Only for a ledger on PostgreSQL."""

    def agreed(self) -> dict[str, str]:
        """Return the settings in which all processes of a ledger must agree, as people write them.

        They decide what counts as sent and as lost: what one process waits for, another would send
        again.
        """
        return {
            name: format_duration(value) if isinstance(value, float) else str(value)
            for name in _AGREED
            if (value := getattr(self, name)) is not None
        }


_AGREED = (
    "settling",
    "arm_window",
    "lookback",
    "not_found_after",
    "missing_after",
    "on_unknown",
    "resubmit_after",
    "exclusive_workspace",
)


# The table


SETTINGS: Mapping[str, Setting] = {
    row.name: row
    for row in (
        *rows("provider", ProviderSettings),
        *rows("run", BatchProcessingMode),
        *rows("ledger", LedgerSettings),
    )
}
"""Every setting by its name, in the order of ``--help`` and of the documentation."""


# Where values come from


def resolve_mode(
    configured: bool | BatchProcessingMode = True,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> BatchProcessingMode:
    """Merge keywords, environment and YAML into one mode.

    ``overrides`` are keywords or flags (None: not given). Raises `ActorConfigurationError` that
    names the source of the wrong value.
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
        # A higher-ranking poll_interval raises a lower-ranking maximum; it is not a contradiction.
        values["max_poll_interval"] = _longer(values["max_poll_interval"], values)
    try:
        return BatchProcessingMode.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "poll_interval"
        where = sources.get(name, name)
        raise _invalid(name, where, _plain(first["msg"])) from None


def _longer(maximum: float, values: Mapping[str, Any]) -> float:
    try:
        return max(maximum, parse_duration(values["poll_interval"]))
    except ValueError:
        return maximum


def _invalid(name: str, where: str, reason: str) -> ActorConfigurationError:
    """Return the error of a setting; ``where`` is its source: its name for a keyword or a flag."""
    if where == name:
        return ActorConfigurationError(reason, setting=name)
    return ActorConfigurationError(f"{where}: {reason}")


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")


def resolve_ledger_settings(
    overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> LedgerSettings:
    """Merge keywords and environment into the settings of a ledger.

    Raises `ActorConfigurationError` that names the source of the wrong value.
    """
    settings = LedgerSettings()
    for row in SETTINGS.values():
        if row.scope != "ledger":
            continue
        value, where = (overrides or {}).get(row.name), row.name
        if value is None:
            value, where = from_environment(row.name, environ), row.variable
        if value is not None:
            try:
                settings = replace(settings, **{row.name: row.read(value)})
            except ValueError as error:
                raise _invalid(row.name, where, str(error)) from None
    return settings
