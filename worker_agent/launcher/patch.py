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
    """Ignore a call."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A function whose calls are reported to listeners.

    Listeners get all arguments by position, in the order of the function's signature and with its
    defaults. A listener that raises is not called again; the exception never reaches the script.

    Attributes:
        owner: Class or module that the function is looked up in.
        name: Its name there.
        before: Called first; may return other arguments, in the same order.
        after: Called once the function has returned; not when it raised.
        result: Called then with the result and all arguments; may return another result.
    """

    owner: Any
    name: str
    before: ArgumentChange = ignore_call
    after: AnyFunction = ignore_call
    result: AnyFunction = ignore_call

    def apply(self) -> None:
        """Replace the function wherever a script finds it.

        Raises:
            AttributeError: This version of the framework has no such function.
        """
        original = getattr(self.owner, self.name)
        replacement = self.around(original)
        setattr(self.owner, self.name, replacement)
        # A module may re-export what another one defines, and pickle looks there.
        home = sys.modules.get(getattr(original, "__module__", None) or "")
        if inspect.ismodule(self.owner) and getattr(home, self.name, None) is original:
            setattr(home, self.name, replacement)

    def around(self, original: AnyFunction) -> AnyFunction:
        """Return a function that does the same as the original and calls the listeners."""
        before, after = guard_listener(self.before), guard_listener(self.after)
        replace_result = guard_listener(self.result)
        signature = try_signature(original)

        @wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            bound = bind_call(signature, arguments, options)
            if bound is None:  # the original raises the best error for such a call
                return original(*arguments, **options)
            values = tuple(bound.arguments.values())
            changed = before(*values)
            if changed is None:
                result = original(*arguments, **options)
            else:
                bound.arguments.update(zip(bound.arguments, changed, strict=False))
                result = original(*bound.args, **bound.kwargs)
            after(*values)
            replaced = replace_result(result, *values)
            return result if replaced is None else replaced

        if signature is not None:  # not every caller of inspect.signature follows __wrapped__
            call.__signature__ = signature  # type: ignore[attr-defined]
        return call


def guard_listener(listener: AnyFunction) -> AnyFunction:
    """Return a listener that never raises; after its first exception it is not called again."""
    is_on = True

    def listen(*values: Any) -> Any:
        nonlocal is_on
        if not is_on:
            return None
        try:
            return listener(*values)
        except Exception:
            is_on = False
            log.exception("scavenger: a hook is disabled after this error; training goes on")
            return None

    return listen


def try_signature(function: AnyFunction) -> inspect.Signature | None:
    """Return a function's signature; None if it has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def bind_call(
    signature: inspect.Signature | None, arguments: tuple[Any, ...], options: dict[str, Any]
) -> inspect.BoundArguments | None:
    """Return all arguments of a call by name, in order; None if the call is not legal."""
    if signature is None:
        return None
    try:
        bound = signature.bind(*arguments, **options)
    except TypeError:
        return None
    bound.apply_defaults()
    return bound
