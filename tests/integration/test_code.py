"""Code on its way: from a user over a real server and database to the machines of its project."""

from __future__ import annotations

import asyncio
import gzip
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, func, select, text
from starlette.requests import Request

from scavenger.client.client import Client
from scavenger.client.code import pack_code
from scavenger.client.core import get, send
from scavenger.client.errors import InvalidRequest, NotFound
from scavenger.code_archive import MAX_PACKED_BYTES, MEBIBYTE
from scavenger.schemas.access import UserRole
from scavenger.schemas.jobs import CodeView
from service.api import validation
from service.api.problems import ApiProblem
from service.api.routes import code
from service.api.validation import StreamsBody
from service.background import Maintenance
from service.clouds.clouds import Clouds
from service.clouds.local import LocalProvider
from service.db import jobs, packages
from service.db.schema import packages as packages_table
from tests.builders import NOW, document, spec
from tests.contract.host import CODE, CODE_SHA256, KEYS, WORKER, Host, host
from tests.controller_double import until

ARCHIVE = gzip.compress(b"print('hello')" * 1000, mtime=0)
DIGEST = sha256(ARCHIVE).hexdigest()
RUN = {"command": ["python", "train.py"], "code": DIGEST}


@pytest.fixture
def controller(engine: Engine) -> Iterator[Host]:
    with host(engine) as controller:
        yield controller


@pytest.fixture
def client(controller: Host) -> Iterator[Client]:
    with Client(controller.url, KEYS.home_token) as client:
        yield client


def client_of(controller: Host, project: str) -> Client:
    with Client(controller.url, KEYS.home_token) as admin:
        token = admin.create_token("ci", UserRole.SUBMITTER, project, None).token
    return Client(controller.url, token)


def put(controller: Host, content: bytes | Iterator[bytes], digest: str = DIGEST) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEYS.home_token}"}
    url = f"{controller.url}/v1/code/{digest}"
    return httpx.put(url, content=content, headers=headers, timeout=60)


