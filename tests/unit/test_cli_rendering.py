"""What the command line shows, from hand-made views, as text of 100 columns."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from scavenger.cli.curve import PLOT_SYMBOLS, render_curve, render_plot
from scavenger.cli.demo import load_warning
from scavenger.cli.demo_report import render_first_job, render_second_job
from scavenger.cli.equations import curve_equations
from scavenger.cli.errors import (
    AmbiguousJob,
    BinaryOnTerminal,
    ConfirmationRequired,
    ControllerStartFailed,
    CurveUnavailable,
    InvalidInput,
    JobNotFound,
    render_report,
    report_error,
)
from scavenger.cli.jobs import PHASE_ICONS, render_job, render_jobs
from scavenger.cli.models import render_models
from scavenger.cli.orders import describe_order
from scavenger.cli.output import ResponsiveTable, Terminal
from scavenger.cli.png import write_png
from scavenger.cli.submit import render_plan
from scavenger.cli.watch import (
    change_key,
    render_change,
    render_event,
    render_events,
    render_live_view,
)
from scavenger.client.errors import JobFailed, NoToken, Unreachable, error_for_problem
from scavenger.errors import DocumentProblem
from scavenger.job.validation import parse_job
from scavenger.schemas.base import MoneyView
from scavenger.schemas.curves import CurveView, LawsView, PointView, ProbeView, ResizeView, point_id
from scavenger.schemas.events import EventView
from scavenger.schemas.jobs import (
    ConfigView,
    CostView,
    IndicatorsView,
    JobPhase,
    JobView,
    ProgressView,
)
from scavenger.schemas.models import StoredModelList, StoredModelView
from scavenger.schemas.orders import OrderView
from scavenger.schemas.problems import ErrorDetail, ProblemView

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
ID = "job_019aa0b4c8e5f3d2a71"
LAWS = LawsView(
    compute_fixed=0.002,
    compute_per_sample=0.00011,
    flatness=1.0,
    sync_fixed=0.0012,
    sync_per_worker=0.0007,
    sync_across_machines=0.0,
    growth="linear",
    overlap=1.0,
    spread=0.05,
    noise_scale=410.0,
    critical_batch=520.0,
    noisy_samples=0.0,
    noise_floor=None,
    noise_per_root=None,
    law="e ∝ 1 + B/B_crit",
    mean_relative_error=0.034,
)
DOCUMENT = """\
name: digits
model: {key: digits/mlp, dataset_size: 1500}
target: {metric: accuracy, goal: 0.97, max_epochs: 120, at_batch: 32}
limits: {workers: 1..4, batch: 32..256, max_cost: 0.05 USD, max_time: 3m}
price: 0.13402 USD/h
run: {command: [python, train.py], directory: /srv/digits}
"""


def config(workers, global_batch):
    return ConfigView(workers=workers, global_batch=global_batch)


def money(amount):
    return MoneyView(amount=Decimal(amount))


def point(workers, global_batch, **changes):
    """Return the point the laws predict."""
    compute = LAWS.compute_fixed + LAWS.compute_per_sample * global_batch / workers
    sync = LAWS.sync_fixed + LAWS.sync_per_worker * workers if workers > 1 else 0.0
    epochs = 11.0 * (1 + global_batch / LAWS.critical_batch)
    time = epochs * 1500 / global_batch * (compute + sync)
    cost = time * workers * 0.13402 / 3600
    fields = {
        "id": point_id(workers, global_batch),
        "workers": workers,
        "global_batch": global_batch,
        "noise": workers * (global_batch / workers + 410) / (global_batch + 410),
        "epochs": epochs,
        "compute_time": compute,
        "sync_time": sync,
        "step_time": compute + sync,
        "measured_step_time": None,
        "time": time,
        "time_low": time / 1.1,
        "time_high": time * 1.1,
        "cost": cost,
        "cost_low": cost / 1.1,
        "cost_high": cost * 1.1,
        "source": "predicted",
        "on_front": False,
        "violations": [],
    }
    return PointView(**(fields | changes))


def probe(workers, global_batch, **changes):
    predicted = point(workers, global_batch)
    fields = {
        "workers": workers,
        "global_batch": global_batch,
        "noise": predicted.noise,
        "noise_scale": 410.0,
        "compute_time": predicted.compute_time,
        "sync_time": predicted.sync_time,
        "iterations": 40,
        "seconds": 2.4,
        "cost": 2.4 * workers * 0.13402 / 3600,
        "settled_at": NOON,
    }
    return ProbeView(**(fields | changes))


def resize(generation, before, after, **changes):
    fields = {
        "generation": generation,
        "before": before,
        "after": after,
        "pause": 0.021,
        "iterations_lost": 0,
        "why": f"probe {generation} of 4",
        "at": NOON,
    }
    return ResizeView(**(fields | changes))


CORNERS = ((1, 32), (1, 256), (4, 256), (4, 32))


def curve_view(**changes):
    points = [
        point(k, b, source="measured" if (k, b) in CORNERS else "predicted")
        for k in (1, 2, 3, 4)
        for b in (32, 64, 128, 256)
    ]
    points = [
        p.model_copy(
            update={
                "on_front": not any(
                    q.time <= p.time and q.cost <= p.cost and q != p for q in points
                ),
                "violations": ["takes 3.5 s, more than 3.2 s"] if p.time > 3.2 else [],
                "measured_step_time": p.step_time * 1.01 if p.source == "measured" else None,
            }
        )
        for p in points
    ]
    resizes = [
        resize(1, None, config(1, 32)),
        *(
            resize(n + 2, config(*CORNERS[n]), config(*CORNERS[n + 1]))
            for n in range(len(CORNERS) - 1)
        ),
        resize(5, config(4, 32), config(2, 256), why="after 4 probes: K=2 B=256, the knee"),
    ]
    fields = {
        "basis": "total",
        "as_of": NOON,
        "objective": "knee",
        "why": "after 4 probes: K=2 B=256, the knee: 1.5× faster than the cheapest",
        "source": "fitted to 4 probes of this job",
        "laws": LAWS,
        "points": points,
        "front": [config(p.workers, p.global_batch) for p in points if p.on_front],
        "knee": config(2, 256),
        "fastest": config(4, 256),
        "cheapest": config(1, 256),
        "start": config(1, 32),
        "current": config(2, 256),
        "chosen": config(2, 256),
        "support": 0.8,
        "runner_up": config(3, 256),
        "probes": [probe(*corner) for corner in CORNERS],
        "resizes": resizes,
    }
    return CurveView(**(fields | changes))


def job_view(phase=JobPhase.TRAINING, **changes):
    is_final = phase.is_final
    fields = {
        "id": ID,
        "name": "digits",
        "model_key": "digits/mlp",
        "phase": phase,
        "reason": "training on K=2 B=256",
        "worker_exit_code": None,
        "target": config(2, 256),
        "applied": config(2, 256),
        "generation": 5,
        "workers_alive": 0 if is_final else 2,
        "search": "searched: 4 probes",
        "progress": ProgressView(
            iteration=812,
            epochs=8.2,
            expected_epochs=12.5,
            max_epochs=120,
            metrics={"accuracy": 0.9534, "loss": 0.211},
        ),
        "indicators": IndicatorsView(
            noise=1.61, noise_scale=410, compute_time=0.0161, sync_time=0.0026, step_time=0.0187
        ),
        "cost": CostView(
            accrued=money("0.001234"),
            search=money("0.000410"),
            cap=money("0.05"),
            forecast=money("0.0031"),
        ),
        "elapsed": 21.4,
        "created_at": NOON,
        "finished_at": NOON + timedelta(seconds=21) if is_final else None,
        "spec": {},
    }
    return JobView(**(fields | changes))


def event(sequence=1, message="K=4 B=256: probe 3 of 4", kind="resize"):
    at = NOON + timedelta(seconds=sequence)
    return EventView(sequence=sequence, at=at, kind=kind, message=message, data={})


def text(renderable, width=100):
    """Render to plain text, without the spaces that end lines."""
    console = Console(
        file=StringIO(), width=width, markup=False, emoji=False, highlight=False, no_color=True
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def unknown_everything():
    """Return a job and a curve of which as little is known as the views allow."""
    nothing = {"noise": None, "noise_scale": None}
    job = job_view(
        JobPhase.PENDING,
        target=None,
        applied=None,
        progress=ProgressView(
            iteration=0, epochs=0, expected_epochs=None, max_epochs=120, metrics={}
        ),
        indicators=IndicatorsView(**nothing, compute_time=0, sync_time=0, step_time=0),
        cost=CostView(accrued=money("0"), search=money("0"), cap=None, forecast=None),
        search="",
    )
    strange = LAWS.model_copy(update={"noise_scale": None, "critical_batch": None})
    not_a_number = float("nan")
    curve = curve_view(
        laws=strange,
        points=[point(1, 32, noise=None, epochs=not_a_number, step_time=not_a_number)],
        probes=[probe(1, 32, **nothing)],
        resizes=[resize(1, None, config(1, 32), pause=None, iterations_lost=None)],
        knee=None,
        chosen=None,
        current=None,
    )
    return job, curve


def test_a_curve_shows_points_laws_and_the_choice():
    shown = text(render_curve(curve_view(), width=100))
    assert shown == CURVE


LAW_FORMS = {
    "a sum": ({}, "iteration", "τ = compute + sync"),
    "overlap": ({"overlap": 2.0}, "iteration", "τ = (compute^2 + sync^2)^(1/2)"),
    "accelerators that small batches do not fill": (
        {"flatness": 2.0},
        "compute",
        "((2 ms)^2 + (0.11 ms × b)^2)^(1/2), with b = B / K samples per worker",
    ),
    "rings": (
        {"growth": "log", "sync_across_machines": 0.003},
        "sync",
        "1.2 ms + 0.7 ms × log2 K, for K above 1, 3 ms more across machines",
    ),
    "parameter servers": (
        {"growth": "servers"},
        "sync",
        "0.7 ms × K, and 1.2 ms more for K above 1",
    ),
    "both arms": (
        {"noisy_samples": 100.0},
        "epochs",
        "e(B) = 9.07 × (1 + 100 / (B + 410) + B / 520)",
    ),
    "the falling arm": (
        {"noisy_samples": 442.0, "critical_batch": None},
        "epochs",
        "e(B) = 5.84 × (1 + 442 / (B + 410))",
    ),
    "the paper's": (
        {"noise_floor": 0.1, "noise_per_root": 4.0},
        "epochs",
        "e(B) = 14.5 × (0.1 + 4 / √B)",
    ),
    "the paper's noise": (
        {"noise_floor": 0.1, "noise_per_root": 4.0},
        "noise",
        "γ = K × (0.1 + 4 / √B), the paper's law; measured φ = 410 samples",
    ),
    "no noise": (
        {"critical_batch": 0.0},
        "epochs",
        "e(B) is proportional to B: gradients have no noise that larger batches would average",
    ),
    "nothing known": (
        {"critical_batch": None},
        "epochs",
        "e(B) is assumed constant: nothing was measured about it",
    ),
    "no spread known": ({"spread": None}, "error", "iteration times ±3.4 % where measured"),
}


@pytest.mark.parametrize(("changes", "name", "shown"), LAW_FORMS.values(), ids=LAW_FORMS)
def test_a_law_is_shown_in_the_form_it_has(changes, name, shown):
    facts = dict(curve_equations(LAWS.model_copy(update=changes), [point(1, 32)]))
    assert facts[name] == shown


def test_a_loss_that_is_not_finite_shows_while_it_lasts():
    said = "loss became NaN at iteration 40 on w1 and has not been finite since"
    job = job_view()
    lost = job.model_copy(update={"progress": job.progress.model_copy(update={"diverged": said})})
    for show in (render_job, lambda job: render_live_view(job, [], width=100)):
        assert said in text(show(lost))
        assert "diverged" not in text(show(job))


def test_the_live_view_shows_everything_that_matters():
    shown = text(render_live_view(job_view(), [event(19), event(20)], width=100))
    assert shown == LIVE


def test_the_demo_tells_its_story():
    job = job_view(JobPhase.SUCCEEDED, reason="target accuracy >= 0.97 reached after 12.4 epochs")
    assert text(render_first_job(job, curve_view(), width=100)) == FIRST_STORY


def test_the_demo_tells_that_the_second_job_needs_no_search():
    first = job_view(JobPhase.SUCCEEDED)
    second = job_view(
        JobPhase.SUCCEEDED,
        elapsed=9.8,
        reason="target accuracy >= 0.97 reached after 12.1 epochs",
        search="no search: model of 1 earlier job: K=2 B=256, the knee",
        cost=CostView(
            accrued=money("0.000702"), search=money("0"), cap=money("0.05"), forecast=None
        ),
    )
    curves = curve_view(), curve_view(probes=[], resizes=[])
    assert text(render_second_job(first, second, *curves)) == SECOND_STORY


def tables_in(renderable):
    """Yield every table of something that is shown."""
    if isinstance(renderable, ResponsiveTable):
        yield renderable
    for part in getattr(renderable, "renderables", ()):
        yield from tables_in(part)


def figures_in(renderable):
    """Return what is shown of each configuration, by the titles it is shown under."""
    shown = {}
    for table in tables_in(renderable):
        titles = [column.title for column in table.columns]
        for row in table.rows if titles[:2] == ["K", "B"] else ():
            for title, cell in zip(titles, row, strict=True):
                shown.setdefault((row[0], row[1], title), set()).add(str(cell))
    return shown


@given(st.floats(1, 4), st.floats(1, 1e4), st.floats(1e-3, 10))
def test_a_figure_that_is_shown_twice_is_the_same_twice(noise, scale, seconds):
    probes = [
        probe(*corner, noise=noise, noise_scale=scale, seconds=seconds, cost=seconds / 100)
        for corner in CORNERS
    ]
    story = render_first_job(job_view(JobPhase.SUCCEEDED), curve_view(probes=probes), width=100)
    shown = figures_in(story)
    assert {title for _, _, title in shown} >= {"γ", "γ_n", "φ", "τ", "TIME", "TOOK", "COMPUTE"}
    assert {where: cells for where, cells in shown.items() if len(cells) > 1} == {}


def test_the_noise_of_one_worker_is_1_wherever_it_is_of_workers():
    shown = figures_in(render_first_job(job_view(JobPhase.SUCCEEDED), curve_view(), width=100))
    assert {
        cell for (k, _, title), cells in shown.items() for cell in cells if (k, title) == ("1", "γ")
    } == {"1"}


@pytest.mark.parametrize(
    ("probed", "seen", "words"),
    [
        (0.0187, 0.0187, None),
        (0.0187, 0.0215, None),
        (0.0187, 0.0240, "slower now than while it was probed"),
        (0.0327, 0.0226, "faster now than while it was probed"),
        (None, 0.1, None),
    ],
)
def test_the_demo_says_when_measurements_of_one_configuration_disagree(probed, seen, words):
    points = [
        p.model_copy(update={"measured_step_time": probed if p.global_batch == 256 else None})
        for p in curve_view().points
    ]
    indicators = job_view().indicators.model_copy(update={"step_time": seen})
    job = job_view(JobPhase.SUCCEEDED, indicators=indicators)
    shown = " ".join(text(render_first_job(job, curve_view(points=points), width=100)).split())
    assert ("other programs" in shown) is (words is not None)
    assert words is None or words in shown


@pytest.mark.parametrize(
    ("busy", "cores", "workers", "is_told"),
    [(0.1, 2, 2, False), (0.6, 2, 2, True), (7.0, 16, 2, False), (15.0, 16, 2, True)],
)
def test_the_demo_says_beforehand_when_other_programs_take_its_cores(busy, cores, workers, is_told):
    said = load_warning(busy, cores, workers)
    assert (said is not None) is is_told
    assert said is None or f"use {busy:.1f} of {cores} cores" in said


def test_no_knee_is_shown_where_nothing_bends():
    for bends, said, shape in (
        (True, "★ knee · ✔ chosen", "★ knee"),
        (False, "least time × cost · ✔", "✔"),
    ):
        shown = text(render_curve(curve_view(knee_bends=bends), width=100))
        assert said in shown
        assert shape in shown
        assert ("★" in shown) is bends


def test_a_start_that_is_chosen_is_compared_with_the_dearest():
    curve = curve_view(chosen=config(1, 32))
    shown = text(render_first_job(job_view(JobPhase.SUCCEEDED), curve, width=100))
    assert "start, and chosen  K=1 B=32  3.0s  $0.000112" in shown
    assert "dearest            K=4 B=32  3.8s  $0.000561" in shown


def test_jobs_fit_a_narrow_terminal():
    shown = text(render_jobs([job_view(phase) for phase in JobPhase]), width=100)
    assert len(shown.splitlines()) == 1 + len(JobPhase)
    narrow = text(render_jobs([job_view(name="a-very-long-name-of-a-job")]), width=80)
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert ID in narrow


def test_every_phase_has_a_shape_of_its_own():
    assert set(PHASE_ICONS) == set(JobPhase)
    assert len({shape for shape, _ in PHASE_ICONS.values()}) == len(JobPhase)
    assert len({mark.shape for mark in PLOT_SYMBOLS}) == len(PLOT_SYMBOLS)


def test_a_search_that_is_the_reason_is_told_once():
    probing = "probe 2 of 4, K=2 B=32: corners come first"
    assert text(render_job(job_view(reason=probing, search=probing))).count(probing) == 1
    assert probing in text(render_job(job_view(reason="it trains", search=probing)))


@pytest.mark.parametrize(
    ("kind", "wish", "words"),
    [
        ("resize", {"to": "knee"}, "resize to knee"),
        ("resize", {"to": {"workers": 2, "global_batch": 64}}, "resize to K=2 B=64"),
        ("probe", {"workers": 2, "global_batch": 64}, "probe K=2 B=64"),
        ("pause", {}, "pause"),
        ("change", {"objective": "cheapest"}, "change objective to cheapest"),
        (
            "change",
            {"limits": {"max_cost": None, "max_time": "3h"}},
            "change max_cost to none, max_time to 3h",
        ),
    ],
)
def test_an_order_is_told_as_its_events_tell_it(kind, wish, words):
    facts = {"number": 1, "job": ID, "at": NOON, "by": "ada", "reason": "", "told": ""}
    order = OrderView.model_construct(kind=kind, wish=wish, state="done", **facts)
    assert describe_order(order) == words


def test_a_picture_is_not_written_to_a_terminal():
    data = Console(file=StringIO(), force_terminal=True)
    with pytest.raises(BinaryOnTerminal) as caught:
        write_png(Terminal(data, data, None), b"PNG", ID)
    assert f"scavenger curve {ID} -o png >" in caught.value.remedy


def test_a_job_in_detail_names_its_money():
    shown = text(render_job(job_view()))
    assert "$0.00123 spent, $0.000410 of it searching · cap $0.05 · ≈$0.00310 in the end" in shown
    assert "γ_n 1.61 · φ 410 samples" in shown


def test_what_is_unknown_is_a_dash_and_never_not_a_number():
    job, curve = unknown_everything()
    shown = "\n".join(
        text(renderable)
        for renderable in (
            render_job(job),
            render_jobs([job]),
            render_live_view(job, [], width=100, is_stale=True),
            render_change(job),
            render_curve(curve, width=100),
            render_first_job(job, curve, width=100),
            render_first_job(job, curve.model_copy(update={"points": [], "probes": []}), width=100),
            render_second_job(job, job, curve, curve),
        )
    )
    assert "nan" not in shown.lower()
    assert "None" not in shown


def test_a_relative_curve_shows_no_dollars_and_no_seconds():
    relative = curve_view(basis="relative")
    shown = text(render_plot(relative, width=80))
    assert "$" not in shown
    assert "×" in shown
    assert "epochs to target are not known yet" in text(render_curve(relative, width=80))


def test_the_plot_shows_feasible_points_in_full_and_counts_the_others():
    points = [point(1, 32), point(2, 64), point(1, 64, time=1e6, violations=["too slow"])]
    shown = text(render_plot(curve_view(points=points, knee=None), width=80))
    assert "1 point far over a limit not shown" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_plot_of_infeasible_points_only_shows_them():
    shown = text(render_plot(curve_view(points=[point(3, 64, violations=["too slow"])]), width=80))
    assert "✕ excluded" in shown


def test_a_long_curve_hides_what_does_not_matter():
    many = curve_view(points=[point(1, 32 + b, on_front=b == 0) for b in range(40)])
    assert "--all shows them" in text(render_curve(many, width=100))
    assert "--all" not in text(render_curve(many, width=100, show_all=True))


def test_words_of_others_neither_style_nor_steer():
    shown = text(render_event(event(message="[bold]K[/bold] \x1b[2J :smile:")))
    assert "[bold]K[/bold] \\x1b[2J :smile:" in shown


def test_events_count_from_the_start_or_show_date_and_time_in_utc():
    assert text(render_events([event(3)])).startswith("2026-11-20 12:00:03Z")
    assert text(render_events([event(3)], since=NOON)).startswith("   +3.0s")


def test_a_line_is_written_for_a_change_only():
    before = job_view()
    later = job_view(elapsed=22.0, generation=6)
    moving = job_view(target=config(4, 256))
    assert change_key(before) == change_key(later) != change_key(moving)
    assert "→ K=4 B=256" in text(render_change(moving))


def stored_model(key):
    return StoredModelView(
        model_key=key,
        signature="x",
        laws=LAWS,
        reference_batch=32,
        epochs_to_target={"accuracy >= 0.97": 12.4},
        jobs=2,
        updated_at=NOON,
    )


def test_models_name_their_targets():
    shown = text(render_models(StoredModelList(models=[stored_model("digits/mlp")])))
    assert "accuracy >= 0.97: 12.4 (at batch 32)" in shown


def test_a_plan_names_space_search_and_cap():
    shown = text(render_plan(parse_job(DOCUMENT)))
    assert "16 configurations: K 1–4, B 32–256" in shown
    assert "auto: a stored model if one fits, or else probes of 3 corners and what pays" in shown
    partial = text(render_plan(parse_job(DOCUMENT + "search: partial\n")))
    assert "partial: probes of 4 corners" in partial
    assert "$0.05 · 3m00s · one worker costs $0.13402/h" in shown


def test_a_plan_names_what_a_tariff_bills():
    hourly = "{per_hour: 0.02 USD/h, quantum: 1h}"
    shown = text(render_plan(parse_job(DOCUMENT.replace("0.13402 USD/h", hourly))))
    assert "one worker costs $0.02/h, billed by 1h00m" in shown
    custom = (
        "{per_vcpu_hour: 0.02 USD/h, per_gib_hour: 0.01 USD/h, vcpus: 4, "
        "memory: {fixed_gib: 1, gib_per_sample: 0.01}}"
    )
    wanted = DOCUMENT.replace("0.13402 USD/h", custom) + "search: universal\nlaws: paper\n"
    shown = text(render_plan(parse_job(wanted + "objective: {time_weight: 0.25}\n")))
    assert "one worker costs at most $0.1156/h" in shown
    assert "universal: the average of all stored models" in shown
    assert "objective  optimum at time 25%, cost 75%" in shown
    assert "laws       the paper's" in shown


def problem(status, **changes):
    fields = {
        "type": "about:blank",
        "title": "The document cannot be used",
        "status": status,
        "detail": "",
        "code": "validation" if status == 422 else "of_a_newer_controller",
    }
    return ProblemView(**(fields | changes))


DETAIL = ErrorDetail(pointer="/limits/workers", message="write e.g. 1..4", line=3, column=9)

REPORTS = [
    (
        Unreachable("http://127.0.0.1:8321", "Connection refused"),
        ["✗ No controller answers at http://127.0.0.1:8321", "start it with: scavenger serve"],
    ),
    (NoToken("no token is known for http://x"), ["set SCAVENGER_TOKEN, or pass --token"]),
    (
        InvalidInput(
            "job.yaml", [DocumentProblem("limits", "is missing", 3, 9), DocumentProblem("", "bad")]
        ),
        [
            "✗ job.yaml cannot be used: 2 problems",
            "  job.yaml:3:9: limits: is missing",
            "  job.yaml: bad",
        ],
    ),
    (
        error_for_problem(problem(422, errors=[DETAIL], request_id="req_1")),
        ["✗ The document cannot be used", "line 3, column 9: /limits/workers: write", "req_1"],
    ),
    (error_for_problem(problem(401)), ["connection.json"]),
    (error_for_problem(problem(404)), ["scavenger list"]),
    (error_for_problem(problem(404), "/v1/tokens/zzz/actions/revoke"), ["scavenger token list"]),
    (
        error_for_problem(problem(409, detail="it has ended"), f"/v1/jobs/{ID}/actions/cancel"),
        ["it has ended", f"scavenger show {ID}"],
    ),
    (error_for_problem(problem(403)), ["scavenger token create"]),
    (CurveUnavailable(job_view(), ""), [f"✗ digits ({ID}) has no curve", f"scavenger watch {ID}"]),
    (
        CurveUnavailable(job_view(JobPhase.FAILED), "it failed"),
        ["it failed", f"scavenger events {ID}"],
    ),
    (error_for_problem(problem(500)), ["read what the controller logged"]),
    (JobNotFound("x"), ["✗ No job matches x", "scavenger list"]),
    (AmbiguousJob("01", ["job_01A", "job_01B"]), ["2 jobs match 01", "job_01A", "write more"]),
    (ConfirmationRequired("End it?", "--yes"), ["End it?", "pass --yes"]),
    (ControllerStartFailed("it ended", "cannot listen"), ["✗ it ended", "cannot listen"]),
]


@pytest.mark.parametrize(("error", "expected"), REPORTS)
def test_a_report_says_what_happened_and_what_to_do(error, expected):
    shown = text(render_report(report_error(error)))
    assert [part for part in expected if part not in shown] == []
    assert "You can" in shown


def test_a_failed_job_is_reported_with_its_place_and_its_last_lines():
    why = "worker-2 exited with code 1; its last lines:\nTraceback\nValueError: [x]"
    job = job_view(JobPhase.FAILED, reason=why, worker_exit_code=1)
    shown = text(render_report(report_error(JobFailed(job))))
    assert shown.splitlines()[0] == f"✗ Job digits ({ID}) failed"
    assert "ValueError: [x]" in shown
    assert "K=2 B=256 · iteration 812 · $0.00123 spent" in shown
    assert shown.count("code 1") == 1


# SNAPSHOTS
CURVE = """\
cost to target
 $0.000396 ┤                                                                                       ✕
           ┤
           ┤
           ┤                                      ◇
           ┤
           ┤
           ┤                                    ◇                                                ✕
           ┤          ◇
           ┤
           ┤●            ◇
           ┤      ◆                                   ◇
           ┤                     ✪ ◇
           ┤                                                               ●   ●
