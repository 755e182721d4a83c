"""`Patch`: replaces a function of another package by a wrapper that reports its calls.

There is one wrapper for all functions, which names no argument of its own: every legal call
reaches the original unchanged, even where a script's own subclass has other argument names.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

AnyFunction = Callable[..., Any]
ArgumentChange = Callable[..., Sequence[Any] | None]

log = logging.getLogger(__name__)


def ignore_call(*_: Any) -> None:
    """Take no notice."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A function that is to be listened to.

    Listeners are given all arguments by position, in the order of the function's signature and with
    its defaults. One that raises is not called again; the script never hears of it.

    Attributes:
        owner: Class or module the function is looked up in.
        name: Its name there.
        before: Called first; may return other arguments, in the same order.
        after: Called once the function has returned; not when it raised.
    """

    owner: Any
    name: str
    before: ArgumentChange = ignore_call
    after: AnyFunction = ignore_call

    def apply(self) -> None:
        """Replace the function wherever a script finds it.

        Raises:
            AttributeError: This version has no such function: go without.
        """
        original = getattr(self.owner, self.name)
        replacement = self.around(original)
        setattr(self.owner, self.name, replacement)
        # A module may only pass on what another one defines: pickle looks there.
        home = sys.modules.get(getattr(original, "__module__", None) or "")
        if inspect.ismodule(self.owner) and getattr(home, self.name, None) is original:
            setattr(home, self.name, replacement)

    def around(self, original: AnyFunction) -> AnyFunction:
        """Return a function that does the same as the original and tells the listeners."""
        before, after = guard_listener(self.before), guard_listener(self.after)
        signature = try_signature(original)

        @wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            bound = bind_call(signature, arguments, options)
            if bound is None:  # the original says best what is wrong with such a call
                return original(*arguments, **options)
            values = tuple(bound.arguments.values())
            changed = before(*values)
            if changed is None:
                result = original(*arguments, **options)
            else:
                bound.arguments.update(zip(bound.arguments, changed, strict=False))
                result = original(*bound.args, **bound.kwargs)
            after(*values)
            return result

        if signature is not None:  # some that ask for it do not look behind a wrapper
            call.__signature__ = signature  # type: ignore[attr-defined]
        return call


def guard_listener(listener: AnyFunction) -> AnyFunction:
    """Return a listener that raises nothing, and is left alone once it has wanted to."""
    is_on = True

    def listen(*values: Any) -> Any:
        nonlocal is_on
        if not is_on:
            return None
        try:
            return listener(*values)
        except Exception:
            is_on = False
            log.exception("scavenger: this is no longer listened to; training goes on")
            return None

    return listen


def try_signature(function: AnyFunction) -> inspect.Signature | None:
    """Return a function's signature; None where it does not tell."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def bind_call(
    signature: inspect.Signature | None, arguments: tuple[Any, ...], options: dict[str, Any]
) -> inspect.BoundArguments | None:
    """Return all arguments of a call by name, in order; None if it is none that is legal."""
    if signature is None:
        return None
    try:
        bound = signature.bind(*arguments, **options)
    except TypeError:
        return None
    bound.apply_defaults()
    return bound
