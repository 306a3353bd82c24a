"""docs/django.md: its files make a project that works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import django
from redis import Redis

from tests.support.documents import ROOT, snippets
from tests.support.server import Server

GUIDE = ROOT / "docs" / "django.md"


def test_the_files_of_the_guide_make_a_project(
    tmp_path: Path, redis: Redis, redis_server: Server
) -> None:
    """Its test passes, forkq takes its settings, and children would load its jobs."""
    env = {**os.environ, "FORKQ_REDIS": redis_server.url, "PYTHONPATH": str(ROOT)}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    run("-m", "django", "startproject", "mysite", ".")
    for name, text in files():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        before = path.read_text() if path.exists() else ""
        path.write_text(before + text)
    (tmp_path / "orders" / "__init__.py").touch()
    assert "OK" in run("manage.py", "test")
    assert "mail default" in run("manage.py", "forkq", "config", "check")
    load = "import forkq.registry; from forkq.contrib.django import app"
    assert "orders.jobs.Confirm" in run(
        "manage.py", "shell", "-c", f"{load}; print(forkq.registry.names())"
    )
    assert not redis.keys("*")  # the test has sent nothing


def files() -> list[tuple[str, str]]:
    """The name in the first line of each block, and the block."""
    blocks = [each.text for each in snippets(GUIDE, "python")]
    if django.VERSION < (6,):
        blocks = [text for text in blocks if "TASKS = " not in text]
    found = [re.match(r"# (\S+\.py)\n", text) for text in blocks]
    return [(name[1], text) for name, text in zip(found, blocks, strict=True) if name is not None]
