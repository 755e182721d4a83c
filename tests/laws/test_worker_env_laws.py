"""WorkerEnv: what the controller writes is what the machine reads."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.protocol import Role, TrainingStrategyName
from scavenger.worker_env import MetadataService, WorkerEnv, variable

words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)
seconds = st.floats(0, 1e9)
envs = st.builds(
    WorkerEnv,
    controller=words,
    token=words,
    job=words,
    worker=words,
    prepaid=seconds,
    role=st.sampled_from(get_args(Role)),
    strategy=st.sampled_from(get_args(TrainingStrategyName)),
    directory=st.none() | words,
    host=words,
    boot_delay=seconds,
    checkpoints=st.none() | words,
    checkpoint_every=seconds,
    checkpoint_keep=st.integers(1, 1000),
    job_secret=st.just("") | words,
    spool=st.none() | words,
    pid_file=st.none() | words,
    heartbeat=st.none() | words,
    deadline_file=st.none() | words,
    owns_computer=st.booleans(),
    metadata=st.none() | st.sampled_from(get_args(MetadataService)),
    bundle_secret=st.just("") | words,
    stack=words,
    local_batch=st.integers(0, 1 << 20),
    ca=st.none() | words,
)


@given(envs)
def test_a_machine_reads_what_the_controller_wrote(env: WorkerEnv) -> None:
    assert WorkerEnv.from_env(env.to_env()) == env


@given(envs, st.sampled_from(["controller", "token", "job", "worker", "prepaid"]))
def test_a_missing_variable_is_named(env: WorkerEnv, name: str) -> None:
    environment = env.to_env()
    del environment[f"SCAVENGER_{name.upper()}"]
    with pytest.raises(ValueError, match=f"SCAVENGER_{name.upper()} is not set"):
        WorkerEnv.from_env(environment)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("PREPAID", "soon", "prepaid"),
        ("ROLE", "king", "role"),
        ("CHECKPOINT_KEEP", "2.5", "checkpoint_keep"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, text: str, said: str) -> None:
    env = WorkerEnv(controller="c", token="t", job="j", worker="w", prepaid=60.0)
    with pytest.raises(ValueError, match=said):
        WorkerEnv.from_env(env.to_env() | {f"SCAVENGER_{name}": text})


def test_secrets_are_not_shown() -> None:
    env = WorkerEnv(
        controller="c", token="hidden1", job="j", worker="w", prepaid=1.0, job_secret="hidden2"
    )
    assert "hidden" not in repr(env)


def test_every_attribute_has_a_variable_of_its_own() -> None:
    names = [variable(each) for each in fields(WorkerEnv)]
    assert len(set(names)) == len(names)
