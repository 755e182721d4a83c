"""Figures and foreign words as people read them; what is unknown is shown as a dash."""

from __future__ import annotations

import math
import re

from rich.text import Text

from scavenger.quantity import format_duration
from scavenger.view import ConfigView, Money, PointView

UNKNOWN = "–"
PLAIN = re.compile(r"(?P<figure>[0-9.]+)(?P<unit>ms|s)")


def number(value: float | None) -> str:
    """Write a number with three significant digits.

    >>> [number(value) for value in (0.98765, 12.0, 1234.5, None)]
    ['0.988', '12', '1,234', '–']
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def span(seconds: float | None) -> str:
    """Write seconds with the unit that fits.

    >>> [span(seconds) for seconds in (0.25, 43.21, 300, None)]
    ['250ms', '43.2s', '5m00s', '–']
    """
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN
    return format_duration(seconds)


def milliseconds(seconds: float | None) -> str:
    """Write the time of an iteration.

    >>> milliseconds(0.01234)
    '12.3 ms'
    """
    return UNKNOWN if seconds is None else f"{number(seconds * 1000)} ms"


def dollars(amount: float | None) -> str:
    """Write dollars: cents, or below ten cents three significant digits.

    >>> [dollars(amount) for amount in (3.4, 0.00123456, 0.0, None)]
    ['$3.40', '$0.00123', '$0.00', '–']
    """
    if amount is None or not math.isfinite(amount):
        return UNKNOWN
    if amount == 0 or abs(amount) >= 0.1:
        return f"${amount:,.2f}"
    return f"${amount:.{min(2 - math.floor(math.log10(abs(amount))), 9)}f}"


def money(value: Money | None) -> str:
    """Write an amount of money in its currency.

    >>> money(Money(amount="0.5"))
    '$0.50'
    """
    if value is None:
        return UNKNOWN
    amount = dollars(float(value.amount))
    return amount if value.currency == "USD" else f"{amount.removeprefix('$')} {value.currency}"


def configuration(config: ConfigView | PointView | None) -> str:
    """Write a configuration.

    >>> configuration(ConfigView(workers=4, global_batch=256))
    'K=4 B=256'
    """
    return UNKNOWN if config is None else f"K={config.workers} B={config.global_batch}"


def time_to_target(seconds: float, basis: str) -> str:
    """Write a time of the curve, which is a multiple of the start's on a relative curve.

    >>> [time_to_target(0.5, basis) for basis in ("total", "relative")]
    ['500ms', '×0.5']
    """
    return f"×{number(seconds)}" if basis == "relative" else span(seconds)


def time_between(low: float, seconds: float, high: float, basis: str) -> str:
    """Write a time of the curve with its interval, where it has one.

    >>> time_between(39.04, 43.21, 47.8, "total"), time_between(0.9, 1.0, 1.1, "relative")
    ('43.2s (39.0–47.8)', '×1 (0.9–1.1)')
    >>> time_between(280.0, 300.0, 320.0, "total"), time_between(2.0, 2.0, 2.0, "total")
    ('5m00s (4m40s–5m20s)', '2.0s')
    """
    middle, *ends = (time_to_target(value, basis) for value in (seconds, low, high))
    if ends[0] == ends[1]:
        return middle
    shorter = [PLAIN.fullmatch(end) for end in (middle, *ends)]
    if all(shorter) and len({found["unit"] for found in shorter if found}) == 1:
        ends = [found["figure"] for found in shorter[1:] if found]
    return f"{middle} ({ends[0].removeprefix('×')}–{ends[1].removeprefix('×')})"


def cost_to_target(amount: float, basis: str) -> str:
    """Write a cost of the curve, which is a multiple of the start's on a relative curve."""
    return f"×{number(amount)}" if basis == "relative" else dollars(amount)


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.643), percent(0.02453)
    ('64 %', '2.5 %')
    """
    return f"{100 * share:.0f} %" if abs(share) >= 0.1 else f"{100 * share:.2g} %"


def counted(count: int, thing: str) -> str:
    """Write how many there are.

    >>> [counted(count, "probe") for count in (0, 1, 2)]
    ['0 probes', '1 probe', '2 probes']
    """
    return f"{count} {thing}{'' if count == 1 else 's'}"


def bar(share: float, width: int) -> str:
    """Draw a share as a bar.

    >>> bar(0.5, 4)
    '██░░'
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def words(text: str, style: str = "") -> Text:
    r"""Take over words of others as they are: no markup, and nothing that steers a terminal.

    >>> words("[red]\x1b[2J").plain
    '[red]\\x1b[2J'
    """
    return Text("".join(map(_visible, text.expandtabs(4))), style)


def _visible(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    return character.encode("unicode_escape", "backslashreplace").decode()
