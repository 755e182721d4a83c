"""What a machine measures, while its controller is away, hangs, or never comes back in time."""

from __future__ import annotations

import math
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvicorn
from click.testing import Result
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from sqlalchemy import Engine
from typer.testing import CliRunner

from scavenger.measurement.steps import StepColumns, StepRow
from scavenger.protocol import Progress, StepReport
from scavenger.schemas.events import EventList
from scavenger.schemas.jobs import JobView
from service.api.dependencies import AppState
from service.app import build_app, store_home_token
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from service.db import telemetry, vms, workers
from tests.builders import HERE, document, offer
from tests.controller_double import LONG, until
from tests.spool import rows_on_disk
from worker_agent.cli import app
from worker_agent.telemetry.spool import Spool, SpoolHeader

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
PERSON = {"Authorization": f"Bearer {KEYS.home_token}"}


class Service:
    """The API on a real database, at one address, where it may be away for a while."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        world = AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger")))
        store_home_token(world, KEYS)
        self.app = build_app(world, KEYS)
        self.client = TestClient(self.app, headers=PERSON)
        job = self.client.post("/v1/jobs", json=document())
        self.job = JobView.model_validate_json(job.text).id
        self.worker = f"{self.job}-w1"
        with engine.begin() as connection:
            terms, prepaid = offer("0.36"), timedelta(seconds=60)
            vms.record_intent(connection, self.job, 1, terms, datetime.now(UTC), prepaid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Answer as long as the block lasts."""
        config = uvicorn.Config(self.app, port=self.port, log_level="error", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            until(lambda: server.started)
            yield
        finally:
            server.should_exit = True
            thread.join()

    def iterations(self) -> list[int]:
        """The iterations that were stored, in order."""
        with self.engine.connect() as connection:
            return list(telemetry.steps_of(connection, self.job, 1).iteration)

    def end_machine(self) -> None:
        with self.engine.begin() as connection:
            vms.record_gone(connection, self.worker, datetime.now(UTC))

    def told(self, kind: str) -> list[str]:
        page = EventList.model_validate_json(self.client.get(f"/v1/jobs/{self.job}/events").text)
        return [event.message for event in page.events if event.kind == kind]

    def deliver(
        self, sequence: int, rows: int, path: str = "/v1/telemetry/backfill", **facts: int
    ) -> int:
        """Bring rows by hand; returns the status of the answer."""
        numbers = tuple(range(sequence, sequence + rows))
        steps = StepColumns(numbers, (2,) * rows, *(((1.0,) * rows,) * 6))
        report = StepReport(self.worker, Progress(1, 0, 0, 0.0, {}), sequence, steps, **facts)
        content = TypeAdapter(StepReport).dump_json(report)
        headers = {"Content-Type": "application/json"}
        return self.client.post(path, content=content, headers=headers).status_code


@pytest.fixture
def service(engine: Engine) -> Service:
    return Service(engine)


class Measurer:
    """A machine's process, its spool, and its end."""

    def __init__(
        self,
        service: Service,
        spool: Path,
        iterations: int,
        pace: float = 0.0,
        *,
        url: str = "",
        patience: float = LONG,
    ) -> None:
        measuring = "tests.integration.measurer"
        self.process = subprocess.Popen(
            [sys.executable, "-m", measuring, str(iterations), str(pace), str(patience)],
            env={
                **os.environ,
                "SCAVENGER_CONTROLLER": url or service.url,
                "SCAVENGER_TOKEN": KEYS.issue_worker_token(service.worker),
                "SCAVENGER_JOB": service.job,
                "SCAVENGER_WORKER": service.worker,
                "SCAVENGER_PREPAID": "600",
                "SCAVENGER_SPOOL": str(spool),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.flush()


def sync(spool: Path, *options: str, token: str = KEYS.home_token) -> Result:
    words = ["sync", str(spool), *options]
    return CliRunner().invoke(app, words, env={"SCAVENGER_TOKEN": token, "COLUMNS": "200"})


def test_rows_arrive_once_when_a_controller_that_was_away_is_back(
    service: Service, tmp_path: Path
) -> None:
    with Measurer(service, tmp_path, 2000) as measurer:
        assert measurer.says() == "measured"
        until(lambda: rows_on_disk(tmp_path) == 2000)
        with service.listening():
            measurer.end()
            assert measurer.says() == "told"
    assert service.iterations() == list(range(2000))
    assert sync(tmp_path).stderr.endswith("nothing to deliver\n")


def test_what_a_killed_process_left_is_synced_later_each_row_once(
    service: Service, tmp_path: Path
) -> None:
    with Measurer(service, tmp_path / "w1", 2000) as measurer:
        assert measurer.says() == "measured"
        until(lambda: rows_on_disk(tmp_path / "w1") == 2000)
    refused = sync(tmp_path)
    assert refused.exit_code == 20
    assert "no controller answers" in refused.stderr
    service.end_machine()
    with service.listening():
        wrong = sync(tmp_path, token="scv_wrong")
        assert wrong.exit_code == 4
        first = sync(tmp_path)
        assert (first.exit_code, "2000 rows delivered" in first.stderr) == (0, True), first.stderr
        assert service.iterations() == list(range(2000))
        again = sync(tmp_path)
        assert (again.exit_code, "nothing to deliver" in again.stderr) == (0, True), again.stderr
    assert service.iterations() == list(range(2000))
    files = b"".join(path.read_bytes() for path in (tmp_path / "w1").iterdir())
    assert KEYS.issue_worker_token(service.worker).encode() not in files


def test_a_spool_of_another_controller_is_refused_and_kept(
    service: Service, tmp_path: Path, engine: Engine
) -> None:
    with Measurer(service, tmp_path, 10) as measurer:
        assert measurer.says() == "measured"
        until(lambda: rows_on_disk(tmp_path) > 0)
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM vms")
    with service.listening():
        refused = sync(tmp_path)
    assert refused.exit_code == 5
    assert f"never had a machine {service.worker}" in refused.stderr
    assert rows_on_disk(tmp_path) > 0


def test_a_spool_that_is_in_use_or_ruined_or_none_is_said_so(
    service: Service, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    with Measurer(service, spool, 10) as measurer:
        assert measurer.says() == "measured"
        until(lambda: rows_on_disk(spool) > 0)
        assert "another process uses" in sync(tmp_path).stderr
    (spool / "header.json").write_text("{")
    ruined = sync(tmp_path)
    assert ruined.exit_code == 1
    assert "cannot be read" in ruined.stderr
    (spool / "header.json").unlink()
    assert sync(tmp_path).exit_code == 5


def test_the_end_does_not_wait_for_a_controller_that_never_answers(
    service: Service, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Measurer(service, tmp_path, 1500, url=url, patience=1.0) as measurer:
            assert measurer.says() == "measured"
            measurer.end()
            # The controller is silent for ever, so only the patience of the agent can end this.
            assert measurer.says() == "left"
            measurer.process.wait()
    service.end_machine()
    with service.listening():
        late = sync(tmp_path, "--url", service.url)
        assert late.exit_code == 0, late.stderr
    assert service.iterations() == list(range(1500))


def test_a_full_disk_costs_training_nothing_and_rows_only_if_it_must(
    service: Service, tmp_path: Path
) -> None:
    with Measurer(service, tmp_path, 3000, pace=0.001) as measurer:
        resource.prlimit(measurer.process.pid, resource.RLIMIT_FSIZE, (5000, 5000))
        assert measurer.says() == "measured"
        with service.listening():
            measurer.end()
            assert measurer.says() == "told"
    assert service.iterations() == list(range(3000))


def test_gaps_are_told_apart_by_what_the_worker_says_of_them(service: Service) -> None:
    service.end_machine()
    assert service.deliver(0, 5) == 200
    assert service.deliver(9, 3, dropped=3) == 200
    assert service.deliver(9, 3, dropped=3) == 200
    assert service.deliver(14, 1, dropped=5) == 200
    assert service.iterations() == [0, 1, 2, 3, 4, 9, 10, 11, 14]
    why = f"measured iterations of {service.worker} were dropped: its spool was full"
    assert service.told("rows_dropped") == [f"3 {why}", f"2 {why}"]
    assert service.told("rows_lost") == [f"1 measured iterations of {service.worker} never arrived"]


def test_an_agent_of_an_older_version_uploads_to_the_old_path(service: Service) -> None:
    service.end_machine()
    assert service.deliver(0, 5, path="/v1/deliveries") == 200
    assert service.deliver(0, 7) == 200
    assert service.iterations() == list(range(7))


def test_a_machine_that_may_still_say_hello_is_waited_for(service: Service) -> None:
    assert service.deliver(0, 5) == 409
    service.end_machine()
    assert service.deliver(0, 5) == 200


def test_late_words_of_a_machine_that_is_gone_change_no_job(service: Service) -> None:
    service.end_machine()
    assert service.deliver(0, 5) == 200
    with service.engine.connect() as connection:
        (worker,) = workers.of_job(connection, service.job)
    assert (worker.finished, worker.iteration, worker.next_sequence) == (None, 0, 5)


def test_a_row_without_a_time_is_left_out_and_the_others_arrive(
    service: Service, tmp_path: Path
) -> None:
    row = StepRow(1, 0, 2, 1.0, math.nan, 0.1, 0.1, 0.2, math.inf, 0.1, 0.1)
    header = SpoolHeader(service.job, service.worker, service.url, "127.0.0.1:1")
    rows = [replace(row, iteration=0), replace(row, iteration=1, step_time=math.nan)]
    report = StepReport(service.worker, Progress(1, 2, 2, 0.1, {}), 0, StepColumns.from_rows(rows))
    spool = Spool(tmp_path, header)
    spool.append(report)
    spool.close()
    service.end_machine()
    with service.listening():
        first = sync(tmp_path)
    assert "the controller rejected 1 rows" in first.stderr
    assert service.iterations() == [0]
    assert len(service.told("rows_rejected")) == 1
