"""Files of ``docs/`` that programs need at run time, such as the example of the demo.

A wheel carries them inside this package; ``force-include`` in ``pyproject.toml`` lists them. A
working copy reads them from ``docs/`` itself, so that each file exists once.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE_DIRECTORY = Path(__file__).parent


def resource_path(path: str) -> Path:
    """Return where a file or directory of ``docs/`` is on this computer.

    Args:
        path: Relative to ``docs/``, such as ``examples/digits``.

    Raises:
        FileNotFoundError: The installation is not complete; install it again.
    """
    # The package's own come first: beside an installed package another one may have a ``docs``.
    for docs in (PACKAGE_DIRECTORY / "docs", PACKAGE_DIRECTORY.parent / "docs"):
        if (docs / path).exists():
            return docs / path
    raise FileNotFoundError(f"this installation of scavenger has no docs/{path}: install it again")
