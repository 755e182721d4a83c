"""How an amount of money is rounded, and written for people: one format, wherever it is shown."""

from __future__ import annotations

import math
from decimal import Decimal


def format_dollars(amount: float) -> str:
    """Write dollars with cents; below one cent with three significant digits.

    >>> [format_dollars(amount) for amount in (1234.5, 0.05, 0.0123, 0.00765, 0.000076, 0)]
    ['$1,234.50', '$0.05', '$0.01', '$0.00765', '$0.0000760', '$0.00']
    """
    sign, size = "-" if amount < 0 else "", abs(amount)
    # What would be rounded up to one cent is written as one.
    if size == 0 or size >= 0.009995:
        return f"{sign}${size:,.2f}"
    return f"{sign}${size:.{min(2 - math.floor(math.log10(size)), 12)}f}"


def format_rate(price_per_hour: float) -> str:
    """Write dollars per hour with all the digits of the price, cents at least.

    >>> format_rate(0.13402), format_rate(2.5)
    ('$0.13402/h', '$2.50/h')
    """
    whole, _, fraction = f"{price_per_hour:,.10f}".rstrip("0").partition(".")
    return f"${whole}.{fraction:0<2}/h"


def forecast_dollars(amount: float) -> Decimal:
    """Return dollars of a forecast with 7 digits, which is more than any forecast has.

    >>> str(forecast_dollars(1.23456789)), f"{forecast_dollars(1e-7):f}"
    ('1.234568', '0.0000001')
    """
    return Decimal(f"{amount:.7g}")


def optional_dollars(amount: float | None) -> Decimal | None:
    """Return dollars of a forecast, if there are any."""
    return None if amount is None else forecast_dollars(amount)
