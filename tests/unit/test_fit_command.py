"""``scavenger fit``: exact laws come back, what is missing is said, pictures are drawn."""

import json
import random
import sys
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from scavenger.cli.main import app
from scavenger.cli.output import Terminal
from scavenger.cluster import ClusterConfig
from scavenger.errors import NotEnoughData, NothingFeasible
from scavenger.measurement.profiling import Measurement
from scavenger.models.epochs import FinishedRun
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.offline.fit import report_fit
from scavenger.offline.fitted_laws import FitRequest
from scavenger.offline.tables.steps import StepTable
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.objectives import Cheapest, Fastest

TRUTH = StepTimeLaw(0.020, 0.001, 0.010, 0.002)
RUNS = tuple(FinishedRun(batch, 10 * (1 + batch / 1000)) for batch in (32, 128, 512))
TOTAL = FitRequest(price_per_hour=0.5, dataset_size=50_000, epochs=20, at_batch=32)
seconds = st.floats(1e-3, 1.0)
truths = st.builds(StepTimeLaw, seconds, seconds, seconds, seconds)


def table_of(truth, workers=(2, 4, 8), batches=(32, 128, 512), hosted=1):
    configs = [ClusterConfig(k, b, hosted) for k in workers for b in batches]
    measured = tuple(Measurement(c, truth.step_time(c)) for c in configs)
    return StepTable("mine", "all_reduce", measured, (), len(measured))


def point_at(report, config):
    """The judged point of a configuration."""
    return next(judged for judged in report.points if judged.point.config == config)


def csv_of(table):
    lines = ["table,workers,nodes,global_batch,step_time"]
    for m in table.measurements:
        c = m.config
        lines.append(f"{table.name},{c.workers},{c.machines},{c.global_batch},{m.step_time!r}")
    return "\n".join(lines) + "\n"


def console():
    return Console(file=StringIO(), width=100, markup=False, emoji=False, highlight=False)


def run(*arguments):
    """Run a command; returns exit code, data and stderr."""
    desk = Terminal(console(), console(), connect=lambda: pytest.fail("no service is needed"))
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], obj=desk)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    stderr = desk.stderr.file.getvalue() + result.stderr
    return result.exit_code, desk.stdout.file.getvalue() + result.stdout, stderr


@pytest.fixture
def steps(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text(csv_of(table_of(TRUTH)))
    return file


@settings(max_examples=6)
@given(truths)
def test_an_exact_law_comes_back_without_error(truth):
    report = report_fit(table_of(truth, batches=(32, 512)), replace(TOTAL, laws="paper"))
    law = report.steps.model.laws[0]
    found = (law.compute_fixed, law.compute_per_sample, law.sync_fixed, law.sync_per_worker)
    assert report.steps.mean_error == pytest.approx(0, abs=1e-6)
    assert found[1] == pytest.approx(truth.compute_per_sample, rel=1e-4)
    assert found[3] == pytest.approx(truth.sync_per_worker, rel=1e-3)
    # Only their sum is told where every row has two workers or more.
    fixed = truth.compute_fixed + truth.sync_fixed
    assert found[0] + found[2] == pytest.approx(fixed, rel=1e-3)
    assert all(abs(point.error) < 1e-5 for point in report.measured)


@settings(max_examples=6)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(shuffle):
    table = table_of(TRUTH, batches=(32, 512))
    shuffled = list(table.measurements)
    shuffle.shuffle(shuffled)
    request = replace(TOTAL, laws="paper")
    other = report_fit(replace(table, measurements=tuple(shuffled)), request)
    assert other == report_fit(table, request)


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_intervals_hold_their_median_and_the_front_holds_the_ends(seed):
    noise = random.Random(seed)
    table = table_of(TRUTH, workers=(2, 8), batches=(32, 512))
    measured = tuple(
        replace(m, step_time=m.step_time * noise.uniform(0.8, 1.25)) for m in table.measurements
    )
    report = report_fit(replace(table, measurements=measured), TOTAL)
    for judged in report.points:
        point = judged.point
        for median, (low, high) in ((point.time, point.time_range), (point.cost, point.cost_range)):
            assert 0 < low <= median <= high
    assert point_at(report, report.marked("fastest")).is_on_front
    assert point_at(report, report.marked("cheapest")).is_on_front
    assert report.points[0].point.time == report.marks["fastest"].point.time


def test_seconds_and_dollars_follow_the_equations():
    report = report_fit(table_of(TRUTH), TOTAL)
    point = point_at(report, ClusterConfig(4, 128)).point
    time = 20 * 50_000 / 128 * TRUTH.step_time(ClusterConfig(4, 128))
    assert (report.curve.basis, report.cost_unit) == ("total", "USD")
    assert point.time == pytest.approx(time)
    assert point.cost == pytest.approx(time / 3600 * 4 * 0.5)


def test_workers_on_one_machine_pay_for_one():
    report = report_fit(table_of(TRUTH, hosted=8), replace(TOTAL, price_per_hour=None))
    point = point_at(report, ClusterConfig(8, 128, 8)).point
    assert report.cost_unit == "machine-hours"
    assert point.cost == pytest.approx(point.time / 3600)


def test_runs_at_several_batches_decide_the_epochs():
    report = report_fit(table_of(TRUTH), replace(TOTAL, epochs=None, at_batch=None, runs=RUNS))
    assert report.epochs.model.critical_batch == pytest.approx(1000)
    assert point_at(report, ClusterConfig(4, 512)).point.epochs == pytest.approx(15.12, rel=1e-3)


def test_a_noise_scale_is_a_prior_for_the_epochs():
    report = report_fit(table_of(TRUTH), replace(TOTAL, noise_scale=400))
    assert report.epochs.model.critical_batch == pytest.approx(400)
    assert "a prior" in report.epochs.why


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"dataset_size": None}, "--dataset-size"),
        ({"epochs": None}, "--epochs"),
        ({"dataset_size": None, "epochs": None}, "--dataset-size) and the epochs"),
    ],
)
def test_without_epochs_or_samples_the_curve_is_relative_and_says_so(changes, missing):
    report = report_fit(table_of(TRUTH), replace(TOTAL, **changes))
    assert (report.curve.basis, report.cost_unit) == ("relative", "relative")
    assert point_at(report, report.start).point.time == 1
    assert any(missing in note for note in report.notes)


