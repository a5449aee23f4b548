"""`Setting`: one row of the table of settings, read from a field of a class.

The fields are in `claude_batch.core.settings`, so that type checkers see the type of each value.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel

from claude_batch.core.dollars import nano_dollars, usd
from claude_batch.core.durations import format_duration, parse_duration

ENVIRONMENT_PREFIX = "CLAUDE_BATCH_"


class Kind(enum.Enum):
    """The type of a setting's values."""

    DURATION = enum.auto()
    DEADLINE = enum.auto()
    DOLLARS = enum.auto()
    CHOICE = enum.auto()
    COUNT = enum.auto()
    SWITCH = enum.auto()
    TEXT = enum.auto()


Scope = Literal["provider", "run", "ledger"]

Commands = Literal["all", "run, submit, estimate", "run, submit"]
"""Which commands take a flag; ``all``: all that open a provider."""

ASKING: Commands = "run, submit, estimate"


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
