"""A controller with 200 jobs on 1 000 machines, half of them on EC2 and half on Compute Engine.

Both clouds are processes of their own that speak the clouds' protocols; the controller is the one
that people run, with the clouds' SDKs. Prints how many machines boto3 launches in a second, how
long a pass of the reconciler takes, how often each cloud is listed, how long a page of the API
takes meanwhile, and how long a machine takes from its boot to its Hello, each beside its limit, and
fails when one is missed. Other programs on the computer make figures worse. Run by ``make
bench-clouds``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import to_json

from service.auth.tokens import ControllerKeys
from service.clouds.labels import OWNER_LABEL, ResourceLabels
from service.clouds.provider import LaunchRequest, Provider
from service.clouds.registry import read_clouds_file
from service.db import controllers
from service.postgres.server import EmbeddedPostgres
from service.settings import Settings as ControllerSettings
from tests.bench.boot import main as measure_boots
from tests.bench.fleet import Fleet
from tests.bench.load import percentile
from tests.bench.machine import measure
from tests.bench.scale import connected
from tests.builders import boot, offer
from tests.conformance.google.rental import ENTRY, GCE_TYPE, ZONE
from tests.conftest import run
from tests.controller import Controller
from tests.controller_double import until
from tests.fakecloud.aws_region import GROUP, IMAGE
from tests.fakecloud.bill import Tariff
from tests.fakecloud.clock import RealClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.ec2_door import AwsDoor
from tests.fakecloud.google_door import GoogleDoor, GoogleManners
from tests.fakecloud.http_server import Answer, HttpRequest, HttpServer
from tests.fakecloud.settings import Settings
from tests.machines.rental import SDK_ENVIRONMENT

PASS, PAGE, LAUNCHES, WINDOW = 5.0, 0.1, 100.0, 5.0
JITTER = 0.1  # between the moment that a list is due and its arrival at the cloud
MOST_LISTS = 1  # of one cloud, in so many seconds as the window has
KEYS, THREADS, PAUSE = 400, 8, 0.05
EC2_TYPE = "m7i.xlarge"
TARIFFS = {kind: Tariff(0.2, minimum=60.0) for kind in (EC2_TYPE, GCE_TYPE)}
MANNERS = Settings(tariffs=TARIFFS, has_zonal_tokens=True, boot=0.0, page=1000)
GOOGLE_MANNERS = replace(
    MANNERS, are_tokens_free_again=True, memory=0.0, lags_in_lists_only=True, page=500
)
LISTS_PATH = "/bench/lists"
PLACES = {
    "aws": offer("0.2", cloud="aws", zone="eu-central-1a", machine_type=EC2_TYPE, image=IMAGE),
    "google": offer("0.2", cloud="google", zone=ZONE, machine_type=GCE_TYPE, image=ENTRY["image"]),
}
PAGES = ("/v1/jobs?limit=50", "/v1/jobs/job_0007", "/v1/jobs/job_0007/events?limit=50")


def main() -> int:
    """Print what was measured; 1 if a limit was missed."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--jobs", type=int, default=200, help="on five machines each")
    reader.add_argument("--seconds", type=float, default=60.0, help="for how long it is watched")
    reader.add_argument("--serve", choices=sorted(PLACES), help=argparse.SUPPRESS)
    asked = reader.parse_args()
    if asked.serve:
        serve(asked.serve)
        return 0
    os.environ.update(SDK_ENVIRONMENT)
    results = [measure_boots() == 0]
    results += [bench_launches(kind, limit) for kind, limit in (("aws", LAUNCHES), ("google", 0.0))]
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        directory = Path(place)
        directory.chmod(0o755)
        clouds = stack.enter_context(renting(directory))
        postgres = stack.enter_context(EmbeddedPostgres(directory / "postgres"))
        run(postgres, "CREATE DATABASE clouds")
        results += bench_controller(directory, postgres.url("clouds"), clouds, asked)
    return 0 if all(results) else 1


# The clouds


def serve(kind: str) -> None:
    """Serve one cloud until killed, and count its lists; prints its address."""
    door: AwsDoor | GoogleDoor
    if kind == "aws":
        door = AwsDoor(FakeCloud(RealClock(), MANNERS))
    else:
        manners = GoogleManners(operation_seconds=0.0)
        door = GoogleDoor(FakeCloud(RealClock(), GOOGLE_MANNERS), manners)
    lists: list[float] = []

    def answer(request: HttpRequest) -> Answer:
        if request.target == LISTS_PATH:
            told = {"lists": lists, "machines": len(door.cloud.machines())}
            return 200, "application/json", to_json(told)
        if begins_list(kind, request):
            lists.append(time.monotonic())
        return door.answer(request)

    server = HttpServer(answer)
    print(server.url, flush=True)
    server.serve()


