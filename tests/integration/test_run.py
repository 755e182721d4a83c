"""Scripts as people write them pass through ``agent run``: nothing about them changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from scavenger.protocol import StepReport
from tests.conductor import Conductor
from worker_agent.launcher.step_records import MeasuredStep, from_line

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests/scripts"
PYTHON = sys.executable
RUN = [PYTHON, "-m", "worker_agent", "run"]
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2"]
BOOT = str(ROOT / "worker_agent/launcher/boot")


def start(command: Sequence[str], directory: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def play(command: Sequence[str], directory: Path, **variables: str) -> tuple[int, str]:
    """Run to the end; returns the exit code and the last line."""
    process = start(command, directory, **variables)
    out, error = process.communicate()
    return process.returncode, (out or error).strip().rpartition("\n")[2]


def rows_in(path: Path) -> list[MeasuredStep]:
    return [from_line(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("script", "launcher", "shards", "iterations"),
    [
        (["plain.py"], [PYTHON], 1, 57),
        pytest.param(["iterable.py"], [PYTHON], 1, 39, marks=pytest.mark.slow),
        pytest.param(["keywords.py"], [PYTHON], 1, 5, marks=pytest.mark.slow),
        pytest.param(["ddp.py"], TORCHRUN, 2, 56, marks=pytest.mark.slow),
        pytest.param(["ddp_amp_accumulate.py"], TORCHRUN, 2, 30, marks=pytest.mark.slow),
        pytest.param(
            *(["torchrun_checkpoint.py", "2", "snapshot.pt"], TORCHRUN, 2, 58),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value[0] != PYTHON else None,
)
def test_a_script_computes_the_same_to_the_last_bit(
    tmp_path: Path, script: list[str], launcher: list[str], shards: int, iterations: int
) -> None:
    command = [*launcher, str(SCRIPTS / script[0]), *script[1:]]
    plain, watched = tmp_path / "plain", tmp_path / "watched"
    plain.mkdir()
    watched.mkdir()
    alone = play(command, plain)
    assert alone == play([*RUN, "--out", "rows.jsonl", "--", *command], watched)
    assert alone[0] == 0
    assert alone[1].startswith("final loss")
    rows = rows_in(watched / "rows.jsonl")
    assert len(rows) == iterations
    assert {row.shards for row in rows} == {shards}
    assert all(0 < row.step_time < 60 and row.compute_time > 0 for row in rows)
    if shards > 1:
        norms = [(row.local_norm_sq, row.mean_norm_sq) for row in rows]
        assert all(local >= mean > 0 for local, mean in norms if local and mean)
        assert sum(local is not None for local, _ in norms) >= iterations - 2


def test_outside_a_job_the_command_is_left_alone(tmp_path: Path) -> None:
    show = "import os; print({n: os.environ.get(n) for n in ('PYTHONPATH', 'SCAVENGER_ENABLE')})"
    command = [PYTHON, "-c", show]
    assert play([*RUN, *command], tmp_path) == play(command, tmp_path)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise KeyError('no such thing')", 1),
        # One ends as the last one does, the other as the first, each with a code of its own.
        pytest.param("import os; os._exit(7)", 7, marks=pytest.mark.slow),
        pytest.param("import sys; sys.exit(3)", 3, marks=pytest.mark.slow),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
    ids=["raises", "leaves at once", "exits", "is killed"],
)
def test_a_script_that_ends_in_the_middle_keeps_its_code(
    tmp_path: Path, code: str, expected: int
) -> None:
    (tmp_path / "hostile.py").write_text(f"{STEPS}\n{code}\n")
    command = [*RUN, "--out", "rows.jsonl", "--", PYTHON, "hostile.py"]
    assert play(command, tmp_path)[0] == expected


STEPS = """
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(5):
    weight.square().sum().backward()
    optimizer.step()
