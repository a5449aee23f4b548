"""What a setting is, those of a provider and of a ledger, and where the ledger is.

Those of a run, and the table of all, are in `claude_batch.core.batch_processing`: they need
pydantic, whose import takes a command that only reads the ledger a fifth of its time.

Precedence, highest first: command line and Python keywords, environment (``CLAUDE_BATCH_…``), YAML,
default.
"""

from __future__ import annotations

import enum
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints
from urllib.parse import parse_qsl, urlencode

import msgspec

from claude_batch.core.errors import ActorConfigurationError, LedgerError
from claude_batch.core.quantities import format_duration, nano_dollars, parse_duration, usd

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


class Flag(msgspec.Struct, frozen=True):
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


class Setting(msgspec.Struct, frozen=True, kw_only=True):
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
            return read_count(value, self.least)
        if self.kind is Kind.CHOICE and value not in self.choices:
            raise ValueError(f"{value!r} is neither {' nor '.join(self.choices)}")
        try:
            return os.fsdecode(value)
        except TypeError:
            raise ValueError(f"{value!r} is not a text") from None


_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _read_switch(value: Any) -> bool:
    try:
        return _SWITCHES[str(value).lower()]
    except KeyError:
        raise ValueError(f"{value!r} is neither true nor false") from None


MOST_COUNT: Final = 1_000_000_000
"""The highest value of a count. A database keeps it, and sums of it too."""

AFTER_DEADLINE: Final = 7200.0
"""Seconds for which a run is waited for after its deadline, if its `max_wait` is not set."""


def read_count(value: Any, least: int | None) -> int:
    """Convert a count. Raises ``ValueError`` if it is no whole number, or less than ``least``."""
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a whole number") from None
    if count > MOST_COUNT:
        raise ValueError(f"{value!r:.60} is more than {MOST_COUNT:,}")
    if count != float(value) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    if least is not None and count < least:
        raise ValueError(f"{count} is less than {least}")
    return count


