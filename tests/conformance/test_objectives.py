"""Every registered objective keeps the promises of all."""

from __future__ import annotations

import pytest

from scavenger.planning.objective import Objective
from scavenger.planning.objectives import OBJECTIVES, make_objective
from tests.conformance.objective import ObjectiveConformance


@pytest.mark.parametrize("name", OBJECTIVES)
class TestRegisteredObjectives(ObjectiveConformance):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make(self) -> Objective:
        return make_objective(self.name, time_weight=0.3)
