"""Tables where there is little room: the least important leaves, what names a row never does."""

from __future__ import annotations

import re
from functools import cache
from io import StringIO
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from scavenger.cli.admin import render_sweep
from scavenger.cli.curve import render_curve
from scavenger.cli.demo_report import (
    render_first_job,
    render_probes,
    render_resizes,
    render_second_job,
)
from scavenger.cli.evaluate import render_evaluation
from scavenger.cli.explain import render_choice
from scavenger.cli.fit_report import render_fit
from scavenger.cli.jobs import render_jobs
from scavenger.cli.machines import render_machines
from scavenger.cli.models import render_models
from scavenger.cli.output import Column, ResponsiveTable, format_cost_to_target
from scavenger.cli.plan import render_options
from scavenger.cli.simulate import (
    StrategyComparison,
    render_comparison,
    restrict_space,
    run_comparison,
)
from scavenger.cli.tokens import render_tokens
from scavenger.cli.watch import render_events
from scavenger.offline.evaluation.checks import EvaluationScope, list_tasks, summarise_findings
from scavenger.offline.evaluation.sampling import Restriction
from scavenger.offline.fit import report_fit
from scavenger.offline.simulator.paper import PAPER_JOBS, Perturbations
from scavenger.offline.tables.files import MeasurementTables
from scavenger.schemas.access import TokenList, TokenView
from scavenger.schemas.curves import CurveView
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.machines import MachineView
from scavenger.schemas.models import StoredModelList
from scavenger.schemas.plans import PlanView
from tests.builders import NOW, plan_view
from tests.unit.test_admin_command import suspect, sweep
from tests.unit.test_cli_rendering import ID, curve_view, event, job_view, stored_model, text
from tests.unit.test_evaluate_command import table_of as evaluated
from tests.unit.test_fit_command import TOTAL, TRUTH, table_of

WIDTHS = (60, 80, 100, 200)
# A row of a table begins with these words, one after the other.
Rows = list[tuple[str, ...]]


def configurations() -> Rows:
    return [(str(point.workers), str(point.global_batch)) for point in curve_view().points]


@cache
def tables() -> dict[str, tuple[RenderableType, Rows]]:
    """Every table there is, with what its rows are known by."""
    jobs = [job_view(phase, id=f"{ID[:-2]}{n:02}") for n, phase in enumerate(JobPhase)]
    curve, models = curve_view(), StoredModelList(models=[stored_model("resnet18/cifar10")])
    probes = [(str(probe.workers), str(probe.global_batch)) for probe in curve.probes]
    moves = [
        (f"K={r.before.workers} B={r.before.global_batch}", f"→ K={r.after.workers}")
        for r in curve.resizes
        if r.before is not None
    ]
    found = [suspect(n, fate, "the database does not know it") for n, fate in enumerate(FATES)]
    fit = report_fit(table_of(TRUTH), TOTAL)
    measured = [(str(m.config.workers), str(m.config.global_batch)) for m in fit.measured]
    return {
        "list": (render_jobs(jobs), [(job.id, "digits") for job in jobs]),
        "curve": (render_curve(curve, width=100), configurations()),
        "models": (render_models(models), [(model.model_key,) for model in models.models]),
        "machines": (render_machines([machine(n) for n in (1, 2)]), [(f"{ID}-w1", "launched")]),
        "tokens": (render_tokens(TokenList(tokens=[token("ci")])), [("0123456789ab", "ci")]),
        "sweep": (render_sweep(sweep(*found)), [(f"i-{n}",) for n in range(len(FATES))]),
        "probes": (render_probes(curve.probes), probes),
        "resizes": (render_resizes(curve.resizes[1:]), moves),
        "first": (
            render_first_job(job_view(JobPhase.SUCCEEDED), curve, width=100),
            configurations(),
        ),
        "second": (render_second_job(jobs[0], jobs[1], curve, curve), [("first",), ("second",)]),
        "fit": (render_fit(fit), measured),
        "evaluate": (render_evaluation(evaluation()), [("job/x",), ("job", "measured")]),
        "simulate": (render_comparison(simulated()), [("none",)]),
        "plan": (render_options(planned(curve), show_all=True), configurations()),
        "explain": (render_choice(curve, 1), [("fastest",), ("cheapest",), ("start",)]),
    }


FATES = ("end", "wait", "hold", "keep", "spare")


def machine(number: int) -> MachineView:
    moments = dict.fromkeys(("prepaid_until", "launched_at"), NOW)
    facts: dict[str, Any] = {
        "id": f"{ID}-w{number}", "job": ID, "project": "vision", "role": "worker",
        "state": "launched", "cloud": "home", "zone": "us-central1-a", "market": "on_demand",
        "machine_type": "e2-standard-4", "price_per_hour": {"amount": "0.13402"},
        "lease_age": 3.2, "gone_at": None, "why": "its worker trains",
    }  # fmt: skip
    return MachineView.model_validate(facts | moments)


def token(name: str) -> TokenView:
    facts = {"id": "0123456789ab", "name": name, "project": "vision", "role": "submitter"}
    moments = dict.fromkeys(("created_at", "expires_at", "revoked_at", "last_used_at"), NOW)
    return TokenView.model_validate({**facts, **moments, "created_by": "ba9876543210"})


