"""Quantities as people read and write them: durations, amounts of money, and counted nouns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

# Counted nouns ------------------------------------------------------------------------------------


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 request`` or ``1,200 requests``; ``plural`` is for nouns without a simple
    ``s``.
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def tally(counts: Mapping[str, int]) -> str:
    """Return ``2 overloaded_error, 1 expired``: counts by a word that has no plural."""
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())


# Durations ----------------------------------------------------------------------------------------

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHORT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_ISO = re.compile(
    r"P(?:(?P<w>\d+(?:\.\d+)?)W)?(?:(?P<d>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_ISO_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


_MOST_YEARS: Final = 100
_LONGEST: Final = _MOST_YEARS * 365.25 * 86400
"""Most seconds of a duration: the times that it leads to can be written."""


def parse_duration(value: object) -> float:
    """Return seconds for a duration as a person writes it.

    Accepts ``50ms``, ``30s``, ``1h30m``, ``7d``, ISO 8601 (``PT1H30M``), a ``timedelta``, or a
    number of seconds (also as text). Raises ``ValueError`` for anything else, and for durations
    that are negative or longer than 100 years.
    """
    seconds: float | None = None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer of hundreds of digits
            seconds = float(value)
    elif isinstance(value, str):
        seconds = _parse_text(value.strip())
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(
            f"{value!r} is not a duration; write 30s, 10m, 24h, 7d, ISO 8601 (PT10M) or seconds"
        )
    if seconds > _LONGEST:
        raise ValueError(
            f"{value!r:.60} is longer than {_MOST_YEARS} years; write a shorter duration"
        )
    return seconds


def _parse_text(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _SHORT.findall(text)
    if parts and re.sub(r"\s+", "", text) == "".join(number + unit for number, unit in parts):
        # Divided, because 0.001 has no exact float and a written duration must read back equal.
        return sum(
            float(number) / 1000 if unit == "ms" else float(number) * _UNITS[unit]
            for number, unit in parts
        )
    iso = _ISO.fullmatch(text)
    if iso and any(iso.groupdict().values()):
        return sum(
            float(number) * _ISO_SECONDS[unit]
            for unit, number in iso.groupdict().items()
            if number is not None
        )
    return None


def roughly(seconds: float) -> str:
    """Format seconds for people: ``45s``, ``12m``, ``3h``, ``3h 20m``, ``2d 4h``."""
    seconds = max(0.0, seconds)
    if seconds < 90:
        return f"{round(seconds)}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 48 * 60:
        return _of_two_units(minutes, 60, "hm")
    return _of_two_units(round(seconds / 3600), 24, "dh")


def _of_two_units(count: int, size: int, units: str) -> str:
    large, small = divmod(count, size)
    return f"{large}{units[0]}" + (f" {small}{units[1]}" if small else "")


def format_duration(seconds: float) -> str:
    """Format seconds in the largest unit that `parse_duration` reads back as the same number."""
    if seconds and seconds < 1 and round(seconds * 1000, 6).is_integer():
        return f"{round(seconds * 1000)}ms"
    for unit in ("d", "h", "m"):
        size = _UNITS[unit]
        if seconds >= size and (seconds / size).is_integer():
            return f"{int(seconds / size)}{unit}"
    short = f"{seconds:.15g}"
    # All digits if it has an exponent, or does not read back as the same number.
    is_exact = "e" not in short and float(short) == seconds
    return f"{short}s" if is_exact else f"{Decimal(repr(float(seconds))):f}s"


def format_time(moment: float) -> str:
    """Format seconds since the epoch as ``2026-11-22 08:00 UTC``."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


_LAST_YEAR: Final = 9000
_SINCE_EPOCH: Final = 1e9
"""Seconds that a caller counted from the epoch: as a deadline's duration, 31 years."""


