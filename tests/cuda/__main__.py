"""Run all checks on this machine's GPU; exits with 1 and one sentence if there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.cuda import NO_GPU


def main(arguments: list[str]) -> int:
    """Run the checks, with more arguments for pytest."""
    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 1
    return int(pytest.main([str(Path(__file__).parent), *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
