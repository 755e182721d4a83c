"""Metered: every call passes through unchanged, and is counted by its result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.clouds.local import LocalProvider
from service.clouds.metered import MeteredProvider
from service.clouds.provider import LaunchRequest
from service.errors import LaunchRefused
from service.observability import metrics
from tests.builders import boot, offer

KEY = "metered-1"


def calls(operation: str, result: str) -> float:
    labels = {"op": operation, "result": result}
    return metrics.REGISTRY.get_sample_value("scavenger_provider_call_seconds_count", labels) or 0


def launches(result: str, reason: str) -> float:
    labels = {"result": result, "reason": reason}
    return metrics.REGISTRY.get_sample_value("scavenger_launch_total", labels) or 0


def test_calls_reach_the_cloud_and_are_counted_by_result(tmp_path: Path) -> None:
    local = LocalProvider(tmp_path / "machines", sys.executable, boot_delay=3600)
    provider = MeteredProvider(local)
    request = LaunchRequest(KEY, offer("0"), boot())
    before = calls("launch", "ok"), launches("started", ""), calls("launch", "used")
    instance = provider.launch(request)
    try:
        assert provider.list() == local.list()
        with pytest.raises(ValueError, match="not gone"):
            provider.forget(instance.provider_id)
    finally:
        provider.terminate(instance.provider_id)
    with pytest.raises(LaunchRefused):
        provider.launch(request)
    after = calls("launch", "ok"), launches("started", ""), calls("launch", "used")
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]
    assert launches("refused", "used") >= 1
    assert calls("forget", "error") >= 1
    facts = ("name", "account", "traits")
    assert [getattr(provider, f) for f in facts] == [getattr(local, f) for f in facts]
