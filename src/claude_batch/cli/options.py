"""Arguments and flags that commands share, their completion in a shell, and what they open.

An argument names a run, a request or a file; a flag is a row of the table of settings. They open a
ledger, which a command that reads must not create, or a provider.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec
from click.core import ParameterSource

from claude_batch.cli.user_messages import complete_commands, say
from claude_batch.core.errors import ActorConfigurationError, RunNotFoundError
from claude_batch.core.quantities import nano_dollars, parse_duration, usd
from claude_batch.core.settings import (
    ASKING,
    ENVIRONMENT_PREFIX,
    LEDGER_ROWS,
    PROVIDER_ROWS,
    SERVING,
    Commands,
    Kind,
    Setting,
    default_ledger,
    from_environment,
    has_ledger,
    on_server,
    without_password,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from claude_batch.core.batch_processing import BatchProcessingMode
    from claude_batch.core.events import ObserverLike
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.batch import ClaudeBatchProvider
    from claude_batch.providers.export import Format
    from claude_batch.sandbox.sandbox_settings import Responder

# The ledger ---------------------------------------------------------------------------------------


def is_there(location: str) -> bool:
    """Return whether there is a ledger, without creating one. Raises `LedgerError`."""
    if not on_server(location):
        return has_ledger(location)
    from claude_batch.ledger.store import exists_on_server

    return exists_on_server(location)


@contextmanager
def existing_ledger(given: str | None) -> Generator[Ledger]:
    """Open the ledger of a command that reads one. Raises `RunNotFoundError` and `LedgerError`."""
    location = default_ledger(given)
    require_ledger(location)
    from claude_batch.ledger.store import Ledger

    with closing(Ledger(location)) as ledger:
        yield ledger


def require_ledger(location: str) -> None:
    """Raise `RunNotFoundError` if there is no ledger; reading must not create one."""
    reading_options(location)  # so that commands in messages have the flags that were typed
    if not is_there(location):
        raise RunNotFoundError(
            f"there is no ledger at {without_password(location)} yet; `claude-batch run` creates it"
        )


# Arguments and their completion -------------------------------------------------------------------

_MOST_OFFERED = 50
"""Runs, and ids of requests, that are offered at once."""

# Shells split words at some characters and interpret others, and a script inserts an id as it is: a
# key may be `$(command)`.
_SAFE = re.compile(r"[\w./][\w./-]*")


def complete_files(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """Let the shell complete the name of a file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="file")]


