"""Values as messages show them: one short printable line, also of values that are long or odd."""

from __future__ import annotations

import math


def show_value(value: object) -> str:
    """Show a value in a message: always one short printable line.

    >>> show_value("4..1"), show_value(float("nan")), show_value([1, 2])
    ('"4..1"', 'NaN', 'a list')
    """
    match value:
        case None | bool():
            return {None: "nothing", True: "true", False: "false"}[value]
        case int():
            return str(value) if value.bit_length() <= 64 else "a number beyond 64 bits"
        case float():
            return _show_float(value)
        case str():
            return f'"{clip_text(value)}"'
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _show_float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return repr(value)


def clip_text(text: str) -> str:
    """Clip text to 80 characters and escape what does not print."""
    clipped = "".join(map(escape_unprintable, text[:81]))
    return clipped if len(clipped) <= 80 else clipped[:79] + "…"


def escape_unprintable(character: str) -> str:
    """Escape a character that does not print."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()