$0.0000962 ┤                                                   ◆◇
           └────────────────────────────────────────────────────────────────────────────────────────
            1.3s                                 time to target                                 3.5s
            ✕ excluded  ◇ predicted  ◆ predicted, on the front  ● measured  ✪ knee, chosen
            1 point far over a limit not shown

K    B           τ     γ  e(B)            TIME        COST  NOTE
4  256  ●  13.2 ms  2.85  16.4  1.3s (1.1–1.4)   $0.000187  fastest · front
3  256  ◆  14.7 ms  2.23  16.4  1.4s (1.3–1.6)   $0.000158  runner-up · front
4  128  ◇  9.52 ms  3.29  13.7  1.5s (1.4–1.7)   $0.000228
3  128  ◇  9.99 ms  2.52  13.7  1.6s (1.5–1.8)   $0.000179
2  256  ◆  18.7 ms  1.62  16.4  1.8s (1.6–2.0)   $0.000134  ★ knee · ✔ chosen · ▣ current · front
2  128  ◇  11.6 ms  1.76  13.7  1.9s (1.7–2.1)   $0.000139
3   64  ◇  7.65 ms  2.73  12.4  2.2s (2.0–2.4)   $0.000247
4   64  ◇  7.76 ms  3.59  12.4  2.2s (2.0–2.5)   $0.000335
2   64  ◇  8.12 ms  1.86  12.4  2.4s (2.1–2.6)   $0.000175
1  128  ◆  16.1 ms     1  13.7  2.6s (2.3–2.8)  $0.0000962  front
1   64  ◇  9.04 ms     1  12.4  2.6s (2.4–2.9)  $0.0000974
1  256  ●  30.5 ms     1  16.4  2.9s (2.6–3.2)   $0.000108  cheapest
1   32  ●  5.58 ms     1  11.7  3.0s (2.7–3.3)   $0.000112  start
2   32  ◇  6.36 ms  1.93  11.7  3.5s (3.2–3.8)   $0.000259  ✕ takes 3.5 s, more than 3.2 s
3   32  ◇  6.47 ms  2.86  11.7  3.5s (3.2–3.9)   $0.000396  ✕ takes 3.5 s, more than 3.2 s
4   32  ●  6.95 ms  3.78  11.7  3.8s (3.4–4.1)   $0.000561  ✕ takes 3.5 s, more than 3.2 s
· brackets: 80 % interval of the time; the cost varies in proportion

  compute    2 ms + 0.11 ms × b, with b = B / K samples per worker
  sync       1.2 ms + 0.7 ms × K, for K above 1
  iteration  τ = compute + sync
  epochs     e(B) = 11 × (1 + B / 520)
  noise      γ = K × (b + φ) / (B + φ), with φ = 410 samples
  error      iteration times ±3.4 % where measured, ±5 % elsewhere
  source     fitted to 4 probes of this job
  objective  knee
  chosen     K=2 B=256
  why        after 4 probes: K=2 B=256, the knee: 1.5× faster than the cheapest"""
LIVE = """\
job_019aa0b4c8e5f3d2a71  digits  ▶ training  21.4s
  search     searched: 4 probes
  runs       K=2 B=256 · generation 5 · 2 alive
  progress   ████████████████████░░░░░░░░░░ 66 %  8.2 of ≈12.5 epochs (at most 120) · iteration 812
  metrics    accuracy 0.953 · loss 0.211
  noise      γ_n 1.61 · φ 410 samples
  iteration  █████████▒ τ 18.7 ms = compute 16.1 ms + sync 2.6 ms
  cost       $0.00123 spent, $0.000410 of it searching · cap $0.05 · ≈$0.00310 in the end

  +19.0s  resize          K=4 B=256: probe 3 of 4
  +20.0s  resize          K=4 B=256: probe 3 of 4"""
FIRST_STORY = """\

