"""Replaces a function of somebody else's by one that does the same and tells us."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

Function = Callable[..., Any]


def patch(owner: Any, name: str, around: Callable[[Function], Function]) -> None:
    """Replace ``owner.name`` by what ``around`` makes of it; it keeps its name and signature.

    Raises:
        AttributeError: This version has no such function: go without.
    """
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(around(original)))