def read_timeout(name: str, value: object) -> float:
    """Convert a timeout to seconds. Raises `ActorConfigurationError` if it is invalid or 0."""
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ActorConfigurationError(f"{name}: {error}") from None
    if not seconds:
        raise ActorConfigurationError(f"{name}: it must be more than 0s")
    return seconds


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types, the words and the metadata of an annotation."""
    if not (arguments := get_args(annotation)):
        yield annotation
    for argument in arguments:
        yield from _parts(argument)


_KINDS = {bool: Kind.SWITCH, int: Kind.COUNT, str: Kind.TEXT}


def rows(scope: Scope, annotations: Mapping[str, Any], defaults: object) -> Iterator[Setting]:
    """Yield a setting for each annotated field; ``defaults`` has their values as attributes."""
    for name, annotation in annotations.items():
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


def from_environment(name: str) -> str | None:
    """Return the value of ``CLAUDE_BATCH_<NAME>``; None if it is unset or empty."""
    return os.environ.get(ENVIRONMENT_PREFIX + name.upper()) or None


# The settings -------------------------------------------------------------------------------------

Duration = Annotated[float, Kind.DURATION]
"""Seconds, in the notation of `claude_batch.core.quantities`."""

Dollars = Annotated[Decimal, Kind.DOLLARS]
"""Dollars, as `claude_batch.core.quantities` reads them."""


Count = Annotated[int, msgspec.Meta(ge=0)]


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Locations of a provider's ledger, API and key."""

    ledger: Annotated[
        str | None, Flag("The ledger; by default in your data directory", metavar="PATH|URL")
    ] = None
    """A path, or a URL of SQLite or PostgreSQL. Default: ``ledger.db`` in the user's data
    directory."""
    base_url: Annotated[
        str | None, Flag("The API; by default the value of ANTHROPIC_BASE_URL", metavar="URL")
    ] = None
    """The URL of the API. Default: ``ANTHROPIC_BASE_URL``, then Anthropic's API."""
    api_key_env: Annotated[
        str, Flag("The environment variable with the API key", metavar="NAME")
    ] = "ANTHROPIC_API_KEY"
    """The environment variable that holds the API key."""
    state_dir: str | None = None
    """The directory of each ledger's high-water mark, which must not be lost with the ledger: an
    absolute path, or one that begins with ``~``. Default: the user's state directory.
    """


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
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
    """How long a halted workspace waits before the first probe, at most a day; each refused probe
    doubles it, up to an hour."""
    allow_tools_from_ledger: Annotated[
        bool, Flag("Import the tools that the ledger names: code that its writer chose")
    ] = False
    """Whether functions are imported because a run in the ledger names them. Anyone who can write
    the ledger can then choose code that this process runs.
    """
    requests_per_minute: Annotated[
        Count | None, Flag("The most live calls in any minute; 0: no limit", bounded=True)
    ] = None
    """The most live calls of a workspace in any minute, whatever the API allows. It is stored in
    the ledger, and holds for all its processes. 0 removes it. Default: the stored value."""
    tokens_per_minute: Annotated[
        Count | None,
        Flag("The most tokens of live calls in any minute; 0: no limit", bounded=True),
    ] = None
    """The most input and output tokens of a workspace's live calls in any minute, as they are
    estimated before a call and corrected by its answer. Stored as `requests_per_minute` is."""
    batches_per_hour: Annotated[
        Count | None, Flag("The most batches in any hour; 0: no limit", bounded=True)
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

PROVIDER_ROWS = tuple(
    rows("provider", get_type_hints(ProviderSettings, include_extras=True), ProviderSettings())
)
LEDGER_ROWS = tuple(
    rows("ledger", get_type_hints(LedgerSettings, include_extras=True), LedgerSettings())
)


# Where values come from


def invalid_setting(name: str, where: str, reason: str) -> ActorConfigurationError:
    """Return the error of a setting; ``where`` is its source: its name for a keyword or a flag."""
    if where == name:
        return ActorConfigurationError(reason, setting=name)
    return ActorConfigurationError(f"{where}: {reason}")


def check_arguments(kind: type | tuple[type, ...] = str, /, **given: object) -> None:
    """Raise `ActorConfigurationError` for an argument that is neither None nor of the ``kind``.

    The message does not show the value, which may be a secret.
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, kind):
            needed = "True or False" if kind is bool else "a text"
            reason = f"must be {needed}, not {type(value).__name__}"
            raise ActorConfigurationError(reason, setting=name)


def url_text(given: Any) -> Any:
    """Return a URL object, such as the ``base_url`` of an SDK client, as its text."""
    return str(given) if type(given).__name__ == "URL" else given


def resolve_ledger_settings(overrides: Mapping[str, Any] | None = None) -> LedgerSettings:
    """Merge keywords and environment into the settings of a ledger.

    Raises `ActorConfigurationError` that names the source of the wrong value.
    """
    settings = LedgerSettings()
    for row in LEDGER_ROWS:
        value, where = (overrides or {}).get(row.name), row.name
        if value is None:
            value, where = from_environment(row.name), row.variable
        if value is not None:
            try:
                settings = msgspec.structs.replace(settings, **{row.name: row.read(value)})
            except ValueError as error:
                raise invalid_setting(row.name, where, str(error)) from None
    return settings


# Where the ledger is ------------------------------------------------------------------------------

_PASSWORDS = (
    # Up to the last @, because a password may have an @, a ? or a # that was not encoded.
    re.compile(r"(?<=://)(?P<before>[^:/?#@]*:).*@", re.DOTALL),
    re.compile(r"(?P<before>[?&][^=&]*password=)[^&#]*"),
)

_PLACE = re.compile(r"[^/]*/*(?:[^:/@]*(?::[^@]*)?@)?[^?]*")
"""A URL up to its options; its password may have a ? that was not encoded."""

_SQLITE = re.compile(r"(sqlite[^:]*:///)([^?]+)(\?.*)?", re.DOTALL)
"""A URL of SQLite, the path in it, and its options."""

_IN_MEMORY = re.compile(r"sqlite[^:]*://(/:memory:)?(\?.*)?", re.DOTALL)

_MASKED = re.compile(r"://[^:/?#@]*:\*\*\*@|[?&][^=&]*password=\*\*\*(?:[&#]|$)")
"""What `without_password` leaves of a URL's password."""

_LIBPQ = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=")


def without_password(location: str) -> str:
    """Return a path or URL as it is shown to people: ``***`` stands for a password."""
    if "://" not in location:
        return location
    authority, options = _PASSWORDS
    return options.sub(r"\g<before>***", authority.sub(r"\g<before>***@", location))


def default_ledger(explicit: str | os.PathLike[str] | None = None) -> str:
    """Return the ledger to use: the argument, ``CLAUDE_BATCH_LEDGER``, or the default path.

    The default is in the user's data directory. The result is text: a path, or a URL with ``://``.
    A process that lives longer than a command makes it absolute (`absolute_ledger`). Raises
    `LedgerError` for libpq's own form, which as a path would be shown with its password, for a URL
    that was copied from a message, without its password, and for a database in memory, and
    `ActorConfigurationError` for a value that is no text or path.
    """
    check_arguments((str, os.PathLike), ledger=explicit)
    given = from_environment("ledger") if explicit is None else os.fspath(explicit)
    if given is not None:
        if _LIBPQ.match(given):
            raise LedgerError(
                "the ledger is given in libpq's words (host=…), and a URL is needed: "
                "postgresql://USER:PASSWORD@HOST:5432/DATABASE. A file of such a name is written "
                "./host=…"
            )
        if _MASKED.search(given):
            raise LedgerError(
                "the ledger's URL has *** for its password, as messages show it. Set "
                f"{ENVIRONMENT_PREFIX}LEDGER to the URL with its password, and leave out --ledger; "
                "or write the password"
            )
        if given == ":memory:" or _IN_MEMORY.fullmatch(given):
            raise LedgerError(
                f"the ledger {given} would be lost with its process, and with it the answers that "
                "are paid for; name a file, for a test one in a temporary folder"
            )
        return given
    from platformdirs import user_data_path

    folder = in_home("the default ledger", lambda: user_data_path("claude-batch", appauthor=False))
    return str(folder / "ledger.db")


def in_home(what: str, find: Callable[[], Path]) -> Path:
    """Return a path that may be in a home directory. Raises `LedgerError` if there is none."""
    try:
        return find()
    except RuntimeError:
        raise LedgerError(
            f"{what} is in a home directory that does not exist. Set HOME, or CLAUDE_BATCH_LEDGER "
            "and CLAUDE_BATCH_STATE_DIR to absolute paths"
        ) from None


_relative: dict[str, str] = {}
"""The locations that were given as relative ones, by their absolute form."""


def absolute_ledger(location: str) -> str:
    """Return a ledger's path, or the path in a URL of SQLite, as an absolute one.

    A process may change its directory before the ledger is opened, or opened again after a fork.
    Another ledger would then be used, in which the requests that are paid for are unknown. Raises
    `LedgerError`.
    """
    prefix, path, options = "", location, ""
    if "://" in location:
        if (url := _SQLITE.fullmatch(location)) is None:
            return location
        prefix, path, options = url.groups(default="")
    if path.startswith("~"):  # of the user's home, wherever the process is
        return location
    try:
        absolute = str(Path(path).absolute())
    except FileNotFoundError:
        raise LedgerError(
            f"the ledger {location} is relative to the current directory, which was deleted; give "
            "an absolute path"
        ) from None
    found = f"{prefix}{absolute}{options}"
    if found != location:
        _relative[found] = location
    return found


def is_default_ledger(location: str) -> bool:
    """Return whether a command uses this ledger if none is named."""
    try:
        used = absolute_ledger(default_ledger())
        return without_password(absolute_ledger(location)) == without_password(used)
    except LedgerError:  # the variable has no location
        return False


_COMMAND = re.compile("`(claude-batch [^`]+)`")


def naming_ledger(message: str, location: str) -> str:
    """Return a message whose commands name their ledger, unless they use it by default.

    The commands of the message are in backticks.
    """
    return _COMMAND.sub(lambda found: f"`{command_naming(found[1], location)}`", message)


def command_naming(command: str, location: str) -> str:
    """Return a command that names its ledger, unless it does already, or uses it by default.

    A ledger that was given by a relative path is named so, as long as that leads to it.
    """
    if " --ledger " in command or is_default_ledger(location):
        return command
    if (given := _relative.get(location)) is not None:
        with suppress(LedgerError):  # the current directory was deleted
            if absolute_ledger(given) == location:
                location = given
    return f"{command} --ledger {shlex.quote(without_password(location))}"


def on_server(location: str) -> bool:
    """Return whether a location names a ledger on PostgreSQL."""
    return location.startswith(("postgres:", "postgresql:", "postgresql+psycopg:"))


def with_schema(location: str, schema: str) -> str:
    """Return the URL of a ledger in this schema of its database. Raises `ValueError`."""
    if not on_server(location):
        shown = without_password(location)
        raise ValueError(f"{shown} is a file; only a ledger on PostgreSQL has a schema")
    place = _PLACE.match(location)
    assert place is not None
    options = parse_qsl(location[place.end() + 1 :], keep_blank_values=True)
    others = [value for name, value in options if name == "schema" and value != schema]
    if others:
        raise ValueError(f"the ledger's URL names another schema: {others[0]}")
    # Other options may be there several times, such as `host`.
    kept = [(name, value) for name, value in options if name != "schema"]
    return f"{place.group()}?{urlencode([*kept, ('schema', schema)])}"


def has_ledger(location: str) -> bool:
    """Return whether there is a ledger, or a server or a folder that may have one.

    Raises `LedgerError` if its path needs a home directory that is not there.
    """
    if "://" in location:
        return True
    try:
        return in_home(f"the ledger {location}", Path(location).expanduser).exists()
    except OSError:  # opening it reports why it cannot be looked for
        return True


def default_state_dir() -> Path:
    """Return the directory for files that must not be lost with the ledger.

    This is ``CLAUDE_BATCH_STATE_DIR``, or the default directory. Raises `LedgerError` without a
    home directory that it needs, and for a path that is relative: from another directory there
    would be no mark, and a ledger that was restored would send again what it has forgotten.
    """
    if (variable := from_environment("state_dir")) is not None:
        found = in_home(variable, Path(variable).expanduser)
    else:
        from platformdirs import user_state_path

        place = "the default folder of the ledger's high-water mark"
        found = in_home(place, lambda: user_state_path("claude-batch", appauthor=False))
    if not found.is_absolute():
        raise LedgerError(
            f"the folder of the ledger's high-water mark, {found}, is relative to the current "
            "directory. Set CLAUDE_BATCH_STATE_DIR to an absolute path"
        )
    return found