def parse_deadline(value: object) -> float | datetime:
    """Return seconds for a duration, as `parse_duration` reads it, or a point in time.

    A point in time is ISO 8601 (``2026-11-22T08:00:00Z``, ``2026-11-22 08:00``) or a ``datetime``.
    Without an offset it is this machine's local time. Raises ``ValueError`` for anything else, such
    as seconds since the epoch, which would be a duration of half a century.
    """
    moment: datetime | None = None
    seconds: float | None = None
    if isinstance(value, datetime):
        moment = value
    else:
        with suppress(ValueError):
            seconds = parse_duration(value)
    if seconds is not None:
        if seconds < _SINCE_EPOCH:
            return seconds
        raise ValueError(
            f"{value!r} is a duration, of {seconds / 31_557_600:.0f} years. For a point in time, "
            f"write it as such: {datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
        )
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            moment = None
        # A date without a time could mean the beginning or the end of the day.
        if moment is not None and len(value.strip()) <= len("2026-11-22"):
            moment = None
    if moment is None:
        raise ValueError(
            f"{value!r} is neither a duration nor a time; write 2h, PT2H, or "
            "2026-11-22T08:00:00+01:00"
        )
    try:
        found = moment.astimezone(UTC)
    except (OverflowError, ValueError, OSError):  # of the years 1 and 9999
        found = None
    # The times around it, such as that of its margin, must be valid too.
    if found is None or not 1970 <= found.year <= _LAST_YEAR:
        raise ValueError(f"{value!s} is not a time from 1970 to {_LAST_YEAR}; correct the year")
    return found


def format_deadline(value: float | datetime) -> str:
    """Format a deadline so that `parse_deadline` reads the same value back."""
    return value.isoformat() if isinstance(value, datetime) else format_duration(value)


# Amounts of money ---------------------------------------------------------------------------------

_NANO_DIGITS: Final = 9
NANO: Final = 10**_NANO_DIGITS
"""Nano-dollars in a dollar."""
MOST_USD: Final = 1_000_000_000
"""The highest accepted amount in dollars; its nano-dollars fit into 64 bits."""


def nano_dollars(value: object) -> int:
    """Convert dollars (``20``, ``"0.50"``, ``"$20"``, ``Decimal``, ``float``) to nano-dollars.

    The conversion is exact: a float stands for the shortest number that it prints as. Raises
    ``ValueError`` for values that are no amount of 0 to `MOST_USD` dollars, and for more than nine
    decimal places.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(f"{value!r} is not an amount in dollars; write for example 20 or 0.50")
    text = value.strip().removeprefix("$") if isinstance(value, str) else str(value)
    try:
        dollars = Decimal(text)
    except InvalidOperation:
        raise ValueError(
            f"{value!r} is not an amount in dollars; write for example 20 or 0.50"
        ) from None
    if not dollars.is_finite() or not 0 <= dollars <= MOST_USD:
        raise ValueError(f"{value} is not an amount from 0 to {MOST_USD:,} dollars")
    nano = dollars.scaleb(_NANO_DIGITS)
    if nano != nano.to_integral_value():
        raise ValueError(f"{value} has more than nine decimal places")
    return int(nano)


def usd(nano: int) -> Decimal:
    """Convert nano-dollars to dollars, exactly."""
    return Decimal(nano).scaleb(-_NANO_DIGITS)


def decimal_usd(nano: int, places: int = _NANO_DIGITS, *, separator: str = "") -> str:
    """Format nano-dollars as a decimal number of dollars: ``0.000145000``, ``-1.50``.

    It is exact with nine ``places``; with fewer it is rounded, halves away from zero.
    ``separator`` goes between thousands.
    """
    unit = 10 ** (_NANO_DIGITS - places)
    whole, rest = divmod((abs(nano) + unit // 2) // unit, 10**places)
    return f"{'-' if nano < 0 else ''}{whole:{separator}}.{rest:0{places}d}"


def write_usd(nano: int) -> str:
    """Format as ``$20``, ``$0.50`` or ``-$0.000145``, with no more decimals than needed."""
    whole, _, rest = decimal_usd(abs(nano), separator=",").partition(".")
    rest = rest.rstrip("0")
    return f"{'-' if nano < 0 else ''}${whole}{f'.{rest:0<2}' if rest else ''}"


def dollars(nano: int) -> str:
    """Return ``$1.23``, or as many digits as a small sum needs; exact sums are in --json."""
    if not nano:
        return "$0.00"
    sum_ = abs(nano)
    places = 2 if sum_ >= 10_000_000_000 else 4 if sum_ >= 10_000_000 else 6
    return f"{'-' if nano < 0 else ''}${decimal_usd(sum_, places, separator=',')}"
