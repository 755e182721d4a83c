"""Garbage: what was loaded for good is not looked through again and again.

A whole collection looks at every object of the process, holding everybody up meanwhile. Libraries
are nearly all of those and live as long as it does.
"""

from __future__ import annotations

import gc


def spare_what_is_loaded() -> None:
    """Leave all that there is now out of every later collection; meant for once, before serving."""
    gc.collect()
    gc.freeze()
