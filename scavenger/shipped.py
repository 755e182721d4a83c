"""Pages and examples of ``docs/`` that programs need while they run.

A wheel carries them inside this package; ``force-include`` in ``pyproject.toml`` lists them. In a
working copy they are read where they are edited, so that there is one copy only.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped(path: str) -> Path:
    """Return where a file or directory of ``docs/`` is on this computer.

    Args:
        path: Relative to ``docs/``, such as ``examples/digits``.

    Raises:
        FileNotFoundError: The installation is not complete; install it again.
    """
    # The package's own come first: beside an installed package another one may have a ``docs``.
    for docs in (PACKAGE / "docs", PACKAGE.parent / "docs"):
        if (docs / path).exists():
            return docs / path
    raise FileNotFoundError(f"this installation of scavenger has no docs/{path}: install it again")
