"""``make test-cuda`` on a machine without a GPU: it fails, and its checks can still be loaded."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from tests.cuda import NO_GPU
from tests.cuda.__main__ import main


def test_without_a_gpu_it_fails_and_says_so_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 1
    assert capsys.readouterr().err == f"{NO_GPU}\n"


def test_its_checks_load_where_there_is_no_gpu() -> None:
    files = sorted((Path(__file__).parents[1] / "cuda").glob("test_*.py"))
    loaded = [import_module(f"tests.cuda.{file.stem}") for file in files]
    assert len(loaded) >= 3
