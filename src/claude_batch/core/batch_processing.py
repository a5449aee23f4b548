"""`BatchProcessingMode`: the settings of a run; and `SETTINGS`, the table of all.

A setting is declared here or in `claude_batch.core.settings`, and as a keyword for type checkers in
`claude_batch.providers.keywords`. The command line, the environment, an actor's YAML and
``docs/reference/settings.md`` are derived from `SETTINGS`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from datetime import datetime
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

from claude_batch.core import settings
from claude_batch.core.errors import STATUS_OF_TYPE, ActorConfigurationError
from claude_batch.core.quantities import (
    format_deadline,
    format_duration,
    nano_dollars,
    parse_deadline,
    parse_duration,
    usd,
)
from claude_batch.core.settings import (
    AFTER_DEADLINE,
    ASKING,
    ENVIRONMENT_PREFIX,
    LEDGER_ROWS,
    MOST_COUNT,
    PROVIDER_ROWS,
    SERVING,
    Flag,
    Kind,
    Setting,
    from_environment,
    invalid_setting,
    rows,
)

Duration = Annotated[
    settings.Duration,
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
    settings.Dollars,
    BeforeValidator(lambda value: usd(nano_dollars(value))),
    PlainSerializer(lambda value: f"{value:f}", return_type=str, when_used="json"),
    WithJsonSchema({"type": ["string", "number"], "examples": [20, "0.50"]}),
]
"""Dollars, as `claude_batch.core.quantities` reads them."""


def _no_flag(value: object) -> object:
    # Pydantic reads `true` as 1: batches of one request each.
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a number")
    return value


Count = Annotated[int, BeforeValidator(_no_flag)]
"""A number, and not a truth value."""

ACCOUNT_TYPES = ("authentication_error", "billing_error", "permission_error")
"""Error types that concern the account. Sending halts, and nothing has to be retried."""


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
                f"{word} concerns the account: sending halts, and no request fails; leave it out"
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
    max_requests: Annotated[Count, Flag("Most requests in one batch")] = Field(
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
        Count | None, Flag("Most batches of the run in flight at once", ASKING, bounded=True)
    ] = Field(default=None, ge=1, le=MOST_COUNT)
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
    take 24 h. If it is not set, a `deadline` is waited for, and two hours more."""
    on_timeout: Annotated[
        Literal["park", "cancel"],
        Flag("After --max-wait: leave the batches to a later resume, or cancel them"),
    ] = "park"
    """What happens after `max_wait`: ``park`` leaves the batches to a later ``resume``; ``cancel``
    cancels them."""
    max_attempts: Annotated[
        Count,
        Flag("Attempts of a request before a temporary failure is final", ASKING, bounded=True),
    ] = Field(default=3, ge=1, le=MOST_COUNT)
    """How many attempts a request has before a transient error is final."""
    retry_on: Annotated[
        RetryOn,
        Flag("Further error types to retry, or their statuses", ASKING, metavar="TYPE,..."),
    ] = None
    """Further types of errors that are retried, or their HTTP statuses, such as
    ``[not_found_error, 413]``. Only errors for which nothing is billed count, and never those that
    concern the account."""
    mode: Annotated[
        Literal["batch", "live", "auto"],
        Flag("Use batches, the live API at full price, or the live API if few requests wait"),
    ] = "batch"
    """How requests are answered. ``batch``: in batches. ``live``: by the live API, at full price.
    ``auto``: live if no more than `auto_threshold` requests are waiting when they would be packed,
    else in batches. A run counts with all its requests: retries of a few do not go live."""
    auto_threshold: Annotated[Count, Flag("The most requests that `auto` sends live")] = Field(
        default=10, ge=0, le=MOST_COUNT
    )
    """The most requests that ``mode: auto`` sends to the live API."""
    live_concurrency: Annotated[Count, Flag("Live calls at the same time")] = Field(
        default=8, ge=1, le=MOST_COUNT
    )
    """The most concurrent live calls of a run to one model; the API's rate limits may allow fewer.
    Together, runs have no more calls to a model than the one with the largest value may have."""
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
        Count, Flag("Most answers in a conversation with tools or pauses", ASKING, bounded=True)
    ] = Field(default=10, ge=1, le=MOST_COUNT)
    """How many answers of the model a conversation with tools or pauses may have. Answers that
    `validation_attempts` asks for are not counted."""
    turn_linger: Annotated[
        Duration, Flag("How long the next turn of a conversation waits for others", ASKING)
    ] = 30.0
    """How long a conversation whose next turn is ready waits for other conversations of its run, so
    that their turns travel in one batch."""
    validation_attempts: Annotated[
        Count, Flag("Most answers until one matches the requested format", ASKING, bounded=True)
    ] = Field(default=1, ge=1, le=MOST_COUNT)
    """How many answers are requested until one matches the response format. With 1, a run checks
    no answer."""
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
        default = cls.model_fields["max_poll_interval"].default
        longest = _longer(default, values["poll_interval"])
        return values if longest == default else {**values, "max_poll_interval": longest}

    def deadline_after(self, submitted: float) -> float | None:
        """Return the deadline as seconds since the epoch; None if there is none."""
        if isinstance(self.deadline, datetime):
            return self.deadline.timestamp()
        return None if self.deadline is None else submitted + self.deadline

    def longest_wait(self, submitted: float) -> float:
        """Return `max_wait` in seconds; if it is not set, at least until after the deadline."""
        due = self.deadline_after(submitted)
        if due is None or "max_wait" in self.model_fields_set:
            return self.max_wait
        return max(self.max_wait, round(due - submitted) + AFTER_DEADLINE)

    @model_validator(mode="after")
    def _check_intervals(self) -> BatchProcessingMode:
        if self.max_poll_interval < self.poll_interval:
            raise ValueError("max_poll_interval is shorter than poll_interval")
        return self


