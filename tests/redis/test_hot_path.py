"""A push and a job cost no more than they did: counted in calls and commands, which a busy machine
does not change."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.documents import ROOT
from tests.support.hot_path import BASELINE, VERSION, Figures
from tests.support.server import Server

SLACK = 0.03
WRITE = "python -m tests.support.hot_path redis://localhost:6399 --write  # empties that server"


@pytest.fixture(scope="module")
def baseline() -> dict[str, Figures]:
    known: dict[str, dict[str, Figures]] = json.loads(BASELINE.read_text())
    if VERSION not in known:
        pytest.skip(f"no baseline for Python {VERSION}: {WRITE}")
    return known[VERSION]


def test_the_hot_path_costs_what_it_did(redis_server: Server, baseline: dict[str, Figures]) -> None:
    command = [sys.executable, "-m", "tests.support.hot_path", redis_server.url]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    changes = changed(baseline, json.loads(found.stdout))
    assert not changes, "\n".join([*changes, f"If this is meant, write the new baseline: {WRITE}"])


def changed(before: dict[str, Figures], now: dict[str, Figures]) -> list[str]:
    """A sentence for each figure that has changed by more than SLACK."""
    pairs = [(path, what) for path, figures in before.items() for what in figures]
    return [
        f"to {path}: {now[path][what]:g} {what} a job, {before[path][what]:g} in the baseline"
        for path, what in pairs
        if abs(now[path][what] - before[path][what]) > SLACK * before[path][what]
    ]


def test_a_dearer_and_a_cheaper_path_are_named() -> None:
    before = {"push": {"calls": 78.0, "commands": 2.0}, "perform": {"calls": 194.3}}
    now = {"push": {"calls": 79.0, "commands": 3.0}, "perform": {"calls": 150.0}}
    assert changed(before, before) == []
    assert changed(before, now) == [
        "to push: 3 commands a job, 2 in the baseline",
        "to perform: 150 calls a job, 194.3 in the baseline",
    ]
