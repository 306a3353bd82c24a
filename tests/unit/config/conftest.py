"""Fixtures that load a text as forkq.toml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from forkq.config.config import Config
from forkq.config.load import load
from forkq.errors import ConfigError
from tests.support.config_files import Failer, Loader


@pytest.fixture
def loaded(tmp_path: Path) -> Loader:
    """Loads a text as ./forkq.toml, with flags and variables."""

    def load_text(
        text: str | None = None, flags: Mapping[str, Any] | None = None, **environ: str
    ) -> Config:
        if text is not None:
            (tmp_path / "forkq.toml").write_text(text, encoding="utf-8")
        return load(None, flags or {}, environ, tmp_path)

    return load_text


@pytest.fixture
def problems(loaded: Loader, tmp_path: Path) -> Failer:
    """Loads what must fail; the lines of the message, the file's own path shortened to FILE."""

    def fail(
        text: str | None = None, flags: Mapping[str, Any] | None = None, **environ: str
    ) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            loaded(text, flags, **environ)
        assert caught.value.exit_code == 2
        return str(caught.value).replace(str(tmp_path / "forkq.toml"), "FILE").splitlines()

    return fail
