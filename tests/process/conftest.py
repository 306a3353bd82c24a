"""Fixtures of the process tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.shared import Journal
from tests.support import preloaded


@pytest.fixture(scope="session", autouse=True)
def preloaded_processes() -> Iterator[None]:
    """Lets ForkqTree fork its masters and commands."""
    preloaded.start()
    yield
    preloaded.close()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Where the jobs of this test tell what they do: give a tree ``env=journal.env``."""
    return Journal(tmp_path / "journal")
