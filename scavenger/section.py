"""Section, the base of every part of a job document, and the checks that its parts share."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Strict


class Section(BaseModel):
    """Base of every part of the document: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Text = Annotated[str, Strict()]


def present(value: object) -> object:
    """Refuse a key without a value, so that a forgotten limit is no missing limit."""
    if value is None:
        raise ValueError("has no value")
    return value


def above_zero(amount: Decimal) -> Decimal:
    """Return an amount as it is; raises ValueError for nothing."""
    if not amount:
        raise ValueError(f"must be above zero, got {amount}")
    return amount


def nearest(key: object, names: Sequence[str]) -> str | None:
    """Return the name that was probably meant, if one is close."""
    return next(iter(get_close_matches(str(key)[:80].lower(), names, n=1)), None)
