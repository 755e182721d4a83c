"""What all checks on a GPU begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.cuda import NO_GPU


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """Fail where there is no GPU, and leave nothing queued on it."""
    if not torch.cuda.is_available():
        pytest.fail(NO_GPU, pytrace=False)
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()
