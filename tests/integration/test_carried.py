"""Schedules, loss scales and averages follow a job over resizes and halved iterations."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conductor import Conductor
from tests.integration import carrier, trainee
from tests.integration.forked import fork

CARRIER = str(Path(carrier.__file__))
PLAN = [(1, 24), (2, 24), (3, 36), (1, 24)]


def conduct(directory: Path, *, is_fused: bool) -> dict[int, list[dict[str, Any]]]:
    """Train over the plan; returns what all workers wrote, by iteration."""
    environment = {"FUSED": "1" if is_fused else ""}
    with Conductor(
        directory,
        [CARRIER],
        dataset_size=trainee.SAMPLES,
        purpose="probe",
        split_every=3,
        environment=environment,
        launch=fork,
    ) as conductor:
        for number in range(3):
            conductor.start(f"w{number}")
        conductor.wait(lambda: len(conductor.hellos) == 3)
        for workers, batch in PLAN:
            generation = conductor.order([f"w{n}" for n in range(workers)], batch)
            conductor.wait_applied(generation, iterations=15)
        rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for number in range(3):
            for row in conductor.rows(f"w{number}"):
                rows[row["iteration"]].append(row)
    return rows


def assert_same(row: dict[str, Any], facts: dict[str, Any], where: str) -> None:
    assert np.allclose(row["weights"], facts["weights"], rtol=0, atol=1e-12), where
    for name in ("rate", "momentum", "scale"):
        assert row[name] == facts[name], f"{name} {where}"
    assert row["rates"] == facts["rates"], where


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "unfused"])
def test_all_that_is_carried_goes_on_as_in_one_process(tmp_path: Path, is_fused: bool) -> None:
    rows = conduct(tmp_path, is_fused=is_fused)
    inputs, labels = trainee.problem()
    alone = carrier.Training(is_fused=is_fused)
    skipped = 0
    for iteration in range(len(rows) - 1):  # the last may have been cut short
        facts = alone.facts()
        for row in rows[iteration]:
            assert_same(row, facts, f"before iteration {iteration}")
        indices = [index for row in rows[iteration] for index in row["indices"]]
        assert len(indices) in (24, 36), f"iteration {iteration} is incomplete"
        skipped += carrier.POISON in indices
        alone.train(inputs, labels, torch.tensor(indices), iteration)
    assert len(rows) > 50
    assert skipped >= 3
    assert any(len(rows[iteration]) == 2 and iteration < 10 for iteration in rows)  # halved
