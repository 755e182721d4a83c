"""Transitions: what may become of a job and of a machine; triggers refuse anything else.

Staying is no transition, and always allowed. Whoever changes these tables writes a migration.
"""

from __future__ import annotations

from collections.abc import Mapping

from scavenger.view import Phase

FINAL = frozenset(phase for phase in Phase if phase.is_final)
FAILING = FINAL - {Phase.SUCCEEDED}

# Before anything was told to a worker nothing can have succeeded; and a search is never taken up
# again. What earlier jobs taught may make it needless.
OF_PHASES: Mapping[Phase, frozenset[Phase]] = {
    Phase.PENDING: FAILING | {Phase.STARTING, Phase.TRAINING},
    Phase.STARTING: FAILING | {Phase.PROBING, Phase.TRAINING},
    Phase.PROBING: FINAL | {Phase.TRAINING},
    Phase.TRAINING: FINAL,
    **{phase: frozenset() for phase in Phase if phase.is_final},
}

# One that is ending may be shown for the first time: it is ending all the same.
OF_MACHINES: Mapping[str, frozenset[str]] = {
    "intended": frozenset({"launched", "ending", "gone"}),
    "launched": frozenset({"ending", "gone"}),
    "ending": frozenset({"gone"}),
    "gone": frozenset(),
}
