"""Checks of numbers where a value is made: a NaN or a negative second would surface far away."""

from __future__ import annotations

import math


def require_not_negative(owner: object, *names: str) -> None:
    """Raise ValueError unless each of these attributes is finite and at least 0, or None."""
    for name in names:
        check_not_negative(name, getattr(owner, name))


def check_not_negative(name: str, value: float | None) -> None:
    """Raise ValueError unless a figure is finite and at least 0, or None."""
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and not negative, got {value}")


def require_above_zero(owner: object, *names: str) -> None:
    """Raise ValueError unless each of these attributes is finite and above 0, or None."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be finite and positive, got {value}")