SETTINGS: Mapping[str, Setting] = {
    row.name: row
    for row in (
        *PROVIDER_ROWS,
        *rows(
            "run",
            {
                # pydantic has resolved the annotations, and its own class's hints cannot be read.
                name: Annotated[field.annotation, None, *field.metadata]
                for name, field in BatchProcessingMode.model_fields.items()
            },
            BatchProcessingMode(),
        ),
        *LEDGER_ROWS,
    )
}
"""Every setting by its name, in the order of ``--help`` and of the documentation."""


OTHER_VARIABLES = ("documents_root", "dashboard_token", "sandbox_token", "debug")
"""Names of further environment variables, without their prefix and in lower case."""

_NEAR = 0.8
"""Likeness of two names from which one is taken for the other, misspelled."""


def check_environment() -> None:
    """Refuse a variable whose name is near that of a setting, which would be ignored.

    Other programs may use the prefix, so other names pass, unless they speak of a budget. Raises
    `ActorConfigurationError`.
    """
    for variable, value in os.environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or not value:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in SETTINGS and name not in OTHER_VARIABLES and (meant := _meant_by(name)):
            raise ActorConfigurationError(
                f"the environment variable {variable} is not a setting; did you mean {meant}? "
                "Rename or unset it, because it would be ignored. Nothing was sent"
            )


def means_daily_budget(name: str) -> bool:
    """Return whether an unknown name seems to mean the budget of a day.

    Its nearest spelling may be that of each run's budget, which allows more.
    """
    return "budget" in name and ("day" in name or "dai" in name)


def _meant_by(name: str) -> str | None:
    """Return the variable that an unknown name seems to mean; None if there is none."""
    meant = {each: ENVIRONMENT_PREFIX + each.upper() for each in (*SETTINGS, *OTHER_VARIABLES)}
    for setting in SETTINGS.values():
        for flag in setting.flags:  # --budget, for example, and CLAUDE_BATCH_BUDGET_USD
            meant.setdefault(flag.removeprefix("--").replace("-", "_"), setting.variable)
    near = _NEAR
    if "budget" in name:
        kind = "daily" if means_daily_budget(name) else "actor" if "actor" in name else "budget"
        meant, near = {each: known for each, known in meant.items() if kind in each}, 0.0
    close = difflib.get_close_matches(name, meant, n=1, cutoff=near)
    return meant[close[0]] if close else None


def resolve_mode(
    configured: bool | BatchProcessingMode = True,
    overrides: Mapping[str, Any] | None = None,
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
        elif (variable := from_environment(name)) is not None:
            values[name], sources[name] = variable, ENVIRONMENT_PREFIX + name.upper()
    asked, bound = sources.get("poll_interval"), sources.get("max_poll_interval")
    if asked is not None and bound == "batch_processing" and asked != bound:
        # A higher-ranking poll_interval raises a lower-ranking maximum; it is not a contradiction.
        values["max_poll_interval"] = _longer(values["max_poll_interval"], values["poll_interval"])
    try:
        return BatchProcessingMode.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "poll_interval"
        where = sources.get(name, name)
        raise invalid_setting(name, where, first["msg"].removeprefix("Value error, ")) from None


def _longer(maximum: float, interval: object) -> float:
    try:
        return max(maximum, parse_duration(interval))
    except ValueError:
        return maximum  # the field's own validation reports the error