def evaluation() -> Any:
    steps = (evaluated(),)
    scope = EvaluationScope((4,), ("measured", "paper"), Restriction(), "all_reduce")
    checks = list_tasks(MeasurementTables(steps=steps), scope)
    return summarise_findings(tuple(finding for check in checks for finding in check()))


def simulated() -> Any:
    setting = restrict_space(PAPER_JOBS["resnet18"], (8, 20), (384, 1024))
    comparison = StrategyComparison(
        "resnet18", "knee", ("none",), 1, Perturbations(), (8, 20), (384, 1024)
    )
    return run_comparison(comparison, setting, Console(file=StringIO()))


NAMES = (
    "list", "curve", "models", "machines", "tokens", "sweep", "probes", "resizes",
    "first", "second", "fit", "evaluate", "simulate", "plan", "explain",
)  # fmt: skip


def planned(curve: CurveView) -> PlanView:
    return plan_view(curve=curve.model_dump(mode="json"))


def test_no_table_is_missing() -> None:
    assert tuple(tables()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_names_a_row_is_whole_on_every_terminal(name: str) -> None:
    table, rows = tables()[name]
    for width in WIDTHS:
        shown = text(table, width=width)
        assert max(map(len, shown.splitlines())) <= width
        for row in rows:
            # Figures stand on the right of their column.
            pattern = "^ *" + " +".join(map(re.escape, row)) + "(?: |$)"
            assert re.search(pattern, shown, re.MULTILINE), (width, row, shown)


@pytest.mark.parametrize("name", NAMES)
def test_what_has_no_room_is_named_and_a_wide_terminal_shows_all(name: str) -> None:
    table, _ = tables()[name]
    assert MORE not in text(table, width=200)
    narrow, wide = (set(re.split(r"[\s,]+", text(table, width=w))) for w in (60, 200))
    titles = {word for word in wide if re.fullmatch(r"[A-Z]{2,}|τ|γ|φ|e\(B\)", word)}
    assert titles - narrow == set()


@pytest.mark.parametrize("width", WIDTHS)
def test_time_and_cost_of_a_plan_are_shown_on_every_terminal(width: int) -> None:
    curve = curve_view()
    shown = text(render_options(planned(curve), show_all=True), width=width)
    for point in curve.points:
        cost = re.escape(format_cost_to_target(float(point.cost), curve.basis))
        row = rf"^. +{point.workers} +{point.global_batch} .*[0-9]m?s .*{cost}"
        assert re.search(row, shown, re.MULTILINE), (row, shown)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_name_of_a_machine_is_whole_in_the_events_of_every_terminal(width: int) -> None:
    machine = "job_1a20b4dc72fb7a8c05e-w1"
    happened = event(3).model_copy(update={"message": f"{machine} was started"})
    assert machine in text(render_events([happened]), width=width)


MORE = "a wider terminal shows more"
CELLS = st.text(st.characters(categories=["L", "N"]), max_size=30)
COLUMNS = st.builds(
    Column,
    st.text("ABC", min_size=1, max_size=8),
    st.integers(0, 5),
    st.sampled_from(["left", "right"]),
    st.none() | st.integers(1, 20),
)


@st.composite
def any_tables(draw: st.DrawFn) -> ResponsiveTable:
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=8))
    rows = draw(st.lists(st.tuples(*[CELLS] * len(columns)), max_size=4))
    return ResponsiveTable(columns, rows, draw(st.integers(1, 2)))


@given(any_tables(), st.integers(10, 200))
def test_the_least_important_column_leaves_first_and_none_before_it_must(
    table: ResponsiveTable, width: int
) -> None:
    widths = table.fit(width)
    left = [c for place, c in enumerate(table.columns) if place not in widths]
    stay = [c for place, c in enumerate(table.columns) if place in widths]
    assert all(column.drop_order for column in left), "what names a row never leaves"
    latest = max((column.drop_order for column in stay), default=0)
    assert all(column.drop_order >= latest for column in left)
    total = sum(widths.values()) + table.gap * (len(widths) - 1)
    assert total <= width or all(column.drop_order == 0 for column in stay)
    wider = table.fit(width + 1)
    assert set(widths) <= set(wider)
    assert all(widths[place] <= wider[place] for place in widths if set(widths) == set(wider))


@given(any_tables(), st.integers(10, 200))
@example(ResponsiveTable([Column("A", min_width=1), Column("AAAAAAAA")], [("々", "")], gap=1), 10)
def test_what_is_shown_is_whole(table: ResponsiveTable, width: int) -> None:
    widths = table.fit(width)
    total = sum(widths.values()) + table.gap * (len(widths) - 1)
    assume(total <= width)
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(table)
    shown = str(getattr(console.file, "getvalue")()).split(f"· {MORE}")[0]  # noqa: B009
    assert all(cell_len(line) <= width for line in shown.splitlines())
    for place in widths:
        for row in table.rows:
            letters = iter(shown)
            assert all(letter in letters for letter in row[place]), row[place]
