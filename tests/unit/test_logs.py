"""Logs: what a line holds, and what is never written."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from service.observability.logs import is_wanted, log_context, start_logging
from service.observability.redaction import Redactor

SECRET = "a word none may read"


class Watched(io.StringIO):
    """A terminal with a person before it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    """Leave logging as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.excepthook, threading.excepthook
    yield
    root.handlers[:], root.level, sys.excepthook, threading.excepthook = before
    logging.captureWarnings(capture=False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_when_how_bad_where_and_what() -> None:
    stream = io.StringIO()
    start_logging(Redactor(), None, stream)
    logging.getLogger("service.reconciler.loop").info("%s: %s", "job_1", "launching")
    [line] = lines(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "service.reconciler.loop",
        "message": "job_1: launching",
    }


def test_records_say_what_they_are_about_while_it_lasts() -> None:
    stream, known = io.StringIO(), {"request_id": "req_1"}
    start_logging(Redactor(), "json", stream)
    log = logging.getLogger("service.api")
    with log_context(lambda: known):
        log.info("before")
        known["caller"] = "w1"
        with log_context(partial(dict, job="job_1")):
            log.info("within")
        log.info("after")
    log.info("outside")
    told = [
        {k: line[k] for k in ("request_id", "caller", "job") if k in line} for line in lines(stream)
    ]
    assert told == [
        {"request_id": "req_1"},
        {"job": "job_1"},
        {"request_id": "req_1", "caller": "w1"},
        {},
    ]


def test_a_person_reads_text_and_a_program_json() -> None:
    watched, piped = Watched(), io.StringIO()
    for stream in (watched, piped):
        start_logging(Redactor(), None, stream)
        logging.getLogger("service").info("hello", extra={"facts": {"status": 200}})
    assert watched.getvalue().endswith(" service hello status=200\n")
    assert lines(piped)[0]["status"] == 200


@pytest.mark.parametrize(
    ("name", "level", "wanted"),
    [
        ("service.api.middleware", logging.INFO, True),
        ("scavenger", logging.DEBUG, True),
        ("botocore.auth", logging.DEBUG, False),
        ("urllib3.connectionpool", logging.INFO, False),
        ("httpx", logging.INFO, False),
        ("servicewise", logging.INFO, False),
        ("sqlalchemy.pool", logging.WARNING, True),
        ("uvicorn.error", logging.ERROR, True),
    ],
)
def test_libraries_may_warn_and_no_more(name: str, level: int, wanted: bool) -> None:
    assert is_wanted(logging.LogRecord(name, level, "", 1, "", (), None)) == wanted


def test_a_library_told_to_say_everything_says_nothing() -> None:
    stream = io.StringIO()
    start_logging(Redactor(), "json", stream)
    chatty = logging.getLogger("botocore.auth")
    chatty.setLevel(logging.DEBUG)
    chatty.debug("signing with %s", SECRET)
    assert stream.getvalue() == ""


def test_a_record_that_cannot_be_written_keeps_its_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    start_logging(Redactor(), "json", stream)
    logging.getLogger("service").info("%d", SECRET)
    assert SECRET not in capsys.readouterr().err + stream.getvalue()


ENDS = """
import logging, sys, threading, warnings
from service.observability.logs import start_logging
from service.observability.redaction import Redactor
start_logging(Redactor([{secret!r}]), "json", sys.stderr)
warnings.warn("a warning with {secret}")
def fail(): raise ValueError("with {secret}")
thread = threading.Thread(target=fail, name="sweeper")
thread.start(); thread.join()
fail()
"""


def test_what_ends_a_thread_or_the_controller_is_logged_without_secrets() -> None:
    code = ENDS.format(secret=SECRET)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    said = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["level"] for line in said] == ["warning", "critical", "critical"]
    assert said[1]["message"] == "this ended sweeper"
    assert all("ValueError: with [redacted]" in line["error"] for line in said[1:])
    assert SECRET not in ended.stderr