def test_only_what_lies_between_the_measured_local_batches_is_predicted():
    table = table_of(TRUTH, workers=(2, 8), batches=(32, 512))
    inside = {judged.point.config for judged in report_fit(table, TOTAL).points}
    assert inside == {ClusterConfig(k, b) for k in (2, 8) for b in (32, 512)}
    asked = report_fit(table, replace(TOTAL, workers=(4, 16), global_batches=(64, 4096)))
    assert {judged.point.config.workers for judged in asked.points} == {4, 16}
    assert any("workers 16 lie beyond" in note for note in asked.notes)


def test_limits_are_kept_or_refused():
    second = report_fit(table_of(TRUTH), TOTAL).points[1].point
    within = ConstrainedObjective(Cheapest(), max_time=second.time_range[1])
    report = report_fit(table_of(TRUTH), replace(TOTAL, objective=within))
    assert any(point.violations for point in report.points)
    assert not point_at(report, report.chosen.point.config).violations
    with pytest.raises(NothingFeasible, match="the nearest"):
        report_fit(
            table_of(TRUTH),
            replace(TOTAL, objective=ConstrainedObjective(Fastest(), max_cost=1e-6)),
        )


def test_a_table_too_small_or_too_large_is_refused():
    with pytest.raises(NotEnoughData, match="one configuration, and a curve needs two"):
        report_fit(table_of(TRUTH, workers=(2,), batches=(32,)), TOTAL)
    large = table_of(TRUTH, workers=range(1, 41), batches=range(64, 90))
    with pytest.raises(NotEnoughData, match="more than 1,000"):
        report_fit(large, TOTAL)


def test_the_command_shows_laws_curve_and_choice(steps):
    code, data, stderr = run(
        "fit", steps, "--dataset-size", 50_000, "--epochs", 20, "--at-batch", 32,
        "--price", "0.5 USD/h", "--objective", "weighted", "--time-weight", 0.9,
    )  # fmt: skip
    assert (code, stderr) == (0, "")
    for word in (
        "mine: 9 configurations",
        "MEASURED τ",
        "forms: K q=1",
        "1 ms × b",
        "✔ chosen",
        "10–90 %",
    ):
        assert word in data, data
    assert "least weighted loss" in data


def keys_of(value):
    """The shape of a document: keys, and of lists the shape of the first item."""
    if isinstance(value, dict):
        return {key: keys_of(item) for key, item in value.items()}
    return [keys_of(value[0])] if isinstance(value, list) and value else None


