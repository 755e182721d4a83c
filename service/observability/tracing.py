"""OpenTelemetry spans.

They are sent if the extra ``otel`` is installed and ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set.
Otherwise a span costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

log = logging.getLogger(__name__)

SERVICE_NAME = "scavenger"


class _Exporting:
    """What spans are made with; None while no collector is configured."""

    tracer: Any = None
    failed: Any = None


def start_tracing(endpoint: str | None) -> None:
    """Send spans to a collector, if one was named and the extra is installed."""
    if endpoint is None:
        return
    try:
        sdk = import_module("opentelemetry.sdk.trace")
        batches = import_module("opentelemetry.sdk.trace.export")
        http = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but nothing can send traces: "
            "pip install 'scavenger[otel]'"
        )
        return
    install_processor(batches.BatchSpanProcessor(http.OTLPSpanExporter()), sdk)


def install_processor(processor: Any, sdk: Any) -> None:
    """Give every span from now on to a processor of OpenTelemetry's SDK."""
    resources = import_module("opentelemetry.sdk.resources")
    provider = sdk.TracerProvider(
        resource=resources.Resource.create({"service.name": SERVICE_NAME})
    )
    provider.add_span_processor(processor)
    _Exporting.failed = import_module("opentelemetry.trace").StatusCode.ERROR
    _Exporting.tracer = provider.get_tracer(SERVICE_NAME)


def is_tracing() -> bool:
    """Whether spans are made."""
    return _Exporting.tracer is not None


@contextmanager
def span(name: str, **attributes: str) -> Iterator[None]:
    """Time something, as a part of the span that is open.

    Of what goes wrong only the kind is kept: messages may hold what a collector should not read.
    """
    if not is_tracing():
        yield
        return
    quiet = {"record_exception": False, "set_status_on_exception": False}
    starting = _Exporting.tracer.start_as_current_span(name, attributes=attributes, **quiet)
    with starting as current:
        try:
            yield
        except BaseException as error:
            current.set_status(_Exporting.failed, type(error).__name__)
            raise
