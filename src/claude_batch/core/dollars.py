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
        raise ValueError(f"{value!r} is no sum of dollars; write for example 20 or 0.50")
    text = value.strip().removeprefix("$") if isinstance(value, str) else str(value)
    try:
        dollars = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{value!r} is no sum of dollars; write for example 20 or 0.50") from None
    if not dollars.is_finite() or not 0 <= dollars <= MOST_USD:
        raise ValueError(f"{value} is no sum from 0 to {MOST_USD:,} dollars")
    nano = dollars.scaleb(_NANO_DIGITS)
    if nano != nano.to_integral_value():
        raise ValueError(f"{value} has more than nine decimal places")
    return int(nano)


def usd(nano: int) -> Decimal:
    """Convert nano-dollars to dollars, exactly."""
    return Decimal(nano).scaleb(-_NANO_DIGITS)


def write_usd(nano: int) -> str:
    """Format as ``$20``, ``$0.50`` or ``$0.000145``: exact, with as many decimals as needed."""
    text = f"{usd(nano):,f}".rstrip("0").rstrip(".")
    whole, dot, rest = text.partition(".")
    return f"${whole}.{rest:0<2}" if dot else f"${whole}"
