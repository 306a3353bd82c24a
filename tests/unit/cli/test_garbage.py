"""A command looks for no garbage while it is imported, and does again when it runs."""

from __future__ import annotations

import subprocess
import sys

COMMAND = """
import gc, sys
from forkq.cli import tree
from forkq.__main__ import main
tree.status.callback = lambda **_: print(gc.isenabled(), gc.get_freeze_count() > 10_000)
sys.argv = ["forkq", "status"]
main()
"""


def test_garbage_is_collected_again_and_what_was_imported_is_left_out() -> None:
    command = [sys.executable, "-c", COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
