"""Any script, session and controller: only documented errors of the agent reach the script."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import nn

from scavenger.cluster import ClusterConfig
from scavenger.learning_rate import LearningRateScaling
from scavenger.protocol import Directive, Hello, Member, Reply, StepReport, StopAtProgress
from scavenger.worker_env import WorkerEnv
from worker_agent.training import base, elastic
from worker_agent.training.elastic import ElasticSession

SESSIONS = int(os.environ.get("FUZZ_SESSIONS", "20"))
HELLO, REPORT, REPLY = TypeAdapter(Hello), TypeAdapter(StepReport), TypeAdapter(Reply)
NUMBERS = itertools.count()

DOCUMENTED = (
    "call prepare(model, optimizer) before batches()",
    "dataset_size must be at least 1",
    "the model has no parameter that requires a gradient",
    "micro_batches must be at least 1",
)


class Planned(Exception):
    """The script's own."""


class Peculiar:
    """What a user may log by mistake."""

    detach = "not to be called"

    def __float__(self) -> float:
        raise KeyError("no number")


class Server(ThreadingHTTPServer):
    """Sends one worker into training, then answers as it was told to.

    Attributes:
        mood: How it answers reports.
        directive: What it answers to a hello.
    """

    daemon_threads = True
    mood = "well"
    shape: tuple[int, int, float] = (8, 0, 1.0)
    directive: Directive | None = None

    def handle_error(self, *_: Any) -> None:
        """Sessions end in the middle of a request."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_hello = self.path.endswith("hello")
        if is_hello:
            self.server.directive = directive(HELLO.validate_json(body), *self.server.shape)
        mood = "well" if is_hello else self.server.mood
        following = 0 if is_hello else following_of(body)
        answers = {
            "well": (200, REPLY.dump_json(Reply(self.server.directive, following))),
            "garbage": (200, b'{"directive": [1, 2'),
            "broken": (500, b"oops"),
            "refusing": (403, b"no"),
            "backwards": (200, REPLY.dump_json(Reply(self.server.directive, 0))),
            "forwards": (200, REPLY.dump_json(Reply(None, 2**50))),
        }
        if mood == "hanging up":
            self.close_connection = True
            return
        status, content = answers[mood]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


MOODS = ("well", "garbage", "broken", "refusing", "backwards", "forwards", "hanging up")


def following_of(body: bytes) -> int:
    report = REPORT.validate_json(body)
    return report.sequence + len(report.steps)


def directive(hello: Hello, batch: int, split_every: int, epochs: float) -> Directive:
    return Directive(
        generation=1,
        config=ClusterConfig(1, batch),
        members=(Member(hello.worker, hello.address),),
        purpose="probe",
        progress_per_iteration=0.1,
        learning_rate=LearningRateScaling(),
        stop=StopAtProgress(epochs),
        split_every=split_every,
        report_after=1,
        why="fuzz",
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def odd_values() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.floats(),
        st.booleans(),
        st.sampled_from([None, "abc", "1.5", 10**400, 1j, b"2", (), [1.0], {"a": 1}, Peculiar()]),
        st.builds(lambda value: torch.tensor(value, requires_grad=True), st.floats(width=32)),
        st.builds(lambda *shape: torch.ones(shape), st.integers(0, 3), st.integers(0, 3)),
        st.just(torch.tensor(1 + 2j)),
        st.just(torch.ones(1, dtype=torch.int64)),
    )


def deeds() -> st.SearchStrategy[Any]:
    """What a loop body may do, one after the other."""
    plain = ("forward", "evaluate", "backward", "step", "zero", "none", "freeze", "thaw", "nothing")
    names = st.sampled_from(["loss", "accuracy", "name with spaces", "ü\n", "x" * 300])
    return st.one_of(
        st.sampled_from(plain),
        st.sampled_from(["raise", "break", "leave open"]),
        st.tuples(st.just("log"), st.dictionaries(names, odd_values(), max_size=3)),
    )


usual = ["zero", "forward", "backward", "step", ("log", {"loss": 1.0})]
bodies = st.one_of(st.just(usual), st.lists(deeds(), max_size=8))


class Script:
    """A training script that does what it is told, however odd."""

    def __init__(self, job: ElasticSession) -> None:
        self.job = job
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loss: torch.Tensor | None = None

    def do(self, deed: Any, size: int) -> None:
        match deed:
            case "forward":
                self.loss = self.model(torch.ones(size, 3)).square().mean()
            case "evaluate":
                with torch.no_grad():
                    self.model(torch.ones(2, 3))
            case "backward":
                self.backward()
            case "step":
                self.optimizer.step()
            case "zero" | "none":
                self.optimizer.zero_grad(set_to_none=deed == "none")
            case "freeze" | "thaw":
                self.model[0].requires_grad_(deed == "thaw")
            case ("log", metrics):
                self.job.log(**metrics)
            case "raise":
                raise Planned

    def backward(self) -> None:
        loss, self.loss = self.loss, None
        if loss is not None and loss.requires_grad:
            loss.backward()


def train(job: ElasticSession, plan: list[list[Any]], dataset_size: int, micro_batches: int) -> Any:
    """Run a script to its end; returns a loop that was left open, if any."""
    script = Script(job)
    with job:
        job.prepare(script.model, script.optimizer, micro_batches=micro_batches)
        loop = job.batches(dataset_size, 4, epochs=1)
        for body in plan:
            indices = next(loop, None)
            if indices is None:
                break
            assert ((indices >= 0) & (indices < dataset_size)).all()
            for deed in body:
                if deed == "break":
                    loop.close()
                    return None
                if deed == "leave open":
                    return loop
                script.do(deed, len(indices))
    return None


@given(
    plan=st.lists(bodies, max_size=6),
    mood=st.sampled_from(MOODS),
    shape=st.tuples(st.integers(1, 9), st.integers(0, 2), st.sampled_from([0.0, 0.25, 9.0])),
    dataset_size=st.integers(1, 20),
    micro_batches=st.integers(1, 3),
)
@settings(
    max_examples=SESSIONS,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.timeout(0)
def test_nothing_of_ours_reaches_the_script(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    plan: list[list[Any]],
    mood: str,
    shape: tuple[int, int, float],
    dataset_size: int,
    micro_batches: int,
) -> None:
    # A controller that answers nonsense is told the last words in vain: not for five seconds here.
    for patience in ("FINISH_TIMEOUT", "ABANDON_TIMEOUT"):
        monkeypatch.setattr(base, patience, 0.02)
    monkeypatch.setattr(elastic, "CLOSE_TIMEOUT", 0.02)
    server.mood, server.shape = mood, shape
    with suppress(Planned):
        train(open_session(server), plan, dataset_size, micro_batches)


def open_session(server: Server) -> ElasticSession:
    return ElasticSession(
        WorkerEnv(
            controller=f"http://127.0.0.1:{server.server_port}",
            token="token",
            job="job",
            worker=f"w{next(NUMBERS)}",
            prepaid=600,
        )
    )


@pytest.mark.parametrize(
    "misuse",
    [
        lambda job: next(job.batches(10, 2, epochs=1)),
        lambda job: job.prepare(nn.Flatten(), torch.optim.SGD([torch.ones(1)], lr=1)),
        lambda job: (prepare(job), next(job.batches(0, 2, epochs=1))),
        lambda job: prepare(job, micro_batches=0),
    ],
    ids=["batches before prepare", "nothing to train", "no samples", "no passes"],
)
def test_errors_of_the_script_in_using_us_are_documented(server: Server, misuse: Any) -> None:
    job = open_session(server)
    with pytest.raises((ValueError, RuntimeError)) as caught, job:
        misuse(job)
    assert str(caught.value).startswith(DOCUMENTED)


def prepare(job: ElasticSession, micro_batches: int = 1) -> None:
    script = Script(job)
    job.prepare(script.model, script.optimizer, micro_batches=micro_batches)
