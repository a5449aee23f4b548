"""Amounts of money: as people write them, and as integer nano-dollars in the ledger."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

_NANO_DIGITS: Final = 9
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
