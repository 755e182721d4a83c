"""Points: the lines before which a controller is killed."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Collection
from random import Random

from tests.crash.crashline import Kill, Line, Lines

RECONCILER = "/service/reconciler/"
SELDOM = 20


def kills_of(run: Lines, killed: Collection[Line]) -> list[Kill]:
    """Return where to kill: after every effect, and at the first run of each line not killed yet.

    Between two effects nothing happens that outlives a process, so any line in between is as good
    as any other; that each such stretch is hit, and that all its hits leave the same, is checked.

    Args:
        run: What a controller executed in this story.
        killed: Lines at which controllers of other stories were killed.
    """
    first: dict[Line, int] = {}
    for at, line in enumerate(run.lines, 1):
        first.setdefault(line, at)
    chosen = {effect + 1 for effect in (0, *run.effects)}
    chosen.update(at for line, at in first.items() if line not in killed)
    return [run.kill(at) for at in sorted(chosen) if at <= len(run.lines)]


def sample_of(kills: list[Kill], run: Lines, most: int, seed: int) -> list[Kill]:
    """Return so many of the kills, at least half of them right after different effects.

    What happens around an effect is where a controller may leave something half done.
    """
    random, after = Random(seed), {effect + 1 for effect in run.effects}
    borders = [kill for kill in kills if kill.at in after]
    chosen = set(random.sample(borders, min(most // 2, len(borders))))
    others = [kill for kill in kills if kill not in chosen]
    chosen.update(random.sample(others, min(most - len(chosen), len(others))))
    return sorted(chosen, key=lambda kill: kill.at)


def borders_of(run: Lines, seen: set[object]) -> list[Kill]:
    """Return one kill after each effect whose place in the reconciler was not seen before.

    And after some of the others, since a place tells little of what is around it.
    """
    kills = []
    for number, effect in enumerate(run.effects):
        rest = itertools.islice(run.lines, effect, None)
        here = next((line for line in rest if RECONCILER in line[0]), None)
        place = (run.lines[effect - 1], here)
        is_one = place not in seen or number % SELDOM == 0
        if is_one and 0 < effect < len(run.lines):
            seen.add(place)
            kills.append(run.kill(effect + 1))
    return kills


def stretch_of(run: Lines, at: int) -> int:
    """Return how many effects happened before a line began."""
    return bisect_left(run.effects, at)
