"""``make demo-aws``: train on machines that are rented from EC2, without an account.

A controller rents them with the AWS SDK. What answers is a stand-in for EC2 on this computer, whose
machines boot by the script that true ones get.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import yaml
from rich.text import Text

from scavenger.cli.demo import (
    cancel_running_jobs,
    demo_directory,
    example_job_file,
    load_warning,
    measure_busy_cores,
    report_failure,
    run_controller,
    run_job,
)
from scavenger.cli.demo_report import render_first_job
from scavenger.cli.errors import render_report, report_error
from scavenger.cli.jobs import exit_code_of_job
from scavenger.cli.output import Terminal, open_terminal
from scavenger.cli.submit import read_job_file, send_code
from scavenger.client.client import Client
from scavenger.client.code import pack_code
from scavenger.errors import ExitCode, ScavengerError
from scavenger.schemas.jobs import JobView
from tests.machines.computer import kill, processes_of
from tests.machines.lab import Lab, NamespaceLab, open_lab
from tests.machines.narration import Narrator, is_covered, render_bill
from tests.machines.rental import EC2, SDK_ENVIRONMENT, Rental, controller_options, open_rental

PROLOGUE = (
    "Scavenger rents a machine for each worker of a training job, and chooses their number (K) and "
    "the global batch (B) while the job trains. Here the machines come from EC2, without an "
    "account: a stand-in on this computer answers the AWS SDK as EC2 does, and bills as EC2 does. "
    "Each machine is {machine}, and boots by the script that a true one gets. Controller, boot "
    "script, agent, training and prices are the real ones; no money is spent."
)
MOST_WORKERS = 2
ENDING_TIMEOUT, POLL_INTERVAL = 20.0, 0.1


def main() -> int:
    """Show the demo; returns its exit code."""
    terminal = open_terminal(None, None)
    if sys.platform != "linux":
        terminal.print_message("✗ This demo needs Linux: the boot script of machines is for Linux")
        terminal.print_message("Next: make demo, which trains on this computer without a cloud")
        return ExitCode.USAGE
    use_no_account(os.environ)
    try:
        with interrupted_once(), demo_directory(None) as place:
            try:
                code = show_demo(terminal, place)
            finally:
                report_processes(terminal, end_processes(place))
    except ScavengerError as error:
        terminal.print_message(render_report(report_error(error)))
        return error.exit_code
    if code is ExitCode.SUCCESS:
        terminal.print_message("Next: docs/clouds.md, to rent machines with an account of yours")
    return code


def use_no_account(environment: MutableMapping[str, str]) -> None:
    """Lead the SDK away from the accounts that the user of this computer may have."""
    for name in [name for name in environment if name.startswith("AWS_")]:
        del environment[name]
    environment.update(SDK_ENVIRONMENT)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into an exit, and let no second one cut the clean-up off."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, end) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def show_demo(terminal: Terminal, place: Path) -> ExitCode:
    """Train one job on rented machines, and report on it and on its bill."""
    if warning := load_warning(measure_busy_cores(), os.cpu_count() or 1, MOST_WORKERS):
        terminal.print_message(warning, "yellow")
    place.chmod(0o711)  # started by root, the controller's database runs as another user
    narrator = Narrator(terminal)
    with open_lab() as lab:
        terminal.stdout.print(Text(PROLOGUE.format(machine=describe_machine(lab))))
        with open_rental(EC2, lab, place, narrator.began, narrator.ended) as rental:
            terminal.print_message(f"Starting EC2's stand-in and a controller in {place}")
            options = controller_options(lab, rental.clouds_file)
            with (
                run_controller(place / "home", terminal.pause, *options) as profile,
                Client(profile.url, profile.token) as client,
            ):
                job = train(terminal, client, write_job(place), rental)
            terminal.stdout.print(render_bill(rental.cloud, job))
    if exit_code_of_job(job) is not ExitCode.SUCCESS:
        return report_failure(terminal, job)
    if not is_covered(rental.cloud, job):
        terminal.print_message("✗ EC2 bills more than was booked, or more than the cap", "bold red")
        return ExitCode.OTHER
    terminal.print_message("\n✔ The job reached its target: bill ≤ ledger ≤ cap", "green")
    return ExitCode.SUCCESS


def describe_machine(lab: Lab) -> str:
    """Return what a machine is on this computer."""
    what = "a network" if isinstance(lab, NamespaceLab) else "an address"
    return f"a group of processes with {what} of its own"


def write_job(place: Path) -> Path:
    """Write the example's document as for machines of EC2; returns its file.

    It names no price, since the controller knows what the machines cost.
    """
    document = yaml.safe_load(example_job_file().read_text())
    del document["price"]
    file = place / "job.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def train(terminal: Terminal, client: Client, file: Path, rental: Rental) -> JobView:
    """Submit the job with its code, and follow it until its machines are gone."""
    jobs: list[str] = []
    try:
        with pack_code(example_job_file().parent) as packed:
            spec = read_job_file(file, code=packed.digest)
            send_code(terminal, client, packed)
        ended, curve = run_job(terminal, client, spec, jobs, "The job")
    finally:
        cancel_running_jobs(terminal, client, jobs)
        for _ in range(round(ENDING_TIMEOUT / POLL_INTERVAL)):
            if rental.is_empty():
                break
            terminal.pause(POLL_INTERVAL)
    terminal.stdout.print(render_first_job(ended, curve, width=terminal.stdout.width))
    return client.get_job(ended.id)


def end_processes(place: Path) -> int:
    """Wait until no process of the demo is left, and kill those that stay; returns how many do."""
    deadline = time.monotonic() + ENDING_TIMEOUT
    while left := list(processes_of(place)):
        if time.monotonic() > deadline:
            return sum(map(kill, left))
        time.sleep(POLL_INTERVAL)
    return 0


def report_processes(terminal: Terminal, killed: int) -> None:
    """Tell that all is over."""
    if killed:
        terminal.print_message(f"! {killed} processes of the demo did not end and were killed")
    else:
        terminal.print_message("No machine and no process of the demo is left")


if __name__ == "__main__":
    raise SystemExit(main())
