"""The controller refuses addresses on which tokens would be seen, and says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_this_computer_alone_needs_neither_certificate_nor_proxy(host: str) -> None:
    settings = Settings(host=host)
    assert settings.is_loopback_only
    assert settings.allowed_hosts == {"127.0.0.1", "localhost", "[::1]", host}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "ctl.example.org", ""])
def test_an_address_that_others_reach_needs_one(host: str) -> None:
    with pytest.raises(ValidationError, match="in the clear"):
        Settings(host=host)
    assert Settings(host=host, behind_proxy=True).allowed_hosts == frozenset()
    files = {"tls_cert": Path("cert.pem"), "tls_key": Path("key.pem")}
    assert not Settings(host=host, **files).is_loopback_only
    with pytest.raises(ValidationError, match="belong together"):
        Settings(host=host, tls_cert=Path("cert.pem"))


def test_more_names_are_written_with_commas() -> None:
    named = Settings(host="0.0.0.0", behind_proxy=True, names="Ctl.example.org, b")
    assert named.allowed_hosts == {"ctl.example.org", "b", "0.0.0.0"}
    assert Settings(names="b").allowed_hosts > {"b", "127.0.0.1"}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--host", "0.0.0.0"], 2, ["0.0.0.0 can be reached from other", "--behind-proxy"]),
        (["--port", "nonsense"], 2, ["port: Input should be", "scavenger serve --help lists"]),
        (["--home", "/dev/null"], 1, ["/dev/null cannot be used: File exists", "SCAVENGER_HOME"]),
    ],
)
def test_the_sentence_reaches_the_person_who_starts_it(
    tmp_path: Path, words: list[str], code: int, told: list[str]
) -> None:
    line = [sys.executable, "-m", "service", "--home", str(tmp_path / "home"), *words]
    said = subprocess.run(line, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert said.returncode == code
    assert [part for part in told if part not in said.stderr] == []
    assert "Traceback" not in said.stderr
    assert not (tmp_path / "home").exists()
