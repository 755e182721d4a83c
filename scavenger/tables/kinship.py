"""Which table of epochs belongs to a table of seconds: names are paths, and the job leads."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_ancestor(name: str, names: Iterable[str]) -> str | None:
    """Return the longest name that is this one or a folder above it; None if there is none.

    >>> nearest_ancestor("pollux/bert/T4/spread", ["pollux", "pollux/bert", "pollux/be"])
    'pollux/bert'
    """
    above = (other for other in names if name == other or name.startswith(f"{other}/"))
    return max(above, key=len, default=None)