def test_the_json_keeps_its_shape(steps):
    code, data, _ = run("fit", steps, "-o", "json")
    document = json.loads(data)
    place = dict.fromkeys(("workers", "global_batch", "machines"))
    interval = dict.fromkeys(("low", "median", "high"))
    assert code == 0
    assert document["version"] == 1
    assert keys_of(document) == {
        **dict.fromkeys(("version", "table", "rows", "topology", "laws", "basis", "cost_unit")),
        "step_time": dict.fromkeys(
            (
                "compute_fixed", "compute_per_sample", "sync_fixed", "sync_per_worker",
                "sync_across_machines", "growth", "overlap", "flatness", "spread", "error",
                "left_out_error", "why",
            )
        )
        | {
            "averaged": [
                dict.fromkeys(
                    (
                        "weight", "compute_fixed", "compute_per_sample", "sync_fixed",
                        "sync_per_worker", "sync_across_machines", "growth", "overlap", "flatness",
                    )
                )
            ]
        },
        "epochs": dict.fromkeys(
            (
                "law", "noise_scale", "critical_batch", "noisy_samples", "at_batch", "epochs",
                "spread", "why",
            )
        ),
        "measured": [
            {
                "place": place,
                **dict.fromkeys(("step_time", "predicted", "error", "left_out_error")),
            }
        ],
        "points": [
            {
                "place": place,
                **dict.fromkeys(("step_time", "measured_step_time", "epochs")),
                "time": interval,
                "cost": interval,
                **dict.fromkeys(("is_on_front", "violations")),
            }
        ],
        **dict.fromkeys(("start", "fastest", "cheapest", "knee"), place),
        "knee_bends": None,
        "chosen": {
            "place": place,
            **dict.fromkeys(("objective", "why", "support", "runner_up")),
        },
        "notes": [None],
    }  # fmt: skip
    assert run("fit", steps, "-o", "json")[1] == data


def test_files_beside_the_table_bring_epochs_and_a_price(steps, tmp_path):
    epochs, prices = tmp_path / "epochs.csv", tmp_path / "prices.csv"
    epochs.write_text("global_batch,epochs\n32,10.32\n128,11.28\n512,15.12\n")
    prices.write_text("item,region,usd_per_hour\nbig,east,2.0\nsmall,east,0.5\nsmall,west,0\n")
    code, data, _ = run(
        "fit",
        steps,
        epochs,
        prices,
        "--dataset-size",
        50_000,
        "--price",
        "small@east",
        "-o",
        "json",
    )
    document = json.loads(data)
    assert (code, document["basis"], document["cost_unit"]) == (0, "total", "USD")
    assert document["epochs"]["epochs"] == pytest.approx(11.28)
    code, _, stderr = run("fit", steps, prices, "--price", "small@west")
    assert code == 2
    assert "small@east" in stderr


def test_one_of_several_tables_has_to_be_named(tmp_path):
    file = tmp_path / "steps.csv"
    first, second = (replace(table_of(TRUTH), name=name) for name in ("a/x", "a/y"))
    file.write_text(csv_of(first) + "".join(csv_of(second).splitlines(keepends=True)[1:]))
    code, _, stderr = run("fit", file)
    assert code == 5
    assert "2 tables" in stderr
    assert "a/y" in stderr
    assert run("fit", file, "--table", "*/y")[0] == 0
    assert run("fit", file, "--table", "b")[0] == 5


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--plot", "curve.pdf"), 2, "neither .svg nor .png"),
        (("--epochs", "3"), 2, "--at-batch"),
        (("--epochs", "nan", "--at-batch", "3"), 2, "above 0"),
        (("--max-cost", "3 USD"), 2, "needs --price"),
        (("--price", "3"), 2, "has no unit"),
        (("--max-time", "soon"), 2, "is no duration"),
        (("--workers", "16..2"), 2, "write the low end first"),
        (("--batch", "many"), 2, "no list of whole numbers"),
        (("--workers", "2..8", "--batch", "1"), 2, "no configuration is left"),
    ],
)
def test_a_wrong_option_is_told(steps, arguments, code, said):
    ended, _, stderr = run("fit", steps, *arguments)
    assert ended == code
    assert said in " ".join(stderr.replace("│", " ").split())


def test_a_wrong_table_is_told_with_its_place(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text("workers,global_batch,step_time\n4,32,0\n")
    code, _, stderr = run("fit", file)
    assert code == 2
    assert f"{file}:2:6: step_time: 0 must be above 0" in stderr.replace("\n", "")


def test_limits_nothing_meets_have_an_exit_code_of_their_own(steps):
    total = ("--dataset-size", 50_000, "--epochs", 20, "--at-batch", 32)
    code, _, stderr = run("fit", steps, *total, "--max-time", "1ms")
    assert code == 7
    assert "no configuration meets the limits" in stderr


@pytest.mark.parametrize("name", ["curve.svg", "CURVE.PNG"])
def test_a_picture_is_drawn_and_labelled(steps, tmp_path, name):
    file = tmp_path / name
    code, _, stderr = run("fit", steps, "--plot", file)
    assert code == 0
    assert "Wrote" in stderr
    content = file.read_bytes()
    if name.endswith("svg"):
        text = content.decode()
        assert all(word in text for word in ("chosen", "fastest", "cheapest", "time to target"))
        run("fit", steps, "--plot", file)
        assert file.read_bytes() == content
    else:
        assert content.startswith(b"\x89PNG")


def test_without_what_draws_it_a_picture_is_refused_before_the_fit(steps, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, data, stderr = run("fit", steps, "--plot", "curve.svg")
    assert (code, data) == (1, "")
    assert "scavenger[plots]" in stderr
