"""Seconds from the boot of a rented computer to its Hello, with and without the agent in its image.

The script, the agent and the training script are real; the metadata and the controller are doubles,
in this process. The training script loads PyTorch, as all do. ``make bench-clouds`` runs this, too.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil

from service.agent_package import AgentPackage
from service.clouds.boot import render_boot_script
from tests.builders import boot
from tests.controller_double import BOOTSTRAP, ControllerDouble, until
from tests.machines.computer import Computer
from tests.machines.lab import open_loopback

HELLO = 5.0  # the most that a computer whose image has the agent may take, in seconds
PATIENCE = 300.0
TRAINING = """
import time
with open("started", "w") as file:
    file.write(str(time.time()))
import torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the first one loads torch._dynamo
with open("loaded", "w") as file:
    file.write(str(time.time()))
import worker_agent
with worker_agent.session() as job:
    job.prepare(model, optimizer)
    for indices in job.batches(64, global_batch=8, epochs=1):
        pass
"""


class TimedController(ControllerDouble):
    """Notes when each kind of message comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[str, float] = {}

    def answer(self, path: str, content: bytes) -> bytes:
        self.came.setdefault(path.rpartition("/")[2], time.time())
        return super().answer(path, content)


def main() -> int:
    """Measure both; 1 if the limit was missed."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "computer"
        computer, package = Computer(root, modules=None), AgentPackage.build()
        boot_once(computer, package, "a bare image")
        took = boot_once(computer, package, "an image with the agent")
    verdict = "ok" if took <= HELLO else "MISSED"
    print(f"  boot to Hello  {took:.1f} s of {HELLO:.0f} s {verdict}", flush=True)
    return 0 if took <= HELLO else 1


def boot_once(computer: Computer, package: AgentPackage, image: str) -> float:
    """Boot a computer until it is heard; prints what took how long, and returns the seconds."""
    controller = TimedController()
    controller.package = package.content
    controller.assign(command=("python", "-c", TRAINING))
    told = {"controller": controller.url, "token": BOOTSTRAP, "agent": package.digest}
    with open_loopback() as lab:
        script, began = render_boot_script(boot(**told, prepaid=PATIENCE)), time.time()
        lab.boot(computer, script, "aws", "i-1")
        until(lambda: "hello" in controller.came or computer.off_at is not None, PATIENCE)
        if "hello" not in controller.came:
            raise SystemExit(computer.console)
        worked = sum(processor_seconds(each) for each in computer.processes())
    work = computer.root / "opt" / "scavenger" / "work"
    started, loaded = (float((work / name).read_text()) for name in ("started", "loaded"))
    enrolled, heard = controller.came["enrol"], controller.came["hello"]
    controller.close()
    print(
        f"{image}: Hello after {heard - began:.1f} s, {worked:.1f} s of processor: "
        f"{enrolled - began:.1f} s to enrolment, {started - enrolled:.1f} s to the command, "
        f"{loaded - started:.1f} s to load PyTorch, {heard - loaded:.1f} s to Hello",
        flush=True,
    )
    return heard - began


def processor_seconds(process: psutil.Process) -> float:
    """Return how long a process and those that it waited for have worked."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


if __name__ == "__main__":
    sys.exit(main())
