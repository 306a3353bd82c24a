"""OpenTelemetry: the extra ``otel``. docs/telemetry.md is the guide."""

from __future__ import annotations

from .activation import instrument

__all__ = ["instrument"]
