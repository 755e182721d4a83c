"""Tracing: nothing without a collector; spans within spans with one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.clouds.local import LocalProvider
from service.clouds.metered import MeteredProvider
from service.observability import tracing
from service.observability.tracing import span


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(tracing._Exporting, "tracer", None)
    tracing.install_processor(SimpleSpanProcessor(exporter), sdk)
    return exporter


def test_without_a_collector_spans_are_nothing() -> None:
    tracing.start_tracing(None)
    with span("tick", job="job_1"):
        assert tracing.is_tracing() is False


def test_calls_to_a_cloud_are_part_of_the_tick_that_made_them(
    collected: InMemorySpanExporter, tmp_path: Path
) -> None:
    with span("tick", job="job_1"):
        MeteredProvider(LocalProvider(tmp_path, "python")).list()
    inner, outer = collected.get_finished_spans()
    assert (inner.name, outer.name) == ("provider list", "tick")
    assert inner.parent is not None
    assert outer.context is not None
    assert inner.parent.span_id == outer.context.span_id
    assert dict(outer.attributes or {}) == {"job": "job_1"}


def test_the_kind_of_what_goes_wrong_is_in_the_span_and_not_its_words(
    collected: InMemorySpanExporter,
) -> None:
    with pytest.raises(ValueError, match="a secret"), span("tick"):
        raise ValueError("a secret")
    [only] = collected.get_finished_spans()
    assert not only.status.is_ok
    assert "ValueError" in only.to_json()
    assert "a secret" not in only.to_json()


def test_a_collector_that_nothing_can_send_to_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, exporter, None)
    tracing.start_tracing("http://127.0.0.1:4318")
    assert "scavenger[otel]" in caplog.text
    assert not tracing.is_tracing()
