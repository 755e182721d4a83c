"""`MetricRecorder`: the last values of what a training script tells of itself."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any, Literal

from scavenger.protocol import NotFinite

MAX_METRIC_NAME = 256
# What float() of a script's own object may raise.
CONVERSION_ERRORS = (
    TypeError,
    ValueError,
    RuntimeError,
    ArithmeticError,
    LookupError,
    AttributeError,
)

log = logging.getLogger(__name__)


class MetricRecorder:
    """Keeps the last value of each metric, and which of them were not finite.

    Attributes:
        metrics: Last value of everything recorded.
        not_finite: Metrics that were NaN or infinite at some time.
        has_changed: Whether a value became NaN or infinite, or finite again, since this was unset.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.not_finite: dict[str, NotFinite] = {}
        self.has_changed = False
        self.last_finite: dict[str, float] = {}  # of what is not finite now
        self.left_out: set[str] = set()

    def record_number(self, name: str, value: Any, iteration: int) -> None:
        """Record a value; one that is not a number is skipped and logged once per name."""
        try:
            if not (len(name) <= MAX_METRIC_NAME and name.isprintable()):
                raise ValueError(f"a name is at most {MAX_METRIC_NAME} printable characters")
            number = float(value)
        except CONVERSION_ERRORS as error:
            if name not in self.left_out:
                self.left_out.add(name)
                log.warning("the metric %.80r is skipped: %s", name, error)
            return
        self._watch(name, number, iteration)
        self.metrics[name] = number

    def _watch(self, name: str, number: float, iteration: int) -> None:
        """Record when a value becomes NaN or infinite, and when it is finite again."""
        before, known = self.metrics.get(name), self.not_finite.get(name)
        if math.isfinite(number):
            if known is not None and known.since is not None:
                self._set_not_finite(name, replace(known, since=None))
            return
        if before is not None and math.isfinite(before):
            self.last_finite[name] = before
        if known is None:
            self._set_not_finite(name, NotFinite(spell_non_finite(number), iteration, iteration))
        elif known.since is None:
            self._set_not_finite(name, replace(known, since=iteration))

    def _set_not_finite(self, name: str, now: NotFinite) -> None:
        self.not_finite[name] = now
        self.has_changed = True

    def finite_metrics(self) -> dict[str, float]:
        """Return the last finite value of each metric that ever had one."""
        known = {
            name: value if math.isfinite(value) else self.last_finite.get(name)
            for name, value in self.metrics.items()
        }
        return {name: value for name, value in known.items() if value is not None}


def spell_non_finite(value: float) -> Literal["NaN", "Infinity", "-Infinity"]:
    """Write a value that is not finite.

    >>> [spell_non_finite(float(each)) for each in ("nan", "inf", "-inf")]
    ['NaN', 'Infinity', '-Infinity']
    """
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


STALENESS_MEMORY = 0.9  # of the smoothed staleness, per push


def smooth_staleness(before: float | None, pushed: int) -> float:
    """Return the staleness smoothed over about ten pushes.

    Args:
        before: What it was; None before the first push.
        pushed: Updates by others that the newest push was computed without.
    """
    if before is None:
        return float(pushed)
    return STALENESS_MEMORY * before + (1 - STALENESS_MEMORY) * pushed
