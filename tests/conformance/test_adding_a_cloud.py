"""The page on adding a cloud, followed literally: its toy cloud passes what every cloud passes."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from service.clouds import registry
from service.clouds.registry import open_cloud
from service.errors import UnknownCloud
from service.settings import Settings
from tests.docs.test_docs import DOCS, blocks

PROVIDER, REGISTRY_LINE, CONFORMANCE = blocks(DOCS / "adding-a-cloud.md", "python")

toy = ModuleType("service.clouds.toy")
sys.modules[toy.__name__] = toy
exec(compile(PROVIDER, "service/clouds/toy.py", "exec"), toy.__dict__)
exec(compile(CONFORMANCE, "adding-a-cloud.md", "exec"), globals())


def test_one_line_registers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CLOUDS", dict(registry.CLOUDS))
    exec(REGISTRY_LINE, registry.__dict__)
    assert open_cloud(Settings(cloud="toy")).name == "toy"
    assert open_cloud(Settings()).name == "local"


def test_an_unknown_cloud_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(UnknownCloud, match="'tyo': choose local"):
        open_cloud(Settings(cloud="tyo"))
