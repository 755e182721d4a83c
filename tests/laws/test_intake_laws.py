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

from scavenger.protocol import Progress, StepColumns, StepReport
from service.api.intake import take_in
from service.api.refusal import Refusal
from service.api.sieve import REPORT, judge, sift
from service.db import chunks, statistics
from service.db.batch import HIGHEST, LARGEST, LOWEST, MAY_LACK, NAMES, Batch, batch_of, columns_of
from service.db.packing import ROUNDING, pack, unpack
from tests.builders import NOW
from tests.telemetry.stage import differences, measured, set_up, truth

NUMBERS = count(1)
WHOLE = st.integers(0, 2**53)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rows = draw(st.integers(0, 12))
    series = [
        draw(
            st.lists(
                st.floats(LOWEST[place], HIGHEST[place])
                | (st.just(math.nan) if MAY_LACK[place] else st.nothing()),
                min_size=rows,
                max_size=rows,
            )
        )
        for place in range(len(NAMES))
    ]
    first = draw(WHOLE)
    iterations = draw(
        st.just(list(range(first, first + rows)))
        | st.lists(WHOLE, min_size=rows, max_size=rows)
        | st.just([first] * rows)
    )
    shards = draw(st.lists(st.integers(1, 8), min_size=rows, max_size=rows))
    return Batch(
        np.arange(rows),
        np.array(iterations, np.int64),
        np.array(shards, np.int64),
        np.array(series, np.float64).reshape(len(NAMES), rows),
    )


@given(batches())
def test_packed_rows_come_back_to_the_rounding_of_single_precision(batch: Batch) -> None:
    back = unpack(pack(batch))
    assert back.iteration.tolist() == batch.iteration.tolist()
    assert back.shards.tolist() == batch.shards.tolist()
    assert (np.isnan(back.series) == np.isnan(batch.series)).all()
    away = np.abs(back.series - batch.series) <= np.abs(batch.series) * ROUNDING
    assert (away | np.isnan(batch.series)).all()
    again = unpack(pack(back))
    assert columns_of(again) == columns_of(back)


@given(batches())
def test_columns_become_arrays_and_columns_again(batch: Batch) -> None:
    assert columns_of(batch_of(columns_of(batch))) == columns_of(batch)


def test_a_row_takes_34_bytes() -> None:
    assert len(pack(batch_of(measured(0, 1000)))) < 34 * 1000


def test_a_chunk_of_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="version 2"):
        unpack(b"\x02" + pack(batch_of(measured(0, 1)))[1:])


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
            st.tuples(st.sampled_from([name for name in NAMES if name != "loss"]), BAD),
        )
    )
    steps = {name: [json.dumps(x) for x in column] for name, column in asdict(good).items()}
    for place, (name, word) in places.items():
        steps[name][place] = word
    columns = ",".join(f'"{name}":[{",".join(column)}]' for name, column in steps.items())
    progress = '{"generation":1,"iteration":1,"samples":1,"epochs":1,"metrics":{}}'
    body = f'{{"worker":"w","sequence":7,"progress":{progress},"steps":{{{columns}}}}}'
    sieved = sift(body.encode())
    assert [row.sequence for row in sieved.rejected] == sorted(7 + place for place in places)
    assert (sieved.rows, sieved.following) == (rows, 7 + rows)
    assert sieved.batch.offset.tolist() == [x for x in range(rows) if x not in places]
    kept = batch_of(good).where(~np.isin(np.arange(rows), list(places)))
    assert columns_of(sieved.batch) == columns_of(kept)


@pytest.mark.parametrize("shards", [0, 1 << 30])
def test_shards_that_cannot_be_are_bad_too(shards: int) -> None:
    columns = asdict(measured(0, 3)) | {"shards": (1, shards, 1)}
    report = StepReport("w", Progress(1, 1, 1, 0.1, {}), 0, StepColumns(**columns))
    assert [row.sequence for row in sift(REPORT.dump_json(report)).rejected] == [1]


def test_columns_of_different_length_are_no_rows() -> None:
    steps = {name: list(column) for name, column in asdict(measured(0, 3)).items()}
    steps["loss"] = [math.nan, 1.0, 1.0, 1.0]
    progress = {"generation": 1, "iteration": 1, "samples": 1, "epochs": 1, "metrics": {}}
    body = json.dumps({"worker": "w", "progress": progress, "steps": steps})
    with pytest.raises(Refusal, match="differ in length"):
        sift(body.encode())


VALUES = st.one_of(
    st.floats(0, 10),
    st.floats(0, LARGEST),
    st.sampled_from([0.0, 5e-324, 1e-200, 1e-100, LARGEST, 1e8, 1e8 + 1e-7]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(VALUES, min_size=1, max_size=60), data=st.data())
def test_statistics_are_the_same_however_the_rows_come_in_batches(
    engine: Engine, values: list[float], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(values)), max_size=6)) | {len(values)})
    parts = [values[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
    parts = [part for part in data.draw(st.permutations(parts)) if part]
    with engine.begin() as connection:
        job = f"job_{next(NUMBERS)}"
        for worker, part in zip(set_up(connection, job, len(parts)), parts, strict=True):
            times = (0.5,) * len(part)
            columns = StepColumns(
                tuple(range(len(part))), (2,) * len(part), tuple(part), (None,) * len(part),
                times, times, times, (None,) * len(part),
            )  # fmt: skip
            report = StepReport(worker, Progress(1, 1, 1, 0.1, {}), 0, columns)
            take_in(connection, judge(report, {}), NOW)
        known = statistics.of_job(connection, job)
        stored = chunks.steps_of(connection, job, 1)
    told = truth([value for part in parts for value in part])
    assert differences(known[1, "local_norm_sq"], told) == []
    assert known[1, "local_norm_sq"].variance >= 0
    assert (1, "loss") not in known
    assert known[1, "step_time"].recent == pytest.approx(0.5)
    assert len(stored) == len(values)
