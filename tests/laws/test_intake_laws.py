"""What is packed comes back, a bad row costs itself, and how rows are split counts nothing."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from scavenger.measurement.steps import COLUMN_KINDS, StepColumns
from scavenger.protocol import Progress, StepReport
from service.api.problems import ApiProblem
from service.api.telemetry import REPORT_BODY, parse_report, store_report, validate_rows
from service.db import telemetry, workers
from service.db.step_arrays import (
    LIMITS,
    SINGLE_PRECISION,
    STAND_INS,
    StepArrays,
    pack,
    pack_columns,
    to_arrays,
    to_step_columns,
    unpack,
)
from tests.builders import NOW
from tests.telemetry.source import measured
from tests.telemetry.stage import set_up

NUMBERS = count(1)
WHOLE = st.integers(0, 2**53)


@st.composite
def batches(draw: st.DrawFn) -> StepArrays:
    rows = draw(st.integers(0, 12))
    columns = {
        name: draw(
            st.lists(
                st.floats(*LIMITS[name])
                | (st.just(math.nan) if kind in ("norm", "loss") else st.nothing()),
                min_size=rows,
                max_size=rows,
            )
        )
        for name, kind in COLUMN_KINDS.items()
        if kind != "count"
    }
    first = draw(st.integers(0, 2**53 - rows))
    iterations = draw(
        st.just(list(range(first, first + rows)))
        | st.lists(WHOLE, min_size=rows, max_size=rows)
        | st.just([first] * rows)
    )
    shards = draw(st.lists(st.integers(1, 8), min_size=rows, max_size=rows))
    counts = {"iteration": iterations, "shards": shards}
    values = [{**counts, **columns}[name] for name in COLUMN_KINDS]
    return StepArrays(np.arange(rows), np.array(values, np.float64))


@given(batches())
def test_packed_rows_come_back_to_the_rounding_of_single_precision(batch: StepArrays) -> None:
    back = unpack(pack(batch))
    assert back["iteration"].tolist() == batch["iteration"].tolist()
    assert back["shards"].tolist() == batch["shards"].tolist()
    assert (np.isnan(back.values) == np.isnan(batch.values)).all()
    away = np.abs(back.values - batch.values) <= np.abs(batch.values) * SINGLE_PRECISION
    assert (away | np.isnan(batch.values)).all()
    again = unpack(pack(back))
    assert to_step_columns(again) == to_step_columns(back)


@given(batches())
def test_columns_become_arrays_and_columns_again(batch: StepArrays) -> None:
    assert to_step_columns(to_arrays(to_step_columns(batch))) == to_step_columns(batch)


def test_a_row_takes_34_bytes() -> None:
    assert len(pack(to_arrays(measured(0, 1000)))) < 34 * 1000


def test_a_chunk_of_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="version 2"):
        unpack(b"\x02" + pack(to_arrays(measured(0, 1)))[1:])


NEVER_NEGATIVE = [name for name, kind in COLUMN_KINDS.items() if kind in ("norm", "seconds")]
BAD = st.sampled_from(
    [
        *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"x"', "[]", "{}"),
        *("-1.0", "1e300", "1" + "0" * 400),
    ]
)


@given(st.integers(1, 9), st.data())
def test_a_row_that_is_bad_costs_itself_only(rows: int, data: st.DataObject) -> None:
    good = measured(0, rows)
    places = data.draw(
        st.dictionaries(
            st.integers(0, rows - 1),
            st.tuples(st.sampled_from(NEVER_NEGATIVE), BAD),
        )
    )
    steps = {name: [json.dumps(x) for x in column] for name, column in asdict(good).items()}
    for place, (name, word) in places.items():
        steps[name][place] = word
    columns = ",".join(f'"{name}":[{",".join(column)}]' for name, column in steps.items())
    progress = '{"generation":1,"iteration":1,"samples":1,"epochs":1,"metrics":{}}'
    body = f'{{"worker":"w","sequence":7,"progress":{progress},"steps":{{{columns}}}}}'
    sieved = parse_report(body.encode())
    assert [row.sequence for row in sieved.rejected] == sorted(7 + place for place in places)
    assert (sieved.row_count, sieved.next_sequence) == (rows, 7 + rows)
    assert sieved.rows.offset.tolist() == [x for x in range(rows) if x not in places]
    kept = to_arrays(good).where(~np.isin(np.arange(rows), list(places)))
    assert to_step_columns(sieved.rows) == to_step_columns(kept)


@pytest.mark.parametrize("shards", [0, 1 << 30])
def test_shards_that_cannot_be_are_bad_too(shards: int) -> None:
    columns = asdict(measured(0, 3)) | {"shards": (1, shards, 1)}
    report = StepReport("w", Progress(1, 1, 1, 0.1, {}), 0, StepColumns(**columns))
    assert [row.sequence for row in parse_report(REPORT_BODY.dump_json(report)).rejected] == [1]


def test_columns_of_different_length_are_no_rows() -> None:
    steps = {name: list(column) for name, column in asdict(measured(0, 3)).items()}
    steps["loss"] = [math.nan, 1.0, 1.0, 1.0]
    progress = {"generation": 1, "iteration": 1, "samples": 1, "epochs": 1, "metrics": {}}
    body = json.dumps({"worker": "w", "progress": progress, "steps": steps})
    with pytest.raises(ApiProblem, match="differ in length"):
        parse_report(body.encode())


def test_a_chunk_from_before_a_column_was_declared_is_read_with_its_stand_in() -> None:
    rows = to_arrays(measured(0, 5))
    newest = [*COLUMN_KINDS][-1]
    assert STAND_INS[newest] == "compute_time"
    found = unpack(pack(rows).removesuffix(pack_columns(rows)[-1]))
    assert np.array_equal(found[newest], found["compute_time"])
    assert np.array_equal(found.values[:-1], unpack(pack(rows)).values[:-1])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=st.lists(st.integers(0, 1000), min_size=1, max_size=6), rows=st.integers(0, 5))
def test_a_generation_begins_with_its_earliest_iteration_whichever_report_comes_first(
    engine: Engine, starts: list[int], rows: int
) -> None:
    with engine.begin() as connection:
        job = f"job_{next(NUMBERS)}"
        for worker, start in zip(set_up(connection, job, len(starts)), starts, strict=True):
            report = StepReport(worker, Progress(1, 1, 1, 0.1, {}), 0, measured(start, rows))
            store_report(connection, validate_rows(report, {}), NOW)
        begun = telemetry.first_iterations(connection, job)
    assert begun == ({1: min(starts)} if rows else {})


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reports=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12))
def test_each_row_counts_once_though_rows_are_repeated_overtaken_or_missing(
    engine: Engine, reports: list[tuple[int, int]]
) -> None:
    cursor, kept, refused = 0, list[int](), 0
    with engine.begin() as connection:
        job = f"job_{next(NUMBERS)}"
        (worker,) = set_up(connection, job, 1)
        for start, rows in reports:
            numbers = range(start, start + rows)
            good, times = measured(start, rows), [-1.0 if n % 7 == 3 else 0.5 for n in numbers]
            columns = StepColumns(**{**asdict(good), "step_time": tuple(times)})
            report = StepReport(worker, Progress(1, 1, 1, 0.1, {}), start, columns)
            _, reply = store_report(connection, validate_rows(report, {}), NOW)
            fresh = [n for n in numbers if n >= cursor]
            accepted = [n for n in fresh if n % 7 != 3]
            kept, refused = kept + accepted, refused + len(fresh) - len(accepted)
            cursor = max(cursor, start + rows)
            assert (reply.next_sequence, reply.accepted) == (cursor, len(accepted))
        (known,) = workers.of_job(connection, job)
        assert (known.next_sequence, known.rejected) == (cursor, refused)
        assert telemetry.steps_of(connection, job, 1).iteration == tuple(kept)
        assert telemetry.first_iterations(connection, job) == ({1: min(kept)} if kept else {})
