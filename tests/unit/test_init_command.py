"""``scavenger init``: what it reads from a script, and that what it writes can be submitted."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from scavenger.cli.init import ScriptFacts, find_python, find_script, read_script, write_document
from scavenger.cli.main import app
from scavenger.cli.output import Terminal
from scavenger.client.client import Client
from scavenger.errors import ExitCode
from scavenger.job.spec import EpochsTarget
from scavenger.job.validation import parse_job

TOLD = [
    ("BATCH, EPOCHS = 32, 5", 32, 5, None),
    ("batch_size = 64\nfor epoch in range(3): pass", 64, 3, None),
    ("DataLoader(data, batch_size=16, shuffle=True)", 16, None, None),
    ("SIZE = 16\nDataLoader(data, batch_size=SIZE)", 16, None, None),
    ("parser.add_argument('-b', '--batch-size', type=int, default=128)", 128, None, None),
    ("parser.add_argument('--epochs', default=90)", None, 90, None),
    ("TrainingArguments(per_device_train_batch_size=8, num_train_epochs=3)", 8, 3, None),
    ("job.batches(1500, 64, epochs=30)", 64, 30, 1500),
    ("DataLoader(data, batch_size=args.batch)", None, None, None),
    ("batch_size = 0", None, None, None),
    ("for turn in range(7): pass", None, None, None),
    ("this is no Python", None, None, None),
    ("\0", None, None, None),
]


@pytest.mark.parametrize(("text", "batch", "epochs", "samples"), TOLD)
def test_a_script_tells_batch_and_epochs_where_it_names_them(
    text: str, batch: int | None, epochs: int | None, samples: int | None
) -> None:
    told = read_script(text)
    assert (told.batch, told.epochs, told.samples) == (batch, epochs, samples)


@pytest.mark.parametrize(
    ("text", "has_session", "starts_processes"),
    [
        ("import torch.nn", False, False),
        ("import worker_agent", True, False),
        ("from torch.nn.parallel import DistributedDataParallel", False, True),
        ("from torch import distributed", False, True),
        ("import torch.distributed as dist", False, True),
        ("import torch.distributedly", False, False),
        ("import torch.nn as nn\nnn.parallel.DistributedDataParallel(model)", False, True),
        ("import torch\ntorch.distributed.init_process_group('gloo')", False, True),
        ("from mine import dist\ndist.init_process_group('gloo')", False, True),
    ],
)
def test_imports_tell_how_a_script_is_started(
    text: str, has_session: bool, starts_processes: bool
) -> None:
    told = read_script(text)
    assert (told.has_session, told.starts_processes) == (has_session, starts_processes)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("torch.optim.AdamW(parameters)", "sqrt"),
        ("from torch.optim import Adam\nAdam(parameters)", "sqrt"),
        ("torch.optim.SGD(parameters)", "linear"),
    ],
)
def test_the_optimizer_tells_how_the_learning_rate_follows_the_batch(text: str, rule: str) -> None:
    facts = read_script(text)
    text = write_document(folder="a", script="b", python="python", cores=2, facts=facts)
    assert parse_job(text, "yaml", directory="/srv").lr_scaling.rule == rule


sizes = st.none() | st.integers(1, 10**6)
# Names of files in which no terminal is lost, nor YAML.
letters = st.characters(exclude_categories=["C", "Zl", "Zp"])
texts = st.text(letters, min_size=1, max_size=300)


@given(
    folder=texts | st.sampled_from(["on", "2026", "1e3", ".nan", "a b"]),
    script=texts,
    python=texts,
    cores=st.integers(1, 256),
    facts=st.builds(ScriptFacts, st.just(frozenset()), sizes, sizes, sizes),
)
def test_what_is_written_can_be_submitted_and_runs_the_script(
    folder: str, script: str, python: str, cores: int, facts: ScriptFacts
) -> None:
    text = write_document(folder=folder, script=script, python=python, cores=cores, facts=facts)
    spec = parse_job(text, "yaml", directory="/srv")
    assert spec.run.command == (python, script)
    assert spec.limits.max_cost is not None
    assert isinstance(spec.target, EpochsTarget)
    assert facts.epochs in (None, spec.target.epochs)
    assert facts.batch in (None, spec.target.at_batch)
    assert facts.samples in (None, spec.model.dataset_size)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["train.py", "main.py"], "train.py"),
        (["main.py", "train_gpt.py"], "main.py"),
        (["data.py", "train_gpt.py"], "train_gpt.py"),
        (["only.py"], "only.py"),
        (["one.py", "two.py"], None),
        (["notes.txt"], None),
    ],
)
def test_the_script_of_a_folder(files: list[str], found: str | None, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    script = find_script(tmp_path)
    assert (None if script is None else script.name) == found


def test_the_python_of_a_folder_runs_its_script(tmp_path: Path) -> None:
    assert find_python(tmp_path) in ("python", "python3")
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert find_python(tmp_path) == ".venv/bin/python"


def type_init(*words: str) -> tuple[int, str, str]:
    data, chatter = (Console(file=StringIO(), width=60, markup=False) for _ in range(2))
    terminal = Terminal(data, chatter, Client)
    result = CliRunner().invoke(app, ["init", *words], obj=terminal)
    said = [getattr(console.file, "getvalue")() for console in (data, chatter)]  # noqa: B009
    return result.exit_code, said[0], said[1] + result.stderr


def test_a_job_file_that_is_there_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("mine")
    code, data, said = type_init(str(tmp_path))
    assert (code, data, job.read_text()) == (ExitCode.CONFLICT, "", "mine")
    assert "--force" in said
    code, data, _ = type_init(str(tmp_path), "--force")
    assert (code, data.strip()) == (ExitCode.SUCCESS, str(job))
    assert parse_job(job.read_text(), "yaml").run.command[-1] == "train.py"
    assert type_init(str(tmp_path / "nowhere"))[0] == ExitCode.USAGE


@pytest.mark.parametrize(
    ("script", "said", "unsaid"),
    [
        ("import torch\nBATCH = 48", "job.batches(len(data), 48, epochs=30)", "connect"),
        ("from transformers import Trainer", "connect(trainer, job)", "batches"),
        ("import lightning", "SessionCallback(job)", "batches"),
        ("import tensorflow as tf\nBATCH = 48", "len(inputs), 48, epochs=30", "DataLoader"),
        ("from keras import layers", "@tf.function(reduce_retracing=True)", "DataLoader"),
        ("import keras, torch", "DataLoader", "tf.function"),
        ("import worker_agent", "has a session already", "+import"),
        ("import torch.distributed", "samples", "+import"),
        (None, "no train.py yet", "connect"),
    ],
)
def test_the_lines_to_change_are_those_of_the_scripts_trainer(
    script: str | None, said: str, unsaid: str, tmp_path: Path
) -> None:
    if script is not None:
        (tmp_path / "train.py").write_text(script)
    code, _, chatter = type_init(str(tmp_path))
    assert code == ExitCode.SUCCESS
    assert said in chatter
    assert unsaid not in chatter
    is_tensorflow = "framework: tensorflow" in (tmp_path / "job.yaml").read_text()
    assert is_tensorflow == ("tf.function" in chatter)
    wrapper = "[scavenger, agent, run, --, python, train.py]"
    assert (wrapper in (tmp_path / "job.yaml").read_text()) == (
        script == "import torch.distributed"
    )
