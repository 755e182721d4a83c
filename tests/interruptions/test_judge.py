"""The judge of a cell finds what is wrong with it, and nothing where all is well."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scavenger.schemas.jobs import JobPhase
from tests.interruptions.cells import CELLS, KINDS, MOMENTS, VICTIMS, WARNINGS, find_cell
from tests.interruptions.judge import judge, samples_of, undisturbed

ITERATIONS, STRUCK_AT = 6, 100.0
Lines = list[dict[str, Any]]


def view(**changes: Any) -> Any:
    """The part of a job's view that is judged."""
    facts = {"iteration": ITERATIONS, "phase": JobPhase.SUCCEEDED, "accrued": "0.5", "cap": "5"}
    told = facts | changes
    cost = SimpleNamespace(
        accrued=SimpleNamespace(amount=Decimal(told["accrued"])),
        cap=SimpleNamespace(amount=Decimal(told["cap"])),
    )
    progress = SimpleNamespace(iteration=told["iteration"])
    return SimpleNamespace(phase=told["phase"], reason="why", cost=cost, progress=progress)


def lines_of(worker: int) -> Lines:
    """What a worker of two notes, when no machine is taken back."""
    half = slice(0, 12) if worker == 1 else slice(12, 24)
    return [
        {
            "iteration": number,
            "attempt": [1, 0],
            "indices": samples_of(number)[half],
            "leads": worker == 1,
            "at": STRUCK_AT - 10 + number,
        }
        for number in range(1, ITERATIONS + 1)
    ]


def write(work: Path, first: Lines, second: Lines, end: dict[str, float]) -> None:
    for name, lines in (("w1", first), ("w2", second)):
        (work / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (work / "w1.end").write_text(json.dumps({"iteration": ITERATIONS, **end}))


def never_done(first: Lines, second: Lines) -> None:
    del first[3], second[3]


def half_done(first: Lines, second: Lines) -> None:
    del second[3]


def done_with_others(first: Lines, second: Lines) -> None:
    first[3]["indices"] = first[2]["indices"]


def done_again(first: Lines, second: Lines) -> None:
    for lines in (first, second):
        lines.append({**lines[5], "attempt": [2, 0]})


def done_again_from_long_ago(first: Lines, second: Lines) -> None:
    for lines in (first, second):
        lines += [{**line, "attempt": [2, 0]} for line in lines[1:]]


HARMS: dict[str, tuple[Callable[[Lines, Lines], None], str, str]] = {
    "never done": (never_done, "train:none:all", "iteration 4 was done with 0 samples"),
    "half done": (half_done, "train:none:all", "iteration 4 was done with 12 samples"),
    "other samples": (done_with_others, "train:none:all", "iteration 4 was done with 24 samples"),
    "again after a notice": (done_again, "train:notice:all", "1 iterations were done again"),
    "from before a checkpoint": (
        done_again_from_long_ago,
        "train:none:all",
        "iterations 2 to 5 were done again, from before a checkpoint",
    ),
}


@pytest.mark.parametrize(("harm", "cell", "said"), HARMS.values(), ids=HARMS)
def test_it_finds_iterations_that_were_not_done_once(
    tmp_path: Path, harm: Callable[[Lines, Lines], None], cell: str, said: str
) -> None:
    first, second = lines_of(1), lines_of(2)
    harm(first, second)
    write(tmp_path, first, second, undisturbed(ITERATIONS))
    _, wrong = judge(find_cell(cell), tmp_path, view(), 0.4, STRUCK_AT)
    assert any(said in sentence for sentence in wrong), wrong


@pytest.mark.parametrize(
    ("end", "changes", "bill", "said"),
    [
        ({"weights": 1.0}, {}, 0.4, "weights is 1.0 in the end"),
        ({"accuracy": 0.1}, {}, 0.4, "accuracy is 0.1 in the end"),
        ({}, {"phase": JobPhase.FAILED}, 0.4, "the job is failed: why"),
        ({}, {"iteration": 5}, 0.4, "no worker has written down its model of iteration 5"),
        ({}, {}, 0.6, "the bill is $0.600000, and the ledger has $0.500000"),
        ({}, {"cap": "0.4"}, 0.3, "$0.500000 is above the cap"),
    ],
)
def test_it_finds_other_results_and_money_that_is_missing(
    tmp_path: Path, end: dict[str, float], changes: dict[str, Any], bill: float, said: str
) -> None:
    write(tmp_path, lines_of(1), lines_of(2), {**undisturbed(ITERATIONS), **end})
    _, wrong = judge(CELLS[0], tmp_path, view(**changes), bill, STRUCK_AT)
    assert any(said in sentence for sentence in wrong), wrong


@pytest.mark.parametrize("name", ["train:notice:all", "train:none:all"])
def test_it_finds_nothing_where_all_is_well(tmp_path: Path, name: str) -> None:
    write(tmp_path, lines_of(1), lines_of(2), undisturbed(ITERATIONS))
    assert judge(find_cell(name), tmp_path, view(), 0.4, STRUCK_AT) == (0, ())


def test_without_a_notice_what_a_checkpoint_excuses_is_counted_and_not_wrong(
    tmp_path: Path,
) -> None:
    first, second = lines_of(1), lines_of(2)
    done_again(first, second)
    first[5]["at"] = second[5]["at"] = STRUCK_AT - 1.0
    write(tmp_path, first, second, undisturbed(ITERATIONS))
    assert judge(find_cell("train:none:all"), tmp_path, view(), 0.4, STRUCK_AT) == (1, ())


def test_each_cloud_sees_each_moment_warning_and_victim() -> None:
    assert len({str(cell) for cell in CELLS}) == 42
    for names in (MOMENTS, WARNINGS, VICTIMS):
        for name in names:
            assert {cell.kind for cell in CELLS if name in str(cell).split(":")} == set(KINDS)


def test_a_cell_that_is_none_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match="such as train:notice:leader"):
        find_cell("train:notice")
