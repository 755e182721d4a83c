"""The page on adding a cloud, followed literally: its toy cloud passes what every cloud passes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from service.clouds import registry
from service.clouds.registry import open_clouds
from service.settings import Settings
from tests.docs.test_docs import DOCS, blocks

PROVIDER, REGISTRY_LINE, CONFORMANCE = blocks(DOCS / "adding-a-cloud.md", "python")
(CLOUDS_FILE,) = blocks(DOCS / "adding-a-cloud.md", "yaml")

toy = ModuleType("service.clouds.toy")
sys.modules[toy.__name__] = toy
exec(compile(PROVIDER, "service/clouds/toy.py", "exec"), toy.__dict__)
exec(compile(CONFORMANCE, "adding-a-cloud.md", "exec"), globals())


def test_one_line_registers_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "PROVIDERS", dict(registry.PROVIDERS))
    exec(REGISTRY_LINE, registry.__dict__)
    file = tmp_path / "clouds.yaml"
    file.write_text(CLOUDS_FILE)
    (provider,) = open_clouds(Settings(clouds=file))
    assert (provider.name, provider.traits.zones) == ("toy-land", ("land-a",))
