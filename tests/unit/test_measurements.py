"""Tables people measured: what is read from them, and what is said about those that are wrong."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cli.errors import InvalidInput
from scavenger.cli.table_files import read_table_file
from scavenger.errors import InvalidDocument
from scavenger.models.epochs import FinishedRun
from scavenger.offline.tables.files import combine_tables, read_tables
from scavenger.offline.tables.runs import common_target

STEPS = "workers,nodes,global_batch,step_time,sync_time"
SHORT = "workers,global_batch,step_time"


def read(text):
    return read_tables(text.splitlines(keepends=True), name="mine")


def problems(text):
    with pytest.raises(InvalidDocument) as refused:
        read(text)
    return [str(problem) for problem in refused.value.problems]


seconds = st.floats(1e-6, 1e4).map(lambda value: float(f"{value:.6g}"))
rows = st.lists(
    st.tuples(st.integers(1, 64), st.integers(1, 64), seconds),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row[:2],
)


@given(rows)
def test_what_is_written_is_read_back(rows):
    text = "\n".join(f"{k},{k * b},{step!r}" for k, b, step in rows)
    (table,) = read(f"workers,global_batch,step_time\n{text}").steps
    found = {(m.config.workers, m.config.global_batch): m.step_time for m in table.measurements}
    assert found == {(k, k * b): pytest.approx(step) for k, b, step in rows}
    assert table.rows == len(rows)


@given(st.lists(seconds, min_size=1, max_size=8))
def test_repeats_become_their_geometric_mean(times):
    (table,) = read(
        "workers,global_batch,step_time\n" + "".join(f"2,8,{t!r}\n" for t in times)
    ).steps
    (measured,) = table.measurements
    mean = math.exp(sum(map(math.log, times)) / len(times))
    assert measured.step_time == pytest.approx(mean)
    assert table.rows == len(times)


@pytest.mark.parametrize(
    "text",
    [
        f"{STEPS}\n4,2,32,0.5,0.1\n",
        f"\ufeff{STEPS}\r\n4,2,32,0.5,0.1\r\n",
        f"\n{STEPS}\n\n4,2,32,0.5,0.1\n\n,,,,\n",
        "Workers , NODES,global_batch,step_time,sync_time\n 4, 2.0 ,32.0,5e-1,0.1\n",
        '"workers","nodes","global_batch","step_time","sync_time"\n"4","2","32","0.5","0.1"\n',
        'sync_time,remark,step_time,global_batch,nodes,workers\n0.1,"a, b",0.5,32,2,4\n',
    ],
    ids=["plain", "bom and crlf", "blank lines", "case and blanks", "quoted", "other order"],
)
def test_a_table_is_read_however_it_was_saved(text):
    (table,) = read(text).steps
    (measured,) = table.measurements
    assert (table.name, table.topology) == ("mine", None)
    config = measured.config
    assert (config.workers, config.global_batch, config.workers_per_machine) == (4, 32, 2)
    assert (measured.step_time, measured.compute_time) == pytest.approx((0.5, 0.4))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty: write a header and a row for each run"),
        (f"{STEPS}\n", "holds a header and no rows"),
        (
            "workers,global_batch,steptime\n1,2,3\n",
            'column 22: step_time: column is missing: rename "steptime"',
        ),
        ("workers,step_time\n1,2\n", "global_batch: column is missing: a table of steps has"),
        (
            "workers;global_batch;step_time\n1;2;3\n",
            "line 1, column 1: columns are separated by semi",
        ),
        ("workers\tglobal_batch\tstep_time\n1\t2\t3\n", "separated by tabs"),
        (f"{SHORT},workers\n1,2,3,4\n", 'column 32: column "workers" is there twice'),
        ("workers,,step_time\n1,2,3\n", "line 1, column 9: column 2 has no name"),
        ("1,32,0.5\n2,32,0.4\n", "the first line holds numbers: write the names"),
        ("\x00\x01PK\x03,b\n1,2\n", "is no comma-separated text"),
        (f"{STEPS}\n1,1,32\n", "line 2, column 1: has 3 cells where the header names 5 columns"),
        (f'{STEPS}\n1,1,32,"0.5,0.1\n', "line 2, column 1: cannot be read as comma-separated text"),
        (f"{STEPS}\n4,1,32,0,\n", "line 2, column 8: step_time: 0 must be above 0"),
        (f"{STEPS}\n4,1,32,-0.5,\n", "step_time: -0.5 must be above 0"),
        (f"{STEPS}\n4,1,32,nan,\n", 'step_time: "nan" is not finite: remove the row'),
        (f"{STEPS}\n4,1,32,inf,\n", 'step_time: "inf" is not finite'),
        (f"{STEPS}\n4,1,32,,\n", "step_time: is empty: write a number or remove the row"),
        (f"{STEPS}\n4,1,32,fast,\n", 'step_time: "fast" is no number: write one such as 0.42'),
        (f'{STEPS}\n4,1,32,"0,5",\n', '"0,5" is no number: write a decimal point, "0.5"'),
        (f"{STEPS}\n4.5,1,32,0.5,\n", 'workers: "4.5" is no whole number from 1 up'),
        (f"{STEPS}\n0,1,32,0.5,\n", 'workers: "0" is no whole number'),
        (f"{STEPS}\n4,1,1e300,0.5,\n", 'global_batch: "1e300" is no whole number'),
        (f"{STEPS}\n8,1,4,0.5,\n", "line 2, column 5: global_batch: 4 is below workers 8"),
        (f"{STEPS}\n2,4,8,0.5,\n", "nodes: 4 machines for 2 workers"),
        (f"{STEPS}\n4,1,32,0.5,0.6\n", "sync_time: 0.6 must be below step_time 0.5"),
        (f"{STEPS}\n4,1,32,0.5,-1\n", "sync_time: -1 must not be below 0"),
        (f"topology,{SHORT}\nring,1,2,3\n", '"ring" is unknown: write ps or allreduce'),
        (
            f"table,topology,{SHORT}\na,ps,1,2,3\na,allreduce,1,2,3\n",
            "line 3, column 3: topology: table a has another topology above",
        ),
        ("global_batch,epochs\n32,0\n", "epochs: 0 must be above 0"),
        ("item,usd_per_hour\na,-1\n", "usd_per_hour: -1 must not be below 0"),
        ("item,usd_per_hour\n,1\n", "item: is empty: write the machine type"),
    ],
)
def test_a_bad_table_is_told_where_and_what_to_do(text, said):
    assert said in "\n".join(problems(text))


def test_up_to_ten_problems_are_told_at_once():
    some = problems(f"{STEPS}\n4,1,32,0,\n4,1,32,0.5,\n8,1,4,0.5,\n")
    assert [problem.partition(":")[0] for problem in some] == [
        "line 2, column 8",
        "line 4, column 5",
    ]
    many = problems(f"{STEPS}\n" + "4,1,32,0,\n" * 50)
    assert len(many) == 11
    assert "line 11, column 1: reading stopped after 10 problems" in many[-1]


def test_noise_is_read_beside_seconds():
    text = "workers,global_batch,step_time,noise,noise_scale\n4,64,1,2,\n4,128,1,,40\n1,64,1,1,\n"
    (table,) = read(text).steps
    scales = {o.config.global_batch: o.indicators.noise_scale for o in table.observations}
    assert scales == {64: 32.0, 128: 40.0}


def test_tables_and_files_are_kept_apart():
    steps = read(
        "table,topology,workers,global_batch,step_time\nb,ps,1,8,1\na,,1,8,1\nb,ps,2,8,1\n"
    )
    assert [(t.name, t.topology, t.rows) for t in steps.steps] == [
        ("b", "parameter_server", 2),
        ("a", None, 1),
    ]
    epochs = read("global_batch,epochs,seed\n32,4\n".replace("32,4", "32,4,1"))
    prices = read("cloud,item,region,usd_per_hour\nc,m,r,0.5\n")
    everything = combine_tables([steps, epochs, prices])
    assert everything.ignored == ("seed",)
    assert everything.epochs[0].runs == (FinishedRun(32, 4.0),)
    assert everything.prices[0].key == "m@r"


def test_epochs_to_a_metric_are_interpolated_and_counted_in_samples():
    header = "global_batch,iteration,grad_sqr,grad_var,metric\n"
    slow = "".join(f"8,{100 * n},1,1,{n / 10}\n" for n in range(1, 11))
    fast = "".join(f"16,{100 * n},1,1,{n / 10}\n" for n in range(1, 11))
    (table,) = read(header + slow + fast).noise
    target = common_target(table)
    assert target is not None
    assert target.rises
    assert target.value == pytest.approx(0.1 + 0.98 * 0.9)
    assert [run.epochs for run in target.runs] == pytest.approx([9.82, 19.64])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.csv", None, "cannot be read: No such file"),
        ("folder", "folder", "cannot be read: Is a directory"),
        ("junk.csv", b"workers,\xff\xfe\n1,2\n", "is no UTF-8 text, it holds byte 0xff"),
        ("wide.csv", "workers,global_batch\n".encode("utf-16"), "is no UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path, name, content, said):
    file = tmp_path / name
    if content == "folder":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInput, match=said):
        read_table_file(file)


def test_many_repeats_need_no_memory():
    lines = (f"{2 + n % 3},{64},{1 + n % 7}\n" for n in range(20_000))
    (table,) = read_tables(["workers,global_batch,step_time\n", *lines], "x").steps
    assert (len(table.measurements), table.rows) == (3, 20_000)
