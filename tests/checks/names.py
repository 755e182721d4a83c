"""One name, one meaning: classes and public constants that two product files define."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGES = ("scavenger", "service", "worker_agent")
# Each with the reason why two files may define it.
ALLOWED: dict[str, str] = {}


def repeated(root: Path) -> dict[str, list[str]]:
    """Return each class or public constant that two or more files define, with the files.

    Private names (with a leading underscore) and names in `ALLOWED` do not count.
    """
    places: defaultdict[str, set[str]] = defaultdict(set)
    for file in product_files(root):
        for name in _defined(ast.parse(file.read_text())):
            places[name].add(str(file.relative_to(root)))
    return {
        name: sorted(files)
        for name, files in sorted(places.items())
        if len(files) > 1 and name not in ALLOWED
    }


def product_files(root: Path) -> list[Path]:
    """Return every Python file of the three packages, sorted."""
    return sorted(file for package in PACKAGES for file in (root / package).rglob("*.py"))


def _defined(tree: ast.Module) -> set[str]:
    names = {each.name for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            names |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
    return {name for name in names if not name.startswith("_") and name[0].isupper()}