def complete_folders(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """Let the shell complete the name of a folder."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="dir")]


def complete_runs(
    context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """Complete the id of a run, the newest first."""

    def find(ledger: Ledger) -> list[str]:
        from claude_batch.ledger.queries import recent_runs

        with ledger.read() as tx:
            return [row.id for row in recent_runs(tx, _MOST_OFFERED)]

    return _from_ledger(context, typed, find)


def complete_requests(
    context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """Complete the id of a request of the run that was typed before."""

    def find(ledger: Ledger) -> list[str]:
        from claude_batch.ledger.page_queries import keys_of
        from claude_batch.providers.status import require_run

        with ledger.read() as tx:
            run = require_run(ledger, tx, context.params["run_id"])
            return keys_of(tx, run.id, typed, _MOST_OFFERED)

    return _from_ledger(context, typed, find)


def _from_ledger(
    context: click.Context, typed: str, find: Callable[[Ledger], list[str]]
) -> list[CompletionItem[str]]:
    """Return the words of the ledger that can be typed. Never raises an `Exception`."""
    from click.shell_completion import CompletionItem

    # A message would be written into the line that is being typed.
    logging.disable()
    words: list[str] = []
    given = context.params.get("ledger")
    with suppress(Exception), context.scope(cleanup=False), existing_ledger(given) as ledger:
        words = find(ledger)
    logging.disable(logging.NOTSET)
    return [
        CompletionItem(word)
        for word in words
        if word.startswith(typed) and _SAFE.fullmatch(word) is not None
    ]


# Flags of settings --------------------------------------------------------------------------------

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")
_V = TypeVar("_V")


class Written(click.ParamType[_T]):
    """A value in a text form of its own; reports what is wrong with an invalid one."""

    def __init__(self, name: str, read: Callable[[Any], _T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _T:
        """Implement click's hook: parse the text."""
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION: Written[float] = Written("duration", parse_duration)
"""A duration such as ``30s``; in seconds."""

DOLLARS: Written[Decimal] = Written("usd", lambda value: usd(nano_dollars(value)))
"""An amount such as ``20`` or ``0.50``."""


class _Switch(click.types.BoolParamType):
    """True or false, or one of these words, which only an environment variable can contain."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Implement click's hook: parse the text."""
        return value if value in self._words else super().convert(value, param, ctx)


def require_value(context: click.Context, parameter: click.Parameter, value: _V) -> _V:
    """Refuse an empty value, which is usually an unset variable of the shell; click's callback.

    An empty output would be found only when the answers are paid for, and the budget of an actor
    without a name would limit nothing.
    """
    given: object = value
    if given == "" or (isinstance(given, tuple) and "" in cast("tuple[object, ...]", given)):
        is_flag = isinstance(parameter, click.Option)
        name = max(parameter.opts, key=len) if is_flag else parameter.human_readable_name
        omit = "" if parameter.required else ", or leave it out"
        raise click.UsageError(f"{name.strip('[].')} is empty; give a value{omit}", context)
    return value


run_argument: Callable[..., Any] = click.argument(
    "run_id", metavar="RUN", shell_complete=complete_runs, callback=require_value
)

optional_run_argument: Callable[..., Any] = click.argument(
    "run_id", metavar="[RUN]", required=False, shell_complete=complete_runs, callback=require_value
)


_STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def output_path(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Return OUT, or None if it names standard output; click's callback.

    A file to which the shell directs standard output (``>>all.jsonl``) would be replaced by its
    other names.
    """
    value = require_value(context, parameter, value)
    return None if value in _STDOUT else value


_TYPES: Mapping[Kind, click.ParamType[Any]] = {
    Kind.DURATION: DURATION,
    Kind.DOLLARS: DOLLARS,
    Kind.COUNT: click.INT,
}


_LIGHT = {row.name: row for row in (*PROVIDER_ROWS, *LEDGER_ROWS)}
"""The settings that need no import of pydantic: those of commands that only read the ledger."""


def _settings() -> Mapping[str, Setting]:
    from claude_batch.core.batch_processing import SETTINGS

    return SETTINGS


class _SettingOption(click.Option):
    """A flag whose errors name its environment variable, if the value is from there."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = None if ctx is None else ctx.get_parameter_source(self.name or "")
        if source is ParameterSource.ENVIRONMENT:
            return f"the environment variable {self.envvar}"
        return " / ".join(f"'{flag}'" for flag in self.opts)


def option(name: str) -> Callable[[_F], _F]:
    """Add a setting's flag to a command, which receives the value under the setting's name."""
    setting = _LIGHT.get(name) or _settings()[name]
    assert setting.flag is not None, f"{name} has no flag"
    attributes: dict[str, Any] = {}
    if setting.kind is Kind.SWITCH:
        attributes.update(default=None, is_flag=True, type=_Switch(setting.choices))
    elif setting.kind is Kind.CHOICE:
        attributes["type"] = click.Choice(setting.choices)
    elif setting.flag.bounded:
        attributes["type"] = click.IntRange(min=setting.least)
    elif setting.kind in _TYPES:
        attributes["type"] = _TYPES[setting.kind]
    attributes["callback"] = _callback_of(setting)
    if setting.flag.metavar in ("FILE", "PATH|URL"):
        attributes["shell_complete"] = complete_files
    return click.option(
        "/".join(setting.flags),
        name,
        cls=_SettingOption,
        metavar=setting.flag.metavar or ("N" if setting.kind is Kind.COUNT else None),
        envvar=setting.variable,
        show_envvar=True,
        help=setting.help,
        **attributes,
    )


def _callback_of(setting: Setting) -> Callable[..., Any]:
    def check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is None:
            _check_spelling(setting.name)
        return require_value(context, parameter, value) if setting.kind is Kind.TEXT else value

    return check


def _check_spelling(name: str) -> None:
    """Raise `ActorConfigurationError` if a setting seems to be in a misspelled variable.

    A provider checks all variables. Commands without one would read another ledger.
    """
    others = [
        variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        for variable in os.environ
        if variable.startswith(ENVIRONMENT_PREFIX)
    ]
    if not others:
        return
    import difflib  # late, because each command comes here and few environments have a variable

    if difflib.get_close_matches(name, others, n=1, cutoff=0.8):
        from claude_batch.core.batch_processing import check_environment

        check_environment()  # which knows the names of all settings


def _named(commands: Commands) -> list[str]:
    """Return the settings whose flags these commands accept."""
    return [
        name
        for name, setting in _settings().items()
        if setting.flag is not None and setting.flag.commands == commands
    ]


def add_all(command: Any, decorators: Sequence[Callable[[Any], Any]]) -> Any:
    """Return a command with these decorators, as if they were written above it in this order."""
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def format_option(command: _F) -> _F:
    """Add ``--format`` and ``--csv-safe`` to a command, which receives both as ``form``."""

    @functools.wraps(command)  # which copies the options that it has already
    def wrapped(*args: Any, form: Format | None, csv_safe: bool, **given: Any) -> Any:
        if csv_safe and form == "jsonl":
            raise click.UsageError("--csv-safe writes CSV; leave out --format jsonl")
        output: str | None = given.get("output")
        if csv_safe and output is not None and output.lower().endswith((".jsonl", ".ndjson")):
            raise click.UsageError(
                f"--csv-safe writes CSV, and {output} is a name of JSON lines; give a name in .csv"
            )
        return command(*args, form="csv-safe" if csv_safe else form, **given)

    with_safety = click.option(
        "--csv-safe",
        is_flag=True,
        help="Write CSV in which no text is read as a formula: an apostrophe is put before text "
        "that begins with =, +, -, @, a tab or a carriage return.",
    )
    with_format = click.option(
        "--format",
        "form",
        type=click.Choice(["jsonl", "csv"]),
        help="The format of OUT. By default CSV if its name ends in .csv, else JSON lines.",
    )
    return add_all(wrapped, [with_format, with_safety])


folder_option: Callable[[Any], Any] = click.option(
    "--results-dir",
    metavar="DIR",
    shell_complete=complete_folders,
    callback=require_value,
    help="A folder for one JSON file per result, the API's own lines, and a summary.",
)

_NEEDED_AGAIN = [row.name for row in PROVIDER_ROWS if row.flag]
"""Options that a later command needs again to find the same run and server."""

_READING = ("budget", "cost", "export", "ledger backup", "ledger show", "show", "status", "unknown")
"""Commands in hints that have only the first of these flags, ``--ledger``."""

_WITHOUT_LEDGER = ("actors", "completion", "ledger copy", "sandbox")
"""Commands in hints that have none of them."""

_COMMAND = re.compile("`claude-batch ([^`]+)`")

_PROMISE = re.compile(
    r"(?:[;:,.] (?:everything is kept|it stays in the ledger))?"
    r"[;:,.] [^;:.`]*`claude-batch [^`]+`[^;:.`]*|[:.] Everything stored before is kept(?=;)"
)
"""A clause of a message that names a command, or that says that the ledger keeps something."""


class ProviderOptions(msgspec.Struct, frozen=True):
    """The settings passed to a command, and the flags to repeat them."""

    settings: Mapping[str, Any]
    """The provider's keywords; None for those that were not given."""
    sandbox: bool = False
    """Whether everything happens in a sandbox that ends with the command."""
    typed: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The settings that a later command needs too, as they were typed but for a URL's password."""

    @property
    def location(self) -> str:
        """Return the ledger that these options name."""
        return default_ledger(self.settings.get("ledger"))

    @property
    def key_variable(self) -> str:
        """Return the environment variable that holds the key."""
        setting = _LIGHT["api_key_env"]
        given = self.settings.get(setting.name) or from_environment(setting.name)
        return given or setting.default

    def command(self, verb: str, *words: str, base_url: str | None = None) -> str:
        """Return a command for the same ledger and server, ready to be typed.

        ``base_url`` is that of the server, if it is another one.
        """
        given = dict(self.typed)
        if base_url is not None:
            given["base_url"] = without_password(base_url)
        accepted = ["ledger"] if verb.startswith(_READING) else _NEEDED_AGAIN
        flags = [
            f"{flag} {shlex.quote(given[name])}"
            for name in ([] if verb.startswith(_WITHOUT_LEDGER) else accepted)
            # A message of the library names the base URL of the run.
            if name in given and (flag := _LIGHT[name].flags[0]) not in verb
        ]
        return " ".join(("claude-batch", verb, *words, *flags))

    def completed(self, message: str) -> str:
        """Return a message of the library, its commands with the flags that were typed.

        The library writes commands in backticks, and knows no flags.
        """
        return _COMMAND.sub(lambda found: f"`{self.command(found[1])}`", message)

    def at_end(self, message: str) -> str:
        """Return a message of the library about a run of which the command leaves the ledger.

        With ``--sandbox`` the ledger ends with the command, so no other command can do anything.
        """
        return _PROMISE.sub("", message) if self.sandbox else self.completed(message)

    def how_to_retry(self, run_id: str, *, retried: bool) -> str:
        """Return the hint on what to do about failures; ``retried``: `retry` sends some again."""
        if self.sandbox:
            return self.how_to_go_on(run_id)
        again = f"; send them again with: {self.command('retry', run_id)}" if retried else ""
        return f"see them with: {self.command('status', run_id)}{again}"

    def how_to_go_on(self, run_id: str, changed: str = "") -> str:
        """Return the hint on how to continue a run.

        With ``--sandbox`` only another trial is possible, with the option that is ``changed``.
        """
        if self.sandbox:
            repeat = f"Repeat the command with {changed}" if changed else "Repeat the command"
            return (
                f"the trial is over, and the sandbox and its ledger were removed. {repeat}; or "
                "start `claude-batch sandbox` and set ANTHROPIC_BASE_URL, so that a ledger keeps "
                "the runs"
            )
        return f"continue with: {self.command('resume', run_id)}"


def reading_options(ledger: str | None) -> ProviderOptions:
    """Return the options of the running command, which reads a ledger and has no provider."""
    options = ProviderOptions({"ledger": ledger}, typed=_typed(click.get_current_context()))
    complete_commands(options.completed)
    return options


def run_options(command: _F) -> _F:
    """Add the flags of commands that submit a run; `ProviderOptions` holds them too."""
    return add_all(command, [option(name) for name in _named(ASKING)])


def provider_options(command: _F) -> _F:
    """Add the flags of all commands with a provider; they receive one `ProviderOptions`."""

    @functools.wraps(command)  # which copies the options that it has already
    def wrapped(*args: Any, **given: Any) -> Any:
        context = click.get_current_context()
        _refuse_unused(context)
        _warn_of_unused(context)
        names = [*_named("all"), *_named(ASKING), *_named(SERVING)]
        settings = {name: given.pop(name) for name in names if name in given}
        options = ProviderOptions(settings, given.pop("sandbox", False), _typed(context))
        complete_commands(options.completed)
        try:
            return command(*args, options=options, **given)
        except ActorConfigurationError as error:
            if error.setting is None:
                raise
            raise _as_typed(error, error.setting, context) from None

    return add_all(wrapped, [option(name) for name in _named("all")])


def _is_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _refuse_unused(context: click.Context) -> None:
    """Raise `click.UsageError` for a flag that contradicts another one."""
    for name in _NEEDED_AGAIN if context.params.get("sandbox") else ():
        if _is_typed(context, name):
            raise click.UsageError(
                "--sandbox has a ledger, an API and a key of its own, so "
                f"{_settings()[name].flags[0]} would do nothing; leave out one of them"
            )


_BEGINNING = ("run", "submit", "estimate", "gateway")
"""Commands that begin runs or calls, and so use all of their settings."""

_WAITING = {"max_wait", "on_timeout", "poll_interval"}
"""Settings of a run that every command which waits for it uses."""


def unused_flags(command: str) -> list[str]:
    """Return the settings of a run whose flags do nothing in a command, because it begins none."""
    return [
        name
        for name, setting in _settings().items()
        if setting.scope == "run" and name not in _WAITING and command not in _BEGINNING
    ]


def _warn_of_unused(context: click.Context) -> None:
    """Warn about flags that do nothing in this command or for this ledger.

    They are accepted, because scripts give the same flags to several commands.
    """
    if _is_typed(context, "resubmit_after") and context.params["on_unknown"] != "resubmit":
        _warn("resubmit_after", "does nothing without --on-unknown resubmit")
    for name in ("heartbeat", "take_over"):
        if _is_typed(context, name) and not _uses_server(context):
            _warn(name, "needs a ledger on PostgreSQL")
    for name in unused_flags(context.info_name or ""):
        if _is_typed(context, name):
            _warn(
                name,
                "does nothing here, because a run keeps its settings; repeat the command that "
                "began it to change those that may change",
            )


def _uses_server(context: click.Context) -> bool:
    sandbox = context.params.get("sandbox", False)
    return not sandbox and on_server(default_ledger(context.params["ledger"]))


def warn_of_unused_settings(configured: bool | BatchProcessingMode) -> None:
    """Warn about flags of a run that need another setting, if no source has that.

    ``configured`` is the actor's ``batch_processing``. Raises `ActorConfigurationError`.
    """
    context = click.get_current_context()
    from claude_batch.core.batch_processing import resolve_mode

    mode = resolve_mode(configured, context.params)
    goes_live = mode.mode != "batch" or (mode.deadline is not None and mode.fallback == "live")
    needs = {
        "auto_threshold": (mode.mode == "auto", "--mode auto"),
        "deadline_margin": (mode.deadline is not None, "--deadline"),
        "fallback": (mode.deadline is not None, "--deadline"),
        "live_concurrency": (goes_live, "--mode live, --mode auto or --deadline"),
        "live_retry": (goes_live, "--mode live, --mode auto or --deadline"),
        "max_requests": (mode.mode != "live", "--mode batch or --mode auto"),
        "parallel_batches": (mode.mode != "live", "--mode batch or --mode auto"),
    }
    for name, (is_met, other) in needs.items():
        if not is_met and _is_typed(context, name):
            _warn(name, f"does nothing without {other}")


def _warn(name: str, why: str) -> None:
    say(f"warning: {_settings()[name].flags[0]} {why}")


def _as_typed(
    error: ActorConfigurationError, name: str, context: click.Context
) -> ActorConfigurationError:
    """Return the error of a setting with the name of its flag or environment variable."""
    setting, source = _settings()[name], context.get_parameter_source(name)
    if source is ParameterSource.COMMANDLINE:
        written = setting.flags[0]
    elif source is ParameterSource.ENVIRONMENT:
        written = setting.variable
    else:
        return error
    return ActorConfigurationError(f"{written}{str(error).removeprefix(name)}")


def _typed(context: click.Context) -> dict[str, str]:
    # Hints end up in logs, which must not have the password of a URL.
    return {
        name: without_password(context.params[name])
        for name in _NEEDED_AGAIN
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


# The provider -------------------------------------------------------------------------------------

_GARBAGE = (50_000, 25, 100)
"""Thresholds of Python's cycle collector. A stream of flat rows has hardly any cycle, and costs a
tenth more at the default rate."""

_SANDBOX_LATENCY = 1.0
_SANDBOX_POLL_INTERVAL = 0.2
"""Seconds; with ``--sandbox`` a batch ends soon, but only a poll notices it."""


def import_provider() -> type[ClaudeBatchProvider]:
    """Import the provider and its dependencies: most of what a command imports.

    The import creates half a million permanent objects. Without the freeze, the cycle collector
    would scan them again and again.
    """
    from claude_batch.providers.batch import ClaudeBatchProvider

    gc.freeze()
    gc.set_threshold(*_GARBAGE)
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
    options: ProviderOptions,
    *,
    drive: bool = True,
    observers: Sequence[ObserverLike] = (),
    responder: Responder | None = None,
) -> Generator[ClaudeBatchProvider]:
    """Yield a provider with these options, parked and closed when the block ends.

    With ``options.sandbox``, a sandbox with its own ledger runs for this block alone: no data of
    the user is touched. ``responder`` makes its answers.
    """
    provider_class = import_provider()
    settings: dict[str, Any] = {**options.settings, "observers": observers}
    if not options.sandbox:
        with provider_class(drive=drive, **settings) as provider:
            yield provider
        return
    try:
        from claude_batch.sandbox import SandboxServer, SandboxSettings
    except ImportError as error:
        raise click.UsageError(str(error)) from None
    with (
        tempfile.TemporaryDirectory(prefix="claude-batch-sandbox-") as folder,
        _state_in(folder),
        SandboxServer(
            SandboxSettings(latency=_SANDBOX_LATENCY, uses_tools=True, responder=responder)
        ) as server,
    ):
        settings.update(ledger=f"{folder}/ledger.db", base_url=server.url)
        settings["poll_interval"] = settings["poll_interval"] or _SANDBOX_POLL_INTERVAL
        with provider_class(api_key="sk-sandbox", **settings) as provider:
            say(
                f"sandbox at {server.url}: answers are made up, nothing leaves this machine, and "
                "nothing is billed"
            )
            yield provider
