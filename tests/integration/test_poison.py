"""For every malformed value at every endpoint: no answer is a 5xx, and all come soon.

A real server on a real database. The operations come from the API's own description, so that one
that is added tomorrow is poisoned, too.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, TypeVar

import httpx
import pytest
from sqlalchemy import Engine, create_engine

from scavenger.schemas.problems import ProblemView
from service.api.problems import PROBLEM_TYPES
from service.postgres.server import EmbeddedPostgres
from tests import poison
from tests.builders import document
from tests.conftest import run
from tests.contract.host import CODE_SHA256, KEYS, WORKER, Host, filled, host
from tests.controller_double import LONG

V = TypeVar("V")

SOON = 3.0  # seconds of processor: a busy computer shares caches, too
TURNS = count()
ONE_IN = int(os.environ.get("POISON_ONE_IN", "432"))
# Only a machine that was just launched gets the first, only with an authority there is the second,
# and only with a bucket the third.
# A model that was forgotten is there no more.
NOT_FOR_ALL = ("package", "ca", "get_newest_checkpoint", "get_model")
# Read whole, and refused as its path names another checkpoint.
REFUSED_LATER = ("put_checkpoint",)
PROGRESS = {
    "generation": 1,
    "iteration": 1,
    "samples": 1,
    "epochs": 0.1,
    "metrics": {"a": 1.0},
    "not_finite": {"loss": {"value": "NaN", "first": 1, "since": 1}},
}
COLUMNS = {
    name: [1.0]
    for name in ("local_norm_sq", "mean_norm_sq", "compute_time", "sync_time", "step_time", "loss")
}
REPORT = {
    "worker": WORKER,
    "progress": PROGRESS,
    "sequence": 0,
    "steps": {"iteration": [1], "shards": [2], **COLUMNS},
    "regrouped": {"generation": 1, "pause": 0.1, "iterations_lost": 0},
}
PRICE = {
    "per_hour": "0.36 USD/h",
    "quantum": "1m",
    "interruptions": {"per_hour": 0.1, "restart": "2m"},
}
RUN = {
    "command": ["python", "train.py"],
    "code": CODE_SHA256,
    "directory": "src",
    "setup": ["pip", "install", "."],
    "image": "ami-0",
}
GOOD: Mapping[str, Any] = {
    "submit": document(price=PRICE, lr_scaling={"rule": "linear", "warm_up": 1.0}, run=RUN),
    "create_plan": document(price=PRICE, run=RUN),
    "ask_what_if": {
        "price": PRICE,
        "workers": [1, 2],
        "limits": {"max_cost": "1 USD", "max_time": "1h", "batch": "32..128"},
        "objective": {"time_weight": 0.5},
    },
    "confirm": {"confirm": True, "sweep": 1},
    "hello": {"worker": WORKER, "address": "127.0.0.1:1", "role": "worker"},
    "report": REPORT,
    "backfill": REPORT,
    "enrol": {"worker": WORKER, "nonce": "a"},
    "create": {"name": "ci", "role": "viewer", "project": "default", "lifetime": 60.0},
    "create_webhook": {
        "url": "https://hooks.example.org/",
        "kind": "slack",
        "events": ["succeeded"],
        "project": "default",
    },
    "change_webhook": {
        "url": "https://hooks.example.org/",
        "events": ["failed"],
        "is_enabled": True,
    },
    "resize": {"to": {"workers": 2, "global_batch": 32}, "reason": "it pays"},
    "probe": {"workers": 2, "global_batch": 32, "reason": "is it fast?"},
    "pause": {"reason": "over the weekend"},
    "resume": {"reason": "on Monday"},
    "change": {
        "limits": {"max_cost": "5 USD", "max_time": "3h"},
        "objective": {"time_weight": 0.5},
        "reason": "the budget grew",
    },
    "import_prices": {
        "prices": [
            {
                "provider": "aws",
                "region": "eu-north-1",
                "item": "t3.micro",
                "unit": "machine_hour",
                "market": "on_demand",
                "price": "0.01",
                "vcpus": 2.0,
                "memory_gib": 1.0,
                "accelerator": "",
                "accelerators": 0,
                "as_of": "2026-01-01T12:00:00Z",
            }
        ]
    },
    "sign_in": {"token": "scv_x"},
    "profile": {
        "worker": WORKER,
        "profile": {
            "blocks": [
                {
                    "name": "layers.0",
                    "fixed_seconds": 0.001,
                    "seconds_per_sample": 0.001,
                    "output_bytes": 256.0,
                    "saved_bytes": 512.0,
                    "weight_bytes": 4096.0,
                }
            ],
            "inside": {"latency_seconds": 0.0001, "bytes_per_second": 1e9},
            "across": {"latency_seconds": 0.0001, "bytes_per_second": 1e9},
            "uncut_reason": "1 block",
        },
        "failure": "",
    },
    "notice": {"worker": WORKER, "reason": "spot", "ends_at": "2026-01-01T12:02:00Z"},
    "store_log": {
        "worker": WORKER,
        "printed": 1,
        "lines": [{"number": 1, "at": "2026-01-01T12:00:00Z", "text": "epoch 1"}],
    },
    "report_trouble": {"why": "the bucket refused a part"},
    "put_checkpoint": {
        "generation": 0,
        "iteration": 0,
        "parts": [{"file": "state.json", "size": 1, "sha256": "0" * 64}],
        "is_sent": False,
    },
    "exit_": {"worker": WORKER, "code": 1, "tail": "", "cause": "", "restarts": True},
}


@dataclass(frozen=True, slots=True)
class Target:
    """An operation to poison."""

    name: str
    method: str
    path: str
    operation: Mapping[str, Any]

    def parameters(self, place: str) -> list[str]:
        """Return the names of parameters in path, query or header."""
        given = self.operation.get("parameters", ())
        return [one["name"] for one in given if one["in"] == place]

    @property
    def good(self) -> Any:
        """A body as it should be."""
        return GOOD[self.name]

    @property
    def takes_json(self) -> bool:
        """Whether it takes a body that can be poisoned inside."""
        body = self.operation.get("requestBody", {"content": {}})
        return "application/json" in body["content"]


@dataclass(frozen=True, slots=True)
class Victim:
    """A controller that is poisoned."""

    host: Host
    http: httpx.Client

    def targets(self) -> Iterator[Target]:
        """Yield every operation."""
        for path, methods in self.host.app.openapi()["paths"].items():
            for method, operation in methods.items():
                yield Target(operation["operationId"], method.upper(), path, operation)

    def swallow(
        self,
        what: str,
        target: Target,
        *,
        path: str = "",
        query: str = "",
        headers: Mapping[str, bytes] | None = None,
        content: bytes = b"",
    ) -> httpx.Response:
        """Send something, and demand an answer that is a refusal or none, and soon."""
        raw = (path or filled(target.path, target.method)) + (f"?{query}" if query else "")
        token = KEYS.issue_worker_token(WORKER) if "/agent/" in target.path else KEYS.home_token
        sent = {"Authorization": f"Bearer {token}".encode(), "Content-Type": b"application/json"}
        url = httpx.URL(self.host.url).copy_with(raw_path=raw.encode())
        began = time.process_time()
        request = self.http.build_request(
            target.method,
            url,
            headers=list({**sent, **(headers or {})}.items()),  # type: ignore[arg-type]
            content=content,
        )
        answer = self.http.send(request)
        taken = time.process_time() - began
        where = f"{target.method} {target.path}: {what}"
        assert taken < SOON, f"{where}: {taken} s"
        assert answer.status_code < 500, f"{where}: {answer.status_code} {answer.text[:500]}"
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json", where
            problem = ProblemView.model_validate_json(answer.content)
            assert PROBLEM_TYPES[problem.code].title == problem.title, where
            assert PROBLEM_TYPES[problem.code].status == problem.status == answer.status_code
            assert len(answer.content) < 100_000, f"{where}: {len(answer.content)} bytes"
        elif answer.headers.get("content-type") == "application/json":
            json.loads(answer.content, parse_constant=refuse_constant)
        return answer


def refuse_constant(name: str) -> None:
    raise AssertionError(f"the answer holds {name}")


@pytest.fixture(scope="module")
def victim(postgres: EmbeddedPostgres) -> Iterator[Victim]:
    """One controller for everything that is tried on it: what poisons it poisons what follows."""
    run(postgres, "CREATE DATABASE poisoned TEMPLATE template")
    engine = create_engine(postgres.url("poisoned"))
    # A heavy document makes the garbage collector look at all objects, and those of other tests
    # are no burden of the controller.
    gc.collect()
    gc.freeze()
    with host(engine) as asked, httpx.Client(timeout=LONG) as http:
        yield Victim(asked, http)
    gc.unfreeze()
    engine.dispose()


def some(poisons: Mapping[str, V]) -> Iterator[tuple[str, V]]:
    """Give each place a quarter of what `make poison` gives it, the next place the next quarter."""
    share = 1 if ONE_IN == 1 else 4
    return islice(poisons.items(), next(TURNS) % share, None, share)


def test_no_path_and_no_query_is_poison(victim: Victim) -> None:
    for target in victim.targets():
        for parameter in target.parameters("path"):
            for name, part in some(poison.PARTS):
                path = target.path.replace(f"{{{parameter}}}", part)
                assert victim.swallow(name, target, path=path).is_error
        for parameter in target.parameters("query"):
            for name, part in some(poison.PARTS):
                victim.swallow(name, target, query=f"{parameter}={part}")
        if target.name == "list_jobs":
            for name, part in poison.PARTS.items():
                victim.swallow(name, target, query=f"{part}={part}&{part}")


def test_no_header_is_poison(victim: Victim) -> None:
    common = ["Content-Type", "Accept", "Authorization", "Accept-Encoding", "X-Request-Id"]
    for target in victim.targets():
        everywhere = common if target.name in ("submit", "health") else ["Content-Type"]
        for header in [*target.parameters("header"), *everywhere]:
            for name, value in some(poison.HEADERS):
                what = f"{name} in {header}"
                victim.swallow(what, target, headers={header: value}, content=b"{}")


def test_every_body_is_read_before_it_is_poisoned(victim: Victim) -> None:
    """Beside a place that is refused anyway, poison in another would never be read."""
    targets = {target.name: target for target in victim.targets() if target.takes_json}
    assert targets.keys() == GOOD.keys()
    for target in targets.values():
        answer = victim.swallow("as it should be", target, content=json.dumps(target.good).encode())
        assert answer.status_code != 422 or target.name in REFUSED_LATER, answer.text


def test_no_body_is_poison(victim: Victim) -> None:
    sent = 0
    for target in victim.targets():
        if target.method == "GET":
            continue
        inside = poison.poisoned(target.good, ONE_IN) if target.takes_json else ()
        texts = ((name, text.encode()) for name, text in inside)
        for name, content in (*poison.BODIES.items(), *texts):
            victim.swallow(name, target, content=content)
            sent += 1
    assert sent > 400


@pytest.mark.parametrize(
    ("media", "taker"), [("application/yaml", "submit"), ("application/json", "create_plan")]
)
def test_no_document_is_poison(victim: Victim, media: str, taker: str) -> None:
    headers = {"Content-Type": media.encode()}
    (target,) = [target for target in victim.targets() if target.name == taker]
    for name, text in poison.YAML.items():
        assert victim.swallow(name, target, headers=headers, content=text.encode()).is_error


def test_nothing_that_was_swallowed_makes_it_ill(victim: Victim) -> None:
    """Runs last: everything is still shown, and every number in it is finite."""
    for target in victim.targets():
        if target.method == "GET" and target.name not in NOT_FOR_ALL:
            assert victim.swallow("nothing", target).is_success
    listed = victim.http.get(
        f"{victim.host.url}/v1/jobs?limit=30",
        headers={"Authorization": f"Bearer {KEYS.home_token}"},
    )
    for job in json.loads(listed.content, parse_constant=refuse_constant)["jobs"]:
        target = Target("get_curve", "GET", f"/v1/jobs/{job['id']}/curve", {})
        assert victim.swallow(job["name"], target).is_success


def test_a_database_that_has_no_time_is_waited_for(engine: Engine) -> None:
    busy = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with host(busy) as asked, busy.connect():
        headers = {"Authorization": f"Bearer {KEYS.home_token}"}
        answer = httpx.get(f"{asked.url}/v1/jobs", headers=headers)
    busy.dispose()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert ProblemView.model_validate_json(answer.text).code == "database_unavailable"
