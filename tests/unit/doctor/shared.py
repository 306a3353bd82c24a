"""Configurations for the tests of the doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forkq.config.config import Config

HERE = Path("/nonexistent")


def config(**values: Any) -> Config:
    """A configuration with these values, and the defaults."""
    return Config(**{"pidfile": HERE / "pid", "state_dir": HERE, **values})
