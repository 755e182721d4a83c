"""Which stacks a job may use by what its workers found out, and what each of them is worth."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import typer
from rich.console import Console

from scavenger.cli.orders import parse_config, parse_target
from scavenger.cli.stacks import best_of_stacks, render_stacks
from scavenger.cluster import ClusterConfig
from scavenger.job.planning import objective_within_limits, planning_state
from scavenger.job.spec import JobSpec
from scavenger.measurement.profiling import Observation, ScalingIndicators
from scavenger.planning.decision import preview_curve
from scavenger.report import CurveReport
from scavenger.schemas.curves import CurveView
from scavenger.stack import StackCheck
from service.state.curves import curve_view
from service.state.presenters import curve_view_of_job
from tests.builders import NOW, job, spec

SHORT, COMPILED = "bf16+fused", "compiled+fused"


def stacked(**changes: Any) -> JobSpec:
    facts = {"stacks": ["eager", COMPILED, SHORT], "precision": "any", **changes}
    return spec(target={"epochs": 30, "at_batch": 32}, **facts)


def observed(
    workers: int, batch: int, seconds: float, stack: str = "eager", scale: float | None = None
) -> Observation:
    config = ClusterConfig(workers, batch, stack=stack)
    return Observation(config, ScalingIndicators(None, scale, seconds, 0.0), 20, scale is not None)


def test_a_job_without_stacks_has_the_grid_of_its_limits() -> None:
    plain = spec()
    assert plain.space is plain.limits.space
    assert spec(stacks=["eager"]).space == plain.space


def test_auto_tries_fewer_bits_only_where_the_job_allows_them() -> None:
    exact = spec(stacks="auto").stack_names
    anything = spec(stacks="auto", precision="any").stack_names
    assert exact[0] == anything[0] == "eager"
    assert not [name for name in exact if "bf16" in name]
    assert {name for name in anything if "bf16" in name} == set(anything) - set(exact)


def test_a_refused_stack_leaves_the_space_and_the_first_one_never_does() -> None:
    checks = (StackCheck(COMPILED, 32, 9.0, 0.0, "wrong"), StackCheck("eager", 0, 0, 0, "odd"))
    space = planning_state(stacked(), (), None, stack_checks=checks).space
    assert [option.name for option in space.stacks] == ["eager", SHORT]


@pytest.mark.parametrize(
    ("scale", "error", "most"),
    [(None, 0.05, math.inf), (1000.0, 0.0, math.inf), (1000.0, 0.5, 400.0), (1.0, 1.0, 1.0)],
)
def test_fewer_bits_are_for_batches_whose_noise_hides_the_rounding(
    scale: float | None, error: float, most: float
) -> None:
    seen = () if scale is None else (observed(2, 64, 0.1, scale=scale),)
    checks = tuple(StackCheck(name, 32, 3.0, error) for name in (COMPILED, SHORT))
    space = planning_state(stacked(), seen, None, stack_checks=checks).space
    limits = {option.name: option.most_global_batch for option in space.stacks}
    assert limits == {"eager": math.inf, COMPILED: math.inf, SHORT: pytest.approx(most)}
    assert {option.setup_seconds for option in space.stacks} == {0.0, 3.0}


def test_a_stack_holds_as_much_more_as_it_keeps_less() -> None:
    memory = {"machine_gib": 2, "fixed_gib": 1, "gib_per_sample": 0.015625}
    limits = {"max_cost": "1 USD", "workers": "1..2", "batch": "32..256", "memory": memory}
    checks = tuple(
        StackCheck(name, 32, 3.0, 0.0, memory_share=share)
        for name, share in ((SHORT, 0.6), (SHORT, 0.5), (COMPILED, 2.0))
    )
    wished = stacked(limits=limits)
    space = planning_state(wished, (), None, stack_checks=checks).space
    most = dict.fromkeys(wished.stack_names, 0)
    for config in space:
        most[config.stack] = max(most[config.stack], config.local_batch)
    assert most == {"eager": 64, COMPILED: 32, SHORT: 64}
    assert space.most_local_batch_with(SHORT) == pytest.approx(64 / 0.6)
    assert wished.price_per_hour == spec().price_per_hour


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2,64", (2, 64)),
        ("2,64,fused+bf16", (2, 64, "bf16+fused")),
        ("2, 64, eager", (2, 64, "eager")),
    ],
)
def test_an_order_names_a_stack_after_workers_and_batch(
    text: str, found: tuple[object, ...]
) -> None:
    assert parse_config(text) == found
    assert parse_target(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2,64,fast", "no stack has a part 'fast'"),
        ("2,64,bf16+fp16", "one precision"),
        ("2,64,fused,bf16", "no stack has a part 'fused,bf16'"),
        ("0,64,fused", "is no configuration"),
        ("2", "is no configuration"),
    ],
)
def test_an_order_of_no_configuration_says_what_to_write(text: str, why: str) -> None:
    with pytest.raises(typer.BadParameter, match=re.escape(why)):
        parse_config(text)


def curve_of(checks: tuple[StackCheck, ...]) -> CurveView:
    wished = stacked()
    seen = (
        observed(1, 32, 0.10),
        observed(1, 128, 0.28),
        observed(2, 128, 0.19),
        observed(1, 32, 0.05, COMPILED),
        observed(1, 128, 0.14, COMPILED),
    )
    preview = preview_curve(planning_state(wished, seen, None, stack_checks=checks))
    assert preview is not None
    report = CurveReport.of(objective_within_limits(wished), preview)
    chosen = None if report.choice is None else report.choice.point.config
    drawn = curve_view(report, wished, chosen, "", NOW)
    return curve_view_of_job(drawn, job(spec=wished), (), (), stack_checks=checks)


def test_each_stack_is_shown_with_its_best_configuration_and_what_is_left_out() -> None:
    why = "the gradient of first.weight is zero, and should not be"
    curve = curve_of((StackCheck(SHORT, 128, 1.0, 0.0, why),))
    eager, compiled, short = best_of_stacks(curve)
    assert eager.speed_up == 1.0
    assert compiled.speed_up == pytest.approx(2.0, rel=0.05)
    assert compiled.point is not None
    assert compiled.point.id == f"k1-b{compiled.point.global_batch}-compiled.fused"
    assert short.point is None
    console = Console(width=140)
    with console.capture() as shown:
        console.print(render_stacks(curve))
    text = " ".join(shown.get().split())
    assert f"refused: {why}" in text
    assert "chosen" in text
    assert {point.stack for point in curve.points} == {"eager", COMPILED}


def test_a_stack_that_was_not_measured_says_so() -> None:
    text = Console(width=140)
    with text.capture() as shown:
        text.print(render_stacks(curve_of(())))
    assert "no probe of it was expected to pay" in " ".join(shown.get().split())
