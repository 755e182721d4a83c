"""Groups of tables by their names, which are paths: first part, and last where several share it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


def groups_of(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return groups with their members: one by first part, and within it one by last word.

    A last part makes a group where it is a word, not a figure, several tables share it, and
    others end in another word.

    >>> list(groups_of(["p/a/x", "p/b/x", "p/a/y", "p/b/y"]))
    ['p', 'p/*/x', 'p/*/y']
    """
    by_first: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        by_first[name.partition("/")[0]].append(name)
    groups: dict[str, tuple[str, ...]] = {}
    for first, members in by_first.items():
        groups[first] = tuple(members)
        groups |= groups_by_last(first, members)
    return groups


def groups_by_last(first: str, members: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return groups of the tables under one first part that end in the same word."""
    by_last: dict[str, list[str]] = defaultdict(list)
    for name in members:
        last = name.rpartition("/")[2]
        if name.count("/") > 1 and not last.replace(".", "").isdigit():
            by_last[last].append(name)
    shared = {last: names for last, names in by_last.items() if len(names) > 1}
    if len(shared) < 2:
        return {}
    return {f"{first}/*/{last}": tuple(names) for last, names in sorted(shared.items())}