def begins_list(kind: str, request: HttpRequest) -> bool:
    """Tell whether a request is the first of those that a list of all machines takes."""
    if kind == "aws":
        told = parse_qs(request.body.decode())
        return told.get("Action") == ["DescribeInstances"] and "NextToken" not in told
    target = urlsplit(request.target)
    is_first = target.path.endswith(f"/zones/{ZONE}/instances") and request.method == "GET"
    return is_first and "pageToken" not in parse_qs(target.query)


@dataclass(frozen=True, slots=True)
class ServedCloud:
    """A cloud in a process of its own, and a provider that calls it."""

    process: psutil.Process
    provider: Provider
    entry: Mapping[str, Any]

    def told(self) -> Any:
        """Return when it was listed, and how many machines it ever made."""
        return httpx.get(f"{self.entry['endpoint']}{LISTS_PATH}").json()


@contextmanager
def served(kind: str, directory: Path) -> Iterator[ServedCloud]:
    """Serve a cloud in another process."""
    command = [sys.executable, "-m", "tests.bench.clouds", "--serve", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        endpoint = child.stdout.readline().strip()
        entry: Mapping[str, Any] = {
            "provider": "aws",
            "region": "eu-central-1",
            "subnets": {"eu-central-1a": "subnet-000a"},
            "security_group": GROUP,
            "image": IMAGE,
            "machine_type": EC2_TYPE,
            "endpoint": endpoint,
        }
        if kind == "google":
            entry = {
                "provider": "google",
                **ENTRY,
                "zones": [ZONE],
                "machine_type": GCE_TYPE,
                "endpoint": endpoint,
            }
        file = write_clouds_file(directory / f"{kind}.yaml", {kind: entry})
        (provider,) = read_clouds_file(file, ControllerSettings())
        try:
            yield ServedCloud(psutil.Process(child.pid), provider, entry)
        finally:
            child.kill()


@contextmanager
def renting(directory: Path) -> Iterator[Mapping[str, ServedCloud]]:
    """Serve both clouds."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(served(kind, directory)) for kind in PLACES}


def write_clouds_file(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a clouds file; YAML reads JSON."""
    path.write_text(json.dumps({"clouds": entries}))
    return path


# What is measured


def bench_launches(kind: str, limit: float) -> bool:
    """Launch machines by the SDK from several threads; whether that is fast enough."""
    with tempfile.TemporaryDirectory() as place, served(kind, Path(place)) as cloud:
        labels = {OWNER_LABEL: "ours"}

        def launch(number: int) -> str:
            request = LaunchRequest(
                f"key-{number}", PLACES[kind], boot(agent="a" * 64), labels=labels
            )
            return cloud.provider.launch(request).provider_id

        launch(0)  # clients and connections are made
        us, them = psutil.Process().cpu_times(), cloud.process.cpu_times()
        began = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as threads:
            made = set(threads.map(launch, range(1, KEYS + 1)))
        seconds = time.perf_counter() - began
        worked = psutil.Process().cpu_times().user - us.user
        served_for = cloud.process.cpu_times().user - them.user
    assert len(made) == KEYS
    verdict = "ok" if KEYS / seconds >= limit else "MISSED"
    bound = f" of at least {limit:.0f}/s {verdict}" if limit else ""
    print(
        f"launches on {kind:6s} {KEYS / seconds:6.0f}/s{bound}; of processor "
        f"{worked / KEYS * 1e3:.1f} ms here and {served_for / KEYS * 1e3:.1f} ms in the cloud each",
        flush=True,
    )
    return verdict == "ok"


def bench_controller(
    directory: Path, url: str, clouds: Mapping[str, ServedCloud], asked: argparse.Namespace
) -> list[bool]:
    """Build the machines, watch a controller that has them, and return what was good enough."""
    home = directory / "controller" / "home"
    home.mkdir(parents=True)
    keys = ControllerKeys.at(home)
    with connected(url) as engine:
        print(measure(directory, engine), flush=True)
        with engine.begin() as connection:
            controllers.check_secret(connection, keys.fingerprint)
            ours = ResourceLabels(controllers.installation_id(connection), keys.label_secret())
        began, each = time.perf_counter(), asked.jobs // len(clouds)
        for number, (kind, cloud) in enumerate(clouds.items()):
            machine = {"cloud": kind, "type": PLACES[kind].machine_type}
            # Jobs that are only advised: no resize may change what is counted.
            wishes = {"machine": machine, "price": "0.36 USD/h", "level": "advise"}
            place, first = PLACES[kind], number * each
            Fleet(engine, cloud.provider, ours, each, 100 * each, wishes, place, first).build()
    built = f"{5 * each} machines on each cloud"
    print(f"{built}, built in {time.perf_counter() - began:.0f} s", flush=True)
    os.environ["SCAVENGER_DATABASE_URL"] = url
    entries = {kind: cloud.entry for kind, cloud in clouds.items()}
    file = write_clouds_file(directory / "clouds.yaml", entries)
    began = time.perf_counter()
    with Controller(home, ("--clouds", str(file))) as controller:
        print(f"the controller answers {time.perf_counter() - began:.1f} s after its start")
        until(lambda: all(len(one.told()["lists"]) > 1 for one in clouds.values()), 60)
        time.sleep(WINDOW)  # it has looked at each job once
        return watch(controller, clouds, asked.seconds)


def watch(controller: Controller, clouds: Mapping[str, ServedCloud], seconds: float) -> list[bool]:
    """Ask for pages for a while, then say how the controller fared."""
    assert controller.process is not None
    process, before = psutil.Process(controller.process.pid), passes(controller)
    began, worked = time.monotonic(), process.cpu_times()
    pages: list[float] = []
    made = {kind: cloud.told()["machines"] for kind, cloud in clouds.items()}
    headers = {"Authorization": f"Bearer {controller.connection['token']}"}
    with httpx.Client(base_url=controller.connection["url"], headers=headers) as client:
        while time.monotonic() - began < seconds:
            for path in PAGES:
                asked = time.perf_counter()
                client.get(path).raise_for_status()
                pages.append(time.perf_counter() - asked)
                time.sleep(PAUSE)
    spent = process.cpu_times()
    share = (spent.user + spent.system - worked.user - worked.system) / (time.monotonic() - began)
    print(f"the controller takes {share:.0%} of a processor, {memory(process):.0f} MiB")
    results = [told_passes(before, passes(controller)), told_pages(sorted(pages))]
    for kind, cloud in clouds.items():
        told = cloud.told()
        lists = [at for at in told["lists"] if at >= began]
        results.append(told_lists(kind, lists))
        if told["machines"] != made[kind]:
            print(f"  {kind} launched machines though each job had what it wants: MISSED")
            results.append(False)
    return results


def passes(controller: Controller) -> Mapping[str, float]:
    """Return how many passes took at most so long, by the bound; with their sum and count."""
    text = controller.ask("GET", "/metrics").text
    (family,) = (
        one
        for one in text_string_to_metric_families(text)
        if one.name == "scavenger_reconcile_seconds"
    )
    return {
        sample.labels.get("le", sample.name.rpartition("_")[2]): sample.value
        for sample in family.samples
    }


def told_passes(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Print how long passes took; whether each was short."""
    taken = {name: after[name] - before.get(name, 0.0) for name in after}
    bounds = sorted(
        (float(name), count) for name, count in taken.items() if name[0] in "0123456789"
    )
    longest = next((bound for bound, count in bounds if count == taken["count"]), float("inf"))
    verdict = "ok" if longest <= PASS else "MISSED"
    mean = taken["sum"] / taken["count"]
    print(
        f"  a pass         mean {mean:5.2f} s, all {taken['count']:.0f} within {longest:g} s"
        f" of {PASS:.0f} s {verdict}"
    )
    return verdict == "ok"


def told_pages(pages: Sequence[float]) -> bool:
    """Print how long pages took; whether 95 of 100 came in time."""
    middle, late = percentile(pages, 0.5), percentile(pages, 0.95)
    verdict = "ok" if late <= PAGE else "MISSED"
    print(
        f"  a page         p50 {middle * 1e3:5.1f} ms, p95 {late * 1e3:5.1f} ms"
        f" of {PAGE * 1e3:.0f} ms {verdict}"
    )
    return verdict == "ok"


def told_lists(kind: str, lists: Sequence[float]) -> bool:
    """Print how often a cloud was listed; whether no window of time held more than it may."""
    most = max(
        (sum(at <= other < at + WINDOW - JITTER for other in lists) for at in lists),
        default=0,
    )
    verdict = "ok" if 0 < most <= MOST_LISTS else "MISSED"
    print(
        f"  lists of {kind:6s} {len(lists)} in all, at most {most} within {WINDOW:.0f} s"
        f" of {MOST_LISTS} {verdict}",
        flush=True,
    )
    return verdict == "ok"


def memory(process: psutil.Process) -> float:
    """Return MiB that a process holds."""
    return float(process.memory_info().rss) / 2**20


if __name__ == "__main__":
    sys.exit(main())
