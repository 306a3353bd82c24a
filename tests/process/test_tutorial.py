"""docs/tutorial.md runs as printed, block after block, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, Snippet, snippets
from tests.support.printed import assert_shown, same_shape
from tests.support.tree import ForkqTree
from tests.support.waiting import wait_until

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.fixture
def folder() -> Iterator[ForkqTree]:
    """The tutorial's files in a folder; the log as at a terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tree = ForkqTree(env={"PATH": path, "FORKQ_LOG_FORMAT": "console"})
    for snippet in snippets(PAGE, "python", "toml"):
        named = re.match(r"# (\S+)\n", snippet.text)
        assert named is not None, f"{snippet.place} does not say which file it is"
        (tree.cwd / named[1]).write_text(snippet.text)
    yield tree
    tree.close()


class Reader:
    """A person who types each command, with the ids that the last ones have shown."""

    def __init__(self, tree: ForkqTree) -> None:
        self.tree = tree
        self.ids = {"JID": "", "PID": ""}
        self.look: Callable[[], str] = tree.log_text

    def type(self, command: str) -> None:
        if command == "forkq start":
            self.tree.start().wait_ready()
            return
        command = re.sub("JID|PID", lambda found: self.ids[found[0]], command)
        if command.startswith(("forkq find", "cat")):  # what can be repeated until it shows a fact
            self.look = lambda: self.run(command) + self.tree.log_text()
        else:
            shown = self.run(command)
            self.look = lambda: shown + self.tree.log_text()
        if command.startswith("forkq push"):
            self.ids["JID"] = shown.strip()

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.tree.cwd,
            env=self.tree.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if owner := re.search(r"^owner +\S+:(\d+):", done.stdout, re.MULTILINE):
            self.ids["PID"] = owner[1]
        return done.stdout

    def compare(self, block: Snippet) -> None:
        def there() -> bool:
            return same_shape(block.text) in same_shape(self.look())

        try:
            wait_until(there, what=block.place, every=0.2)
        except AssertionError:
            assert_shown(block.text, self.look())


def test_the_tutorial_runs_as_printed(folder: ForkqTree) -> None:
    reader = Reader(folder)
    blocks = snippets(PAGE, "sh", "text")
    assert sum(block.language == "sh" for block in blocks) > 8
    for block in blocks:
        if block.language == "sh":
            reader.type(block.text.strip())
        else:
            reader.compare(block)
    assert folder.wait() == 0