"""


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    code, said = play([*RUN, "--", "no-such-command"], tmp_path)
    assert code == 127
    assert said.startswith("cannot start no-such-command")


def test_the_users_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'here'\n")
    command = [PYTHON, "-c", "import sitecustomize; print(mine, sitecustomize.__file__)"]
    path = os.pathsep.join([BOOT, str(tmp_path)])
    code, said = play(command, tmp_path, PYTHONPATH=path, SCAVENGER_ENABLE="1")
    assert (code, said) == (0, f"here {tmp_path / 'sitecustomize.py'}")


@pytest.mark.parametrize("enabled", ["1", "0"])
def test_a_torch_that_cannot_be_patched_is_left_alone(tmp_path: Path, enabled: str) -> None:
    (tmp_path / "torch.py").write_text("strange = True\n")
    command = [PYTHON, "-c", "import torch; print(torch.strange)"]
    path = os.pathsep.join([BOOT, str(tmp_path), str(ROOT)])
    process = start(
        command, tmp_path, PYTHONPATH=path, SCAVENGER_ENABLE=enabled, SCAVENGER_ROWS="rows.jsonl"
    )
    out, error = process.communicate()
    assert (process.returncode, out) == (0, "True\n")
    assert ("unmeasured" in error) == (enabled == "1")
    assert error.count("\n") == int(enabled)


def conduct(directory: Path, *command: str, **environment: str) -> Conductor:
    return Conductor(
        directory,
        ["-m", "worker_agent", "run", "--", *command],
        dataset_size=1797,
        environment={
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": str(ROOT),
            "SCAVENGER_CHECKPOINTS": str(directory / "checkpoints"),
            **environment,
        },
    )


def resize(conductor: Conductor, plan: Sequence[Sequence[str]], iterations: int) -> None:
    """Go through a plan, some iterations in each generation, then tell all workers to end."""
    for name in sorted({name for names in plan for name in names}):
        conductor.start(name)
    try:
        for names in plan:
            generation = conductor.order(list(names), 64)
            conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= iterations)
            # Until each worker has confirmed a generation a controller orders nothing new.
            conductor.wait(
                lambda it=generation, n=names: confirmed(conductor.reports, it).issuperset(n)
            )
    finally:
        # Their scripts would outlive launchers that are killed.
        for process in conductor.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in conductor.processes.values():
            process.wait()


def shards_by_generation(reports: Sequence[StepReport]) -> dict[int, set[int]]:
    return {r.progress.generation: set(r.steps.shards) for r in reports if r.steps.shards}


def confirmed(reports: Sequence[StepReport], generation: int) -> set[str]:
    return {report.worker for report in reports if report.progress.generation == generation}


def rows_of(reports: Sequence[StepReport], generation: int) -> int:
    return sum(len(r.steps) for r in reports if r.progress.generation == generation)


@pytest.mark.slow
def test_workers_that_each_train_alone_are_stopped(tmp_path: Path) -> None:
    script = [PYTHON, str(SCRIPTS / "plain.py"), "--epochs", "1000"]
    with conduct(tmp_path, *script) as conductor:
        conductor.start("w0")
        conductor.start("w1")
        conductor.order(["w0", "w1"], 64)
        codes = [process.wait() for process in conductor.processes.values()]
        said = conductor.logs()
    assert codes == [2, 2]
    assert said.count("stopped: each of the 2 workers trains by itself") == 2


GROW_AND_SHRINK = (["w0"], ["w0", "w1"], ["w0"])


def test_a_script_goes_on_from_our_checkpoint_when_it_is_resized(tmp_path: Path) -> None:
    script = [PYTHON, str(SCRIPTS / "ddp.py"), "--epochs", "1000", "--pause", "0.02"]
    with conduct(tmp_path, *script) as conductor:
        resize(conductor, GROW_AND_SHRINK, iterations=20)
        said = conductor.logs()
        iterations = [i for report in conductor.reports for i in report.steps.iteration]
        shards = shards_by_generation(conductor.reports)
    assert iterations == list(range(1, len(iterations) + 1))
    assert shards == {1: {1}, 2: {2}, 3: {1}}
    assert said.count("training continues from iteration") == 2
    assert conductor.processes["w1"].returncode == 0


@pytest.mark.slow
def test_a_machine_that_stands_by_starts_its_script_again_when_it_is_named(tmp_path: Path) -> None:
    script = [PYTHON, str(SCRIPTS / "ddp.py"), "--epochs", "1000", "--pause", "0.02"]
    with conduct(tmp_path, *script) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        try:
            for names, standby, repairs in (
                (["w0", "w1"], (), False),
                (["w0"], ("w1",), False),
                (["w0"], (), True),  # repairs the others, and says nothing of who stands by
                (["w0", "w1"], (), False),
            ):
                before = dict(conductor.hellos)
                generation = conductor.order(names, 64, standby=standby, repairs=repairs)
                conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= 10)
                for name in standby:
                    conductor.wait(lambda w=name, b=before: conductor.hellos[w] != b[w])
            running = [process.poll() for process in conductor.processes.values()]
        finally:
            for process in conductor.processes.values():
                process.send_signal(signal.SIGTERM)
            for process in conductor.processes.values():
                process.wait()
        iterations = [i for report in conductor.reports for i in report.steps.iteration]
    assert iterations == list(range(1, len(iterations) + 1))
    assert running == [None, None]


@pytest.mark.slow
def test_a_script_with_its_own_checkpoint_goes_on_from_that(tmp_path: Path) -> None:
    script = [PYTHON, str(SCRIPTS / "torchrun_checkpoint.py"), "1000", "snapshot.pt"]
    with conduct(tmp_path, *script, PAUSE="0.01") as conductor:
        resize(conductor, GROW_AND_SHRINK, iterations=80)
        said = conductor.logs()
    assert said.count("resuming at epoch") == 2
    assert said.count("the script continues from its own checkpoint") == 2


@pytest.mark.slow
def test_torchrun_on_every_machine_finds_its_place(tmp_path: Path) -> None:
    script = [*TORCHRUN, str(SCRIPTS / "ddp.py"), "--epochs", "1000", "--pause", "0.05"]
    with conduct(tmp_path, *script) as conductor:
        resize(conductor, (["w0"], ["w0", "w1"]), iterations=10)
        shards = shards_by_generation(conductor.reports)
    assert shards == {1: {2}, 2: {4}}
