"""The page of the dashboard and its assets: who gets them, and that no path leads elsewhere."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest

from scavenger.schemas.problems import ProblemView
from service.api.dashboard import DASHBOARD_PAGES
from service.dashboard_files import DashboardFiles
from tests.integration.house import House
from tests.integration.test_access import answer_to_stranger

SHELL = b"<!doctype html><script type=module src=/assets/app-1.js></script>"
SCRIPT = b"console.log(1);\n" * 200


@pytest.fixture
def client(house: House, tmp_path: Path) -> Any:
    """An API with a bundle, beside which lies what no answer may hold."""
    static = tmp_path / "static"
    (static / "assets" / "deep").mkdir(parents=True)
    (static / "index.html").write_bytes(SHELL)
    (static / "assets" / "app-1.js").write_bytes(SCRIPT)
    (static / "assets" / "deep" / "style-2.css").write_bytes(b"body {}")
    (static / "secret.txt").write_text("a canary")
    (tmp_path / "secret.txt").write_text("a canary")
    return house.open(dashboard=DashboardFiles.read(static))


def test_every_page_is_the_same_shell_that_is_asked_for_each_time(client: Any) -> None:
    pages = [f"/{page}" for page in DASHBOARD_PAGES]
    # The script of the page reads the parameters of its address, such as the filters of the list.
    for path in ["/", *pages, "/jobs/job_0/curve", "/jobs/", "/jobs?phase=failed"]:
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, SHELL), path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
    tag = {"If-None-Match": client.get("/").headers["etag"]}
    assert client.get("/", headers=tag).status_code == 304


def test_its_policy_lets_it_load_nothing_from_elsewhere(client: Any) -> None:
    for path in ("/", "/assets/app-1.js"):
        policy = client.get(path).headers["content-security-policy"]
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'self'",
            "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'",
        }
        assert client.get(path).headers["x-content-type-options"] == "nosniff"


def test_an_asset_is_kept_for_ever_and_compressed_once(client: Any) -> None:
    answer = client.get("/assets/app-1.js", headers={"Accept-Encoding": "gzip"})
    assert answer.content == SCRIPT
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(gzip.compress(SCRIPT, mtime=0))
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    plain = client.get("/assets/app-1.js", headers={"Accept-Encoding": "identity"})
    assert (plain.content, plain.headers.get("content-encoding")) == (SCRIPT, None)
    assert client.get("/assets/deep/style-2.css").text == "body {}"


STRANGE = (
    "/assets/none.js",
    "/assets/",
    "/assets",
    "/assets/../secret.txt",
    "/assets/..%2fsecret.txt",
    "/assets/%2e%2e/%2e%2e/secret.txt",
    "/assets/..%5csecret.txt",
    "/assets//etc/passwd",
    "/assets/deep/../app-1.js",
    "/assets/app-1.js%00",
    "/assets/deep",
    "/secret.txt",
    "/index.html",
    "/jobs/../secret.txt",
)


def test_no_path_leads_out_of_the_bundle(client: Any) -> None:
    async def ask_all() -> dict[str, tuple[int, bytes]]:
        return {path: await answer_to_stranger(client.app, "GET", path) for path in STRANGE}

    for path, (status, content) in asyncio.run(ask_all()).items():
        if path.startswith("/jobs"):
            assert (status, content) == (200, SHELL)
        else:
            assert status == (404 if path.startswith("/assets/") else 401), path
            assert ProblemView.model_validate_json(content).status == status


def test_without_a_bundle_the_page_says_how_to_build_one(house: House, tmp_path: Path) -> None:
    bare = house.open(dashboard=DashboardFiles.read(tmp_path))
    for path in ("/", "/jobs"):
        answer = bare.get(path)
        assert answer.status_code == 200
        assert "pip install" in answer.text
    assert bare.get("/assets/app.js").status_code == 404