def stored(engine: Engine) -> int:
    """Return the number of archives, of which the host has one from the beginning."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(packages_table)).scalar_one() - 1


def test_code_that_was_sent_twice_is_stored_once(controller: Host, engine: Engine) -> None:
    assert [put(controller, ARCHIVE).status_code for _ in range(2)] == [201, 200]
    assert stored(engine) == 1


def test_of_those_who_send_the_same_at_once_one_stores_it(controller: Host, engine: Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: put(controller, ARCHIVE), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert stored(engine) == 1


def test_a_job_runs_code_that_was_sent_before(client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    with pack_code(tmp_path) as packed:
        assert not client.has_code(packed.digest)
        assert client.upload_code(packed.digest, packed.file, packed.size).size == packed.size
        assert client.has_code(packed.digest)
        run = {**RUN, "code": packed.digest}
    assert client.submit(yaml_of(run)).phase == "pending"


def yaml_of(run: dict[str, object]) -> str:
    return str(document(run=run))  # Python writes such a mapping as YAML does


def test_a_job_whose_code_was_never_sent_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.submit(yaml_of(RUN))
    (problem,) = refused.value.problem.errors
    assert problem.pointer == "/run/code"
    assert "submit with --code DIR, which sends it" in problem.message


def test_a_hash_opens_nothing_of_another_project(controller: Host, engine: Engine) -> None:
    with client_of(controller, "alpha") as alpha, client_of(controller, "beta") as beta:
        alpha.upload_code(DIGEST, BytesIO(ARCHIVE), len(ARCHIVE))
        alpha.submit(yaml_of(RUN))
        assert not beta.has_code(DIGEST)
        with pytest.raises(InvalidRequest, match="has no code"):
            beta.submit(yaml_of(RUN))
        beta.upload_code(DIGEST, BytesIO(ARCHIVE), len(ARCHIVE))
        beta.submit(yaml_of(RUN))
    assert stored(engine) == 2


def test_other_bytes_than_the_hash_says_are_not_stored(controller: Host, engine: Engine) -> None:
    answer = put(controller, ARCHIVE + b"x")
    assert answer.status_code == 422
    assert "what arrived has the SHA-256" in answer.json()["detail"]
    assert put(controller, b"", "A" * 64).status_code == 422
    assert stored(engine) == 0


def test_too_much_is_refused_while_it_arrives(controller: Host, engine: Engine) -> None:
    """This request has no header that says how much it is."""
    part = bytes(MEBIBYTE)
    endless = iter(lambda: part, b"")
    answer = put(controller, (next(endless) for _ in range(200)))
    assert answer.status_code == 413
    assert f"at most {MAX_PACKED_BYTES} are accepted" in answer.json()["detail"]
    assert stored(engine) == 0


def test_an_upload_that_is_cut_off_leaves_nothing(controller: Host, engine: Engine) -> None:
    address = httpx.URL(controller.url)
    head = (
        f"PUT /v1/code/{DIGEST} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {KEYS.home_token}\r\nContent-Length: {len(ARCHIVE)}\r\n\r\n"
    )
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(head.encode() + ARCHIVE[: len(ARCHIVE) // 2])
    assert put(controller, ARCHIVE).status_code == 201
    assert stored(engine) == 1


async def endless_body() -> AsyncIterator[bytes]:
    while True:
        yield b"x"
        await asyncio.sleep(0)


def test_a_body_that_arrives_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "UPLOAD_TIMEOUT", 0.01)
    with pytest.raises(ApiProblem, match="must arrive within") as given_up:
        asyncio.run(code.receive_archive(endless_body(), BytesIO()))
    assert given_up.value.code == "too_slow"


def test_a_body_of_which_no_part_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "BODY_TIMEOUT", 0.01)

    async def never() -> None:
        await asyncio.Event().wait()

    async def read() -> None:
        request = Request({"type": "http", "headers": []}, never)  # type: ignore[arg-type]
        async for _ in await StreamsBody(9)(request):
            pass

    with pytest.raises(ApiProblem, match="no part of the body arrived"):
        asyncio.run(read())


def test_a_machine_gets_the_code_of_its_own_job(
    controller: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "PART_BYTES", 4)
    url = f"{controller.url}/v1/agent/code"
    mine = {"Authorization": f"Bearer {KEYS.issue_worker_token(WORKER)}"}
    answer = httpx.get(url, headers=mine)
    assert answer.content == CODE
    assert sha256(answer.content).hexdigest() == CODE_SHA256
    other = {"Authorization": f"Bearer {KEYS.issue_worker_token('job_1-w9')}"}
    assert httpx.get(url, headers=other).status_code == 403


def test_code_that_no_job_names_is_deleted_when_it_is_old(
    client: Client, engine: Engine, tmp_path: Path
) -> None:
    client.upload_code(DIGEST, BytesIO(ARCHIVE), len(ARCHIVE))
    other = b"other code"
    client.upload_code(sha256(other).hexdigest(), BytesIO(other), len(other))
    client.submit(yaml_of(RUN))
    clouds = Clouds([LocalProvider(tmp_path, sys.executable)])
    for keep, left in ((timedelta(days=1), 2), (timedelta(0), 1)):
        Maintenance(engine, keep, clouds).run_once()
        assert stored(engine) == left
    assert client.has_code(DIGEST)


WAITING = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def is_waiting(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(WAITING).scalar_one())


def test_code_is_not_deleted_under_a_job_that_is_being_submitted(engine: Engine) -> None:
    deleted: list[int] = []

    def delete() -> None:
        with engine.begin() as connection:
            deleted.append(packages.delete_unreferenced(connection, NOW + timedelta(days=1)))

    with engine.begin() as connection:
        packages.store(connection, "default", DIGEST, ARCHIVE, NOW)
    deleter = threading.Thread(target=delete)
    with engine.begin() as connection:
        assert packages.record_use(connection, "default", DIGEST, NOW + timedelta(days=2))
        deleter.start()
        until(lambda: is_waiting(engine) or deleted)
        jobs.create(connection, "job_1", spec(run=RUN), NOW)
    deleter.join()
    assert deleted == [0]


def test_code_that_a_project_lacks_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="send it with PUT"):
        client.converse(send(get(CodeView, f"/v1/code/{DIGEST}")))