1  While it trained, 4 probes of 16 choices took 9.6s and $0.000893
K    B   γ_n    φ  COMPUTE  SYNC  ITERATIONS  TOOK       SPENT
1   32     1  410  5.52 ms  0 ms          40  2.4s  $0.0000893
1  256     1  410  30.2 ms  0 ms          40  2.4s  $0.0000893
4  256  2.85  410  9.04 ms  4 ms          40  2.4s   $0.000357
4   32  3.78  410  2.88 ms  4 ms          40  2.4s   $0.000357

2  What was measured gives laws, and the laws a curve of cost and time
  compute    2 ms + 0.11 ms × b, with b = B / K samples per worker
  sync       1.2 ms + 0.7 ms × K, for K above 1
  iteration  τ = compute + sync
  epochs     e(B) = 11 × (1 + B / 520)
  noise      γ = K × (b + φ) / (B + φ), with φ = 410 samples
  error      iteration times ±3.4 % where measured, ±5 % elsewhere

cost to target
 $0.000396 ┤                                                                                       ✕
           ┤
           ┤
           ┤                                      ◇
           ┤
           ┤
           ┤                                    ◇                                                ✕
           ┤          ◇
           ┤
           ┤●            ◇
           ┤      ◆                                   ◇
           ┤                     ✪ ◇
           ┤                                                               ●   ●
