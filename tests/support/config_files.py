"""The types of the fixtures that load texts as forkq.toml; see tests/unit/config/conftest.py."""

from __future__ import annotations

from collections.abc import Callable

from forkq.config.config import Config

Loader = Callable[..., Config]
Failer = Callable[..., list[str]]
