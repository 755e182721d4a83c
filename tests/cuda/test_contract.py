"""The contract of frameworks, with PyTorch's model and data on a GPU: resizes, learning rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.conformance import test_frameworks
from tests.crew import Classifier


class TestPyTorchOnAGpu(test_frameworks.TestPyTorch):
    def make(self) -> tuple[Any, Any]:
        self.task = Classifier().to("cuda")
        return self.task.model, torch.optim.SGD(self.task.model.parameters(), lr=0.1)

    def weights(self, model: Any) -> np.ndarray[Any, Any]:
        return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().numpy()
