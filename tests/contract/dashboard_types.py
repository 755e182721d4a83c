"""``python -m tests.contract.dashboard_types`` writes the types of docs/openapi.json anew."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "service" / "dashboard"
SCHEMA = DASHBOARD / "src" / "api" / "schema.ts"


def load_build_hook() -> ModuleType:
    """Import the build hook, which stands outside all packages."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_types(target: Path) -> None:
    """Write the types of the API's views."""
    build, folder = load_build_hook(), DASHBOARD / "schema"
    build.install_packages(folder)
    source = (ROOT / "docs" / "openapi.json").as_uri()
    build.run_node(folder, str(folder / "build.mjs"), source, target.as_uri())


if __name__ == "__main__":
    write_types(SCHEMA)