$0.0000962 ┤                                                   ◆◇
           └────────────────────────────────────────────────────────────────────────────────────────
            1.3s                                 time to target                                 3.5s
            ✕ excluded  ◇ predicted  ◆ predicted, on the front  ● measured  ✪ knee, chosen
            1 point far over a limit not shown

K    B           τ     γ  e(B)            TIME        COST  NOTE
4  256  ●  13.2 ms  2.85  16.4  1.3s (1.1–1.4)   $0.000187  fastest · front
3  256  ◆  14.7 ms  2.23  16.4  1.4s (1.3–1.6)   $0.000158  runner-up · front
4  128  ◇  9.52 ms  3.29  13.7  1.5s (1.4–1.7)   $0.000228
3  128  ◇  9.99 ms  2.52  13.7  1.6s (1.5–1.8)   $0.000179
2  256  ◆  18.7 ms  1.62  16.4  1.8s (1.6–2.0)   $0.000134  ★ knee · ✔ chosen · ▣ current · front
2  128  ◇  11.6 ms  1.76  13.7  1.9s (1.7–2.1)   $0.000139
3   64  ◇  7.65 ms  2.73  12.4  2.2s (2.0–2.4)   $0.000247
4   64  ◇  7.76 ms  3.59  12.4  2.2s (2.0–2.5)   $0.000335
2   64  ◇  8.12 ms  1.86  12.4  2.4s (2.1–2.6)   $0.000175
1  128  ◆  16.1 ms     1  13.7  2.6s (2.3–2.8)  $0.0000962  front
1   64  ◇  9.04 ms     1  12.4  2.6s (2.4–2.9)  $0.0000974
1  256  ●  30.5 ms     1  16.4  2.9s (2.6–3.2)   $0.000108  cheapest
1   32  ●  5.58 ms     1  11.7  3.0s (2.7–3.3)   $0.000112  start
2   32  ◇  6.36 ms  1.93  11.7  3.5s (3.2–3.8)   $0.000259  ✕ takes 3.5 s, more than 3.2 s
3   32  ◇  6.47 ms  2.86  11.7  3.5s (3.2–3.9)   $0.000396  ✕ takes 3.5 s, more than 3.2 s
4   32  ●  6.95 ms  3.78  11.7  3.8s (3.4–4.1)   $0.000561  ✕ takes 3.5 s, more than 3.2 s
· brackets: 80 % interval of the time; the cost varies in proportion

