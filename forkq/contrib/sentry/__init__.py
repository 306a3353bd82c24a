"""Sentry: the extra ``sentry``. docs/telemetry.md is the guide."""

from __future__ import annotations

from .activation import instrument

__all__ = ["instrument"]
