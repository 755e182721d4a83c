"""One controller for the jobs of TensorFlow, as tests/acceptance has one for those of PyTorch."""

from tests.acceptance.conftest import controller, running

__all__ = ["controller", "running"]
