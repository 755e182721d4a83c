"""Structured logs: one line per record, JSON for programs or text for people.

The redactor runs last, over the finished line and its traceback, so that no secret reaches a log.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

from service.observability.redaction import Redactor

LogStyle = Literal["json", "text"]
LogContext = Callable[[], Mapping[str, str]]

OWN_LOGGERS = {"scavenger", "service", "migrations", "py"}
LOG_CONTEXT: ContextVar[LogContext] = ContextVar("subject", default=dict)


@contextmanager
def log_context(subject: LogContext) -> Iterator[None]:
    """Say of every record that is logged meanwhile what it is about, such as which job.

    Args:
        subject: Asked when a record is written, by when more may be known than now.
    """
    before = LOG_CONTEXT.set(subject)
    try:
        yield
    finally:
        LOG_CONTEXT.reset(before)


def start_logging(redactor: Redactor, style: LogStyle | None, stream: TextIO) -> None:
    """Write the records of this process to a stream: text on a terminal, JSON elsewhere."""
    chosen = style or ("text" if stream.isatty() else "json")
    handler = QuietHandler(stream)
    handler.setFormatter(FORMATTERS[chosen](redactor))
    handler.addFilter(is_wanted)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_end
    threading.excepthook = _log_end_of_thread


class QuietHandler(logging.StreamHandler[TextIO]):
    """A handler that keeps quiet about the content of what it could not write."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say where the broken record came from; its arguments may be secrets."""
        sys.stderr.write(f"a record of {record.name}, line {record.lineno}, cannot be written\n")


class JsonFormatter(logging.Formatter):
    """One JSON object in one line."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **LOG_CONTEXT.get()(),
            **getattr(record, "facts", {}),
            **({"error": trace_of(self, record)} if record.exc_info else {}),
        }
        # Before it becomes JSON, which would spell a secret in another way.
        return json.dumps({name: self._cleaned(fact) for name, fact in facts.items()})

    def _cleaned(self, fact: object) -> object:
        return fact if isinstance(fact, int | float) else self._redactor.clean(str(fact))


class TextFormatter(logging.Formatter):
    """A line for people: time, logger, message."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(name)s %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        beside = "".join(f" {name}={fact}" for name, fact in facts.items())
        # The base class would keep the traceback in the record, and others would write it raw.
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        text = f"{self.formatMessage(record)}{beside}"
        trace = f"\n{trace_of(self, record)}" if record.exc_info else ""
        return self._redactor.clean(text + trace)


FORMATTERS: Mapping[LogStyle, Callable[[Redactor], logging.Formatter]] = {
    "json": JsonFormatter,
    "text": TextFormatter,
}


def trace_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback of a record."""
    assert record.exc_info is not None
    return formatter.formatException(record.exc_info) if record.exc_info[0] else ""


def is_wanted(record: logging.LogRecord) -> bool:
    """Whether a record may be written: details of libraries never, they repeat what they send."""
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] in OWN_LOGGERS


def _log_end(kind: type[BaseException], error: BaseException, trace: object) -> None:
    logging.getLogger("scavenger").critical("this ended the controller", exc_info=error)


def _log_end_of_thread(end: threading.ExceptHookArgs) -> None:
    name = "a thread" if end.thread is None else end.thread.name
    logging.getLogger("scavenger").critical("this ended %s", name, exc_info=end.exc_value)
