"""The tree of errors that a module draws is the tree of the classes in it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.docs.test_docs import ROOT

DRAWN = re.compile(r"^    (?P<branches>[│├└─ ]*)(?P<name>[A-Z]\w+)(?:  |$)", re.MULTILINE)
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for package in ("scavenger", "service", "worker_agent")
    for file in (ROOT / package).rglob("errors.py")
)


def drawn(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each error of the drawing with the one that it hangs from; the root hangs from none."""
    above: list[str] = []
    for line in DRAWN.finditer(module.__doc__ or ""):
        depth = len(line["branches"]) // len("├── ")
        above[depth:] = [line["name"]]
        yield line["name"], above[depth - 1] if depth else ""


def defined(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each error that a module defines, and its root, with the one it is a kind of."""
    classes = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
    own = {c for c in classes if c.__module__ == module.__name__ and issubclass(c, Exception)}
    shown = own | {kind.__bases__[0] for kind in own} - {Exception}
    for kind in shown:
        parent = kind.__bases__[0]
        yield kind.__name__, parent.__name__ if parent in shown else ""


def test_there_are_trees() -> None:
    assert len(MODULES) >= 5


@pytest.mark.parametrize("name", MODULES)
def test_the_tree_that_is_drawn_is_that_of_the_classes(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(drawn(module)) == sorted(defined(module))
