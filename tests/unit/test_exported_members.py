from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import scavenger

LIGHT = """
import sys
import scavenger, scavenger.protocol, scavenger.worker_env
heavy = {"numpy", "scipy", "pydantic", "yaml", "httpx", "typer", "torch"} & set(sys.modules)
assert not heavy - {"numpy", "pydantic"}, heavy
"""


def test_every_public_name_can_be_imported_and_says_what_it_is() -> None:
    for name in scavenger._HOMES:
        member = getattr(scavenger, name)
        assert member.__doc__, name
        assert name in dir(scavenger)


def test_what_type_checkers_see_is_what_can_be_imported() -> None:
    text = Path(scavenger.__file__).read_text()
    stated = {
        name: home
        for home, name in re.findall(r"    from ([\w.]+) import (?:\(\s+)?(\w+) as \2,?\n", text)
    }
    assert stated == scavenger._HOMES


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Kneel"):
        _ = scavenger.Kneel


def test_importing_the_package_brings_no_more_than_the_wire_types_need() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
