"""Tests here set up logging, as a child or an app does."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from forkq.runtime import log


@pytest.fixture
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test starts with forkq's log not set up, and what it sets up ends with it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(log, "_state", log._State())
    monkeypatch.setattr(logging, "lastResort", None)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
