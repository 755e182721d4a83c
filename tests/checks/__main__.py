"""Print names with two meanings and indefinite pronouns; exit with 1 if there is one.

With `--figures`, print the size of the tree instead.
"""

import ast
import sys
from pathlib import Path

from tests.checks.names import PACKAGES, product_files, repeated
from tests.checks.prose import indefinite

ROOT = Path(__file__).parents[2]
COLUMNS = (
    ("package", 14),
    ("files", 7),
    ("lines", 8),
    ("mean", 6),
    ("functions", 11),
    ("comments/100", 14),
    ("imports", 9),
    ("<= 60 lines", 13),
)


def main() -> int:
    """Run both checks, or print the figures."""
    if "--figures" in sys.argv:
        figures(ROOT)
        return 0
    faults = [
        f"{name} is defined in {', '.join(files)}: give each its own name"
        for name, files in repeated(ROOT).items()
    ]
    faults += [f"{each}: name the subject of this sentence" for each in indefinite(ROOT)]
    print("\n".join(faults), end="\n" if faults else "")
    return bool(faults)


def figures(root: Path) -> None:
    """Print files, lines, functions, comments and imports of each package and of all."""
    total = [0] * 6
    print("".join(f"{title:>{width}}" for title, width in COLUMNS))
    for package in PACKAGES:
        counts = [0] * 6
        for file in (
            each for each in product_files(root) if each.relative_to(root).parts[0] == package
        ):
            counts = [a + b for a, b in zip(counts, _counts(file), strict=True)]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        _print(package, counts)
    _print("all", total)
    print(
        f"names that stand twice: {len(repeated(root))}; "
        f"indefinite pronouns: {len(indefinite(root))}"
    )


def _counts(file: Path) -> tuple[int, ...]:
    text = file.read_text()
    lines = text.splitlines()
    nodes = list(ast.walk(ast.parse(text)))
    functions = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in nodes)
    imports = sum(
        each.end_lineno - each.lineno + 1
        for each in nodes
        if isinstance(each, ast.Import | ast.ImportFrom) and each.end_lineno
    )
    comments = sum(line.lstrip().startswith("#") for line in lines)
    return (
        1,
        len(lines),
        functions,
        comments,
        imports,
        file.name != "__init__.py" and len(lines) <= 60,
    )


def _print(package: str, counts: list[int]) -> None:
    files, lines, functions, comments, imports, short = counts
    mean, share = f"{lines / files:.0f}", f"{100 * comments / lines:.2f}"
    cells = (package, files, lines, mean, functions, share, imports, short)
    print("".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
