"""ModuleHook: what listens to a module of the script, and to no copy of it.

A script may copy or save the module with everything on it, for an average of its weights for
example. Ours could be neither copied nor saved, and a program that loads the file may not have
this package: so a copy has something of Python's own in our place, which does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any


class ModuleHook:
    """A hook for ``register_forward_pre_hook`` that changes nothing.

    Args:
        listener: Called with what the module's hooks are called with.
    """

    def __init__(self, listener: Callable[..., None]) -> None:
        self.listener = listener

    def __call__(self, *arguments: Any) -> None:
        """Tell the listener."""
        self.listener(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy be a function that takes any arguments and returns None."""
        return getattr, (nullcontext(), "__exit__")