3  Chosen: K=2 B=256
  after 4 probes: K=2 B=256, the knee: 1.5× faster than the cheapest

4  4 resizes while it ran, 84ms of pause, 0 iterations lost
FROM       TO           PAUSE  LOST  WHY
K=1 B=32   → K=1 B=256   21ms     0  probe 2 of 4
K=1 B=256  → K=4 B=256   21ms     0  probe 3 of 4
K=4 B=256  → K=4 B=32    21ms     0  probe 4 of 4
K=4 B=32   → K=2 B=256   21ms     0  after 4 probes: K=2 B=256, the knee

5  Outcome: ✔ succeeded  accuracy 0.953 · loss 0.211
  reason     target accuracy >= 0.97 reached after 12.4 epochs
  took       21.4s and $0.00123 in all, $0.000410 of it searching (33 %)
  iteration  18.7 ms predicted, 18.7 ms seen (+0 %)

WHOLE TRAINING ON  CONFIG            TIME         COST
start              K=1 B=32          3.0s    $0.000112
chosen             K=2 B=256         1.8s    $0.000134
                              1.7× faster  19 % dearer"""
SECOND_STORY = """\

6  The same job again: 0 probes
  search   no search: model of 1 earlier job: K=2 B=256, the knee
  outcome  succeeded: target accuracy >= 0.97 reached after 12.1 epochs

JOB     SEARCH       CONFIG         TIME          COST  SEARCHING
first   4 probes  K=2 B=256        21.4s      $0.00123  $0.000410
second  0 probes  K=2 B=256         9.8s     $0.000702      $0.00
                             2.2× faster  43 % cheaper"""
