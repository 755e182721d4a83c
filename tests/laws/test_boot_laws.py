"""What a machine is launched with: constant in size, and nothing of the user's."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.job.run import CheckpointsSpec, RunSpec
from service.clouds.boot import render_boot_script
from service.clouds.provider import Boot
from service.reconciler.fleet import ControllerContact, Fleet
from service.state.loader import OrderedJob
from service.state.orders import NO_ORDERS
from tests.builders import boot, job, spec, vm

MAX_SCRIPT_BYTES = 4096
DIGEST = "0123456789abcdef" * 4
CONTACT = ControllerContact("https://10.0.0.1:8321", "scb_{}_0a".format, DIGEST, DIGEST)
NASTY = ("'", '"', "$(reboot)", "`reboot`", "\n", "\0", "\\", "EOF", "a" * 2**20)

# Composing a launch asks neither database nor cloud.
nothing: Any = (None, None)

texts = st.text() | st.sampled_from(NASTY)
runs = st.builds(
    RunSpec.model_construct,
    command=st.lists(texts, min_size=1).map(tuple),
    directory=st.none() | texts,
    env=st.dictionaries(texts, texts),
    secrets=st.lists(texts).map(tuple),
    checkpoints=st.builds(CheckpointsSpec.model_construct, directory=texts),
    stall=st.floats(0, 1e9),
    drain=st.floats(0, 1e9),
)


def script_of(run: RunSpec) -> str:
    """Render the script of the machine of a job that runs something."""
    fleet: Any = Fleet(*nothing, CONTACT, *nothing[1:])
    given_job = job(spec=spec().model_copy(update={"run": run}))
    unordered = OrderedJob(given_job, NO_ORDERS, given_job.spec)
    return render_boot_script(fleet._launch_request(unordered, vm(1), {}).boot)


@settings(max_examples=300, deadline=None)
@given(runs)
def test_the_script_of_a_machine_is_the_same_for_every_job(run: RunSpec) -> None:
    assert script_of(run) == script_of(RunSpec(command=("true",)))


@given(st.data())
def test_only_ids_and_token_differ_between_machines(data: st.DataObject) -> None:
    ids = st.from_regex(r"[a-z0-9_-]{1,40}", fullmatch=True)
    mine, other = (boot(job=data.draw(ids), worker=data.draw(ids), agent=DIGEST) for _ in "ab")
    script = render_boot_script(mine)
    for name, text in mine.environment.items():
        script = script.replace(f"{name}='{text}'", f"{name}='{other.environment[name]}'")
    assert script == render_boot_script(other)


@given(
    st.sampled_from([each.name for each in fields(Boot) if each.name != "prepaid"]),
    st.text(min_size=1) | st.text("abc/:'$\n ", min_size=1) | st.just(DIGEST),
)
def test_what_would_need_quoting_is_refused(name: str, text: str) -> None:
    changes: dict[str, Any] = {"agent": DIGEST, name: text}
    try:
        made = boot(**changes)
    except ValueError:
        return
    for value in made.environment.values():
        assert re.fullmatch(r"[A-Za-z0-9._~:/\[\]-]+", value)


def largest() -> Boot:
    return boot(
        controller=f"https://{'a' * 253}:65535/{'b' * 128}",
        job="j" * 128,
        worker="w" * 128,
        token="t" * 160,
        prepaid=31622399.999,
        agent=DIGEST,
        ca=DIGEST,
    )


# What bash and busybox read and POSIX does not have; `sh` may be any of them here.
NOT_POSIX = re.compile(
    r"\[\[|<\(|>\(|<<<|&>|\$'|(?<!\$)\(\(|\w+=\(|\s==\s|pipefail"
    r"|(?:^|[;&|{(])\s*(?:function|local|declare|source|let)\s"
)


def test_every_shell_can_read_the_script() -> None:
    script = render_boot_script(largest())
    subprocess.run(["sh", "-n"], input=script.encode(), check=True)
    commands = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in commands if NOT_POSIX.search(line)] == []


def test_the_largest_script_fits_everywhere() -> None:
    assert len(render_boot_script(largest()).encode()) < MAX_SCRIPT_BYTES


def test_a_rented_machine_installs_the_agent_of_its_controller() -> None:
    with pytest.raises(ValueError, match="names no agent package"):
        render_boot_script(boot())


def test_repeating_a_launch_repeats_its_boot() -> None:
    machine = vm(1, price_per_hour=Decimal(7))
    assert CONTACT.boot_of(machine) == CONTACT.boot_of(replace(machine, attempted_at=None))
