"""``scavenger evaluate``: laws that hold are found to hold, and the rest is left out of the fit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.measurement.profiling import Measurement
from scavenger.models.epochs import FinishedRun
from scavenger.models.iteration_time import StepTimeLaw
from scavenger.offline.evaluation.checks import (
    EvaluationScope,
    groups_of,
    list_tasks,
    summarise_findings,
)
from scavenger.offline.evaluation.prediction_errors import (
    epochs_accuracy,
    noise_accuracy,
    spread_batches,
    step_time_accuracy,
)
from scavenger.offline.evaluation.regret import REGRET_OBJECTIVES, regrets
from scavenger.offline.evaluation.sampling import RandomDesign, Restriction, SearchDesign
from scavenger.offline.tables.files import MeasurementTables
from scavenger.offline.tables.runs import EpochsTable, NoiseRecord, NoiseTable, nearest_ancestor
from scavenger.offline.tables.steps import StepTable
from tests.unit.test_fit_command import csv_of, keys_of, run

LINES = StepTimeLaw(0.020, 0.001, 0.010, 0.002)
BATCHES = (32, 64, 128, 256, 512)
RISING = tuple(FinishedRun(batch, 10 * (1 + batch / 1000)) for batch in BATCHES)
WHOLE = Restriction()
SEARCH = SearchDesign()
designs = st.sampled_from((SEARCH, RandomDesign(1), RandomDesign(4, seed=7)))


def table_of(name="job/x", workers=(1, 2, 4, 8), batches=BATCHES, truth=LINES):
    configs = [ClusterConfig(k, b) for k in workers for b in batches if b >= k]
    measured = tuple(Measurement(c, truth.step_time(c)) for c in configs)
    return StepTable(name, "all_reduce", measured, (), len(measured))


seconds = st.floats(1e-3, 1.0)
# The first fit of a process takes long: it imports.


@given(st.builds(StepTimeLaw, seconds, seconds, seconds, seconds))
def test_exact_lines_are_predicted_exactly_from_six_points(truth):
    found = step_time_accuracy(table_of(truth=truth), 6, "paper", WHOLE, "all_reduce", SEARCH)
    assert found is not None
    assert found.error == pytest.approx(0, abs=1e-6)
    assert (found.windows, found.rest, found.covered) == (1, 14, 1.0)


@given(st.floats(1, 1e4), st.floats(0.1, 100), st.sampled_from([2, 3]))
def test_an_exact_rising_arm_is_predicted_exactly(critical, level, batches):
    runs = tuple(FinishedRun(batch, level * (1 + batch / critical)) for batch in BATCHES)
    found = epochs_accuracy(EpochsTable("job", runs), batches, "measured")
    assert found is not None
    # Three batches hold a prior against the falling arm, which an exact rise does not need.
    assert found.error == pytest.approx(0, abs=1e-3)
    assert found.rest == len(BATCHES) - batches


@given(st.sets(st.integers(2, 64), min_size=2, max_size=6), st.integers(2, 5), designs)
def test_what_was_probed_is_left_out_of_the_rest(batches, points, design):
    table = table_of(workers=(1, 2), batches=tuple(sorted(batches)))
    found = step_time_accuracy(table, points, "paper", WHOLE, "all_reduce", design)
    choices = design.choose_rows(table.measurements, points)
    for probed in choices:
        assert len(set(probed)) == len(probed) == min(points, len(table.measurements))
    rest = sum(len(table.measurements) - len(probed) for probed in choices)
    assert (found.rest if found else 0) == rest


@given(st.permutations(table_of().measurements), st.integers(2, 8), st.integers(0, 99))
def test_a_seed_draws_the_same_rows_in_any_order_of_arrival(shuffled, points, seed):
    drawn = RandomDesign(3, seed).choose_rows(table_of().measurements, points)
    assert RandomDesign(3, seed).choose_rows(shuffled, points) == drawn
    assert RandomDesign(2, seed).choose_rows(shuffled, points) == drawn[:2]
    assert RandomDesign(3, seed + 1).choose_rows(shuffled, points) != drawn


@given(st.floats(1, 1e5))
def test_exact_noise_is_predicted_exactly_from_its_ends(scale):
    records = tuple(
        NoiseRecord(b, 100.0, 1, 1, 0.5, 100 * (8 + scale) / (b + scale) * b / 8)
        for b in (8, 16, 64, 256)
    )
    found = noise_accuracy(NoiseTable("job", records))
    assert found is not None
    assert found.noise_scale == pytest.approx(scale, rel=1e-4)
    assert found.error == pytest.approx(0, abs=1e-6)


def test_a_choice_with_exact_laws_has_no_regret():
    found = regrets(table_of(), RISING, 6, "paper", WHOLE, "all_reduce", SEARCH)
    assert [each.wish for each in found] == list(REGRET_OBJECTIVES)
    exact = regrets(table_of(), RISING, 6, "measured", WHOLE, "all_reduce", SEARCH)
    for each in exact:
        if each.wish in ("fastest", "cheapest", "cheapest_likely_in_time"):
            assert each.regret == pytest.approx(0, abs=1e-3), each
        assert each.late == 0


@pytest.mark.parametrize(
    ("restriction", "expected"),
    [
        (Restriction(), [20]),
        (Restriction(2), [15]),
        (Restriction(2, 4), [10]),
        (Restriction(batch_ratio=2), [8, 8, 8, 8]),
        (Restriction(2, batch_ratio=2), [6, 6, 6, 6]),
        (Restriction(4, batch_ratio=2), []),
        (Restriction(batch_ratio=1.5), []),
    ],
)
def test_a_restriction_leaves_windows(restriction, expected):
    windows = restriction.windows(table_of().measurements)
    assert [len(window) for window in windows] == expected


def test_tables_without_four_corners_can_be_left_out():
    diagonal = tuple(m for m in table_of().measurements if m.config.local_batch == 32)
    assert Restriction().windows(diagonal) == (diagonal,)
    assert Restriction(needs_corners=True).windows(diagonal) == ()
    assert len(Restriction(needs_corners=True).windows(table_of().measurements)) == 1


def test_of_three_batches_the_middle_one_is_nearest_in_proportion():
    assert [run.global_batch for run in spread_batches(RISING, 3)] == [32, 128, 512]
    # Two are equally near: the smaller one.
    assert [run.global_batch for run in spread_batches(RISING[:4], 3)] == [32, 64, 256]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["a"], ["a"]),
        (
            ["p/x/spread", "p/y/spread", "p/x/packed", "p/y/packed"],
            ["p", "p/*/packed", "p/*/spread"],
        ),
        (["z/a/0.4", "z/b/0.4", "z/a/0.5", "z/b/0.5"], ["z"]),
        (["p/x/spread", "p/y/spread"], ["p"]),
        (["a/x", "b/x"], ["a", "b"]),
    ],
)
def test_tables_are_grouped_by_their_names(names, groups):
    assert list(groups_of(names)) == groups


def test_epochs_belong_to_the_tables_below_them():
    assert nearest_ancestor("p/bert/T4", ["p", "p/bert", "p/be", "q"]) == "p/bert"
    assert nearest_ancestor("p/bert", ["p/bert/T4"]) is None


def test_means_count_each_table_once():
    tables = MeasurementTables(
        steps=(table_of("a/x"), table_of("b/x", workers=(1, 2))),
        epochs=(EpochsTable("a", RISING),),
    )
    scope = EvaluationScope(points=(4,), laws=("paper",))
    evaluation = summarise_findings(f for check in list_tasks(tables, scope) for f in check())
    means = {(m.figure, m.group): m for m in evaluation.means}
    errors = [each.error for each in evaluation.step_times]
    assert means["step_time", ""].error == pytest.approx(sum(errors) / 2)
    assert means["step_time", ""].tables == 2
    assert means["step_time", "b"].error == pytest.approx(errors[1])
    assert means["knee", "a"].tables == 1
    assert all(m.covered is None for m in evaluation.means if m.figure == "epochs")


@pytest.fixture
def files(tmp_path):
    steps, epochs = tmp_path / "steps.csv", tmp_path / "epochs.csv"
    steps.write_text(csv_of(table_of("job/x")))
    rows = "".join(f"job,{run.global_batch},{run.epochs!r}\n" for run in RISING)
    epochs.write_text(f"table,global_batch,epochs\n{rows}")
    return steps, epochs


def test_the_command_shows_every_check_and_its_mean(files):
    code, data, stderr = run("evaluate", *files, "--points", "4,6", "--laws", "paper")
    assert (code, stderr) == (0, "")
    for word in ("Seconds per iteration", "Epochs to target", "Regret of choices", "Means over"):
        assert word in data
    assert "job/x" in data


def test_the_json_of_an_evaluation_keeps_its_shape(files):
    code, data, _ = run("evaluate", *files, "--points", "4", "-o", "json")
    document = json.loads(data)
    both = ("table", "laws", "error", "covered", "rest")
    assert code == 0
    assert keys_of(document) == {
        "version": None,
        "step_times": [dict.fromkeys((*both, "points", "design", "windows"))],
        "epochs": [dict.fromkeys((*both, "batches"))],
        "noise": None,
        "regrets": [
            dict.fromkeys(
                ("table", "laws", "points", "design", "wish", "windows", "regret", "late")
            )
        ],
        "means": [
            dict.fromkeys(
                ("group", "figure", "laws", "points", "design", "tables", "error", "covered")
            )
        ],
    }
    assert {each["laws"] for each in document["step_times"]} == {"measured", "paper"}


def test_random_choices_stand_beside_those_of_a_search_and_repeat(files):
    asked = ("evaluate", *files, "--points", "4", "--laws", "paper", "--random", "3", "-o", "json")
    first, again, other = (json.loads(run(*asked, "--seed", n)[1]) for n in (0, 0, 1))
    assert again == first != other
    of_search, of_chance = first["step_times"]
    assert (of_search["design"], of_chance["design"]) == ("search", "random")
    assert of_chance["rest"] == 3 * of_search["rest"]
    assert {each["design"] for each in first["regrets"]} == {"search", "random"}
    assert {m["design"] for m in first["means"] if m["figure"] == "epochs"} == {"search"}
    assert "random" in run(*asked[:-2])[1]


def test_only_the_named_tables_are_checked_and_their_epochs(files, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text(csv_of(table_of("other/y")))
    _, data, _ = run("evaluate", *files, other, "--table", "job/*", "--points", "4", "-o", "json")
    document = json.loads(data)
    assert {each["table"] for each in document["step_times"]} == {"job/x"}
    assert document["regrets"]
    assert document["epochs"]
    assert run("evaluate", *files, "--table", "nothing")[0] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--points", "1"), "must be from 2 to 64"),
        (("--points", "few"), "no list of whole numbers"),
        (("--batch-ratio", "1"), "must be above 1"),
        (("--batch-ratio", "nan"), "must be above 1"),
        (("--workers", "8..2"), "write the low end first"),
    ],
)
def test_a_wrong_option_of_an_evaluation_is_told(files, arguments, said):
    code, _, stderr = run("evaluate", *files, *arguments)
    assert code == 2
    assert said in " ".join(stderr.replace("│", " ").split())


def test_nothing_to_check_is_said(files):
    code, _, stderr = run("evaluate", files[0], "--points", "40", "--laws", "paper")
    assert code == 0
    assert "no table has more rows than points" in stderr
