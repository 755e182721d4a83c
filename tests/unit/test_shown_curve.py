"""What the API shows of a curve: changes of configuration, and whether there is a knee."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.job.planning import objective_within_limits
from scavenger.planning.decision import preview_curve
from scavenger.report import CurveReport
from service.db.directives import PublishedDirective
from service.state.curves import config_view, curve_view
from service.state.presenters import curve_view_of_job, resize_views
from tests.builders import NOW, directive, job, probe, snapshot, spec

CONFIGS = st.lists(st.tuples(st.integers(1, 2), st.sampled_from([32, 64])), min_size=1, max_size=8)


@given(CONFIGS)
def test_a_resize_changes_the_configuration_and_follows_from_the_one_before(
    configs: list[tuple[int, int]],
) -> None:
    history = [
        PublishedDirective(
            directive(*config, generation=number), NOW + timedelta(seconds=number), 0.1, 0
        )
        for number, config in enumerate(configs, start=1)
    ]
    shown = resize_views(history)
    first, *others = shown
    assert (first.before, first.generation) == (None, 1)
    assert all(resize.before != resize.after for resize in others)
    assert [each.before for each in others] == [each.after for each in shown[:-1]]
    last = config_view(history[-1].directive.config)
    assert shown[-1].after == last, "none of the changes is missing"


@pytest.mark.parametrize(("most_workers", "bends"), [(2, False), (4, True), (8, True)])
def test_a_knee_is_shown_where_the_choice_finds_that_the_front_bends(
    most_workers: int, bends: bool
) -> None:
    wished = spec(limits={"workers": f"1..{most_workers}", "batch": [32, 128]})
    corners = ((1, 32), (1, 128), (most_workers, 128), (most_workers, 32))
    seen = snapshot(job=job(spec=wished), probes=tuple(probe(*corner) for corner in corners))
    preview = preview_curve(seen.knowledge)
    assert preview is not None
    choice = objective_within_limits(wished).choose(preview.curve)
    drawn = curve_view(
        CurveReport.of(objective_within_limits(wished), preview), wished, None, "", NOW
    )
    shown = curve_view_of_job(drawn, seen.job, seen.probes, ())
    assert shown.knee == config_view(choice.point.config)
    assert shown.knee_bends is choice.bends is bends
    probed = {(p.workers, p.global_batch): p.compute_time + p.sync_time for p in shown.probes}
    found = {
        (p.workers, p.global_batch): p.measured_step_time
        for p in shown.points
        if p.source == "measured"
    }
    assert found == pytest.approx(probed), "the curve shows the times of the probes"
