"""Fixtures of the process tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.shared import Journal
from tests.support import preloaded


@pytest.fixture(scope="session", autouse=True)
def preloaded_libraries() -> None:
    """Lets ``ForkqTree.run`` fork its commands."""
    preloaded.start()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Where the jobs of this test tell what they do: give a tree ``env=journal.env``."""
    return Journal(tmp_path / "journal")
