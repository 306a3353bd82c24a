"""OpenTelemetry: the extra ``otel``. docs/telemetry.md is the guide."""

from __future__ import annotations

from .activation import instrument
from .redis_gauges import observe_redis

__all__ = ["instrument", "observe_redis"]
