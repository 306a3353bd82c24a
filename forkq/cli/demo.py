"""``forkq demo``: runs the example app of a checkout, or says where it is."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from ..errors import ForkqError

_NEEDED = {"PIL": "Pillow", "rich": "rich"}
_ROOT = Path(__file__).resolve().parents[2]


@click.command()
def demo() -> None:
    """Run the example app of a checkout, with a kill in the middle, and count what was lost.

    It works on the pictures and CSV files of the folder FORKQ_DEMO_INPUT, or on samples that it
    makes, and leaves everything in ./demo-results. No running forkq is touched.
    """
    is_checkout = (_ROOT / "bin" / "forkq").is_file()
    if not is_checkout or not (_ROOT / "examples" / "demo" / "__main__.py").is_file():
        raise ForkqError(
            "the demo is an example app in forkq's source, examples/demo, and not part of the "
            "installed package; in a checkout of forkq, type: make demo"
        )
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise ForkqError(
            f"the demo needs {' and '.join(missing)}; in the checkout, type: make demo, which "
            "installs it, or: pip install -e '.[demo]'"
        )
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "examples.demo"]
    # The demo becomes this process: it gets the signals that are meant for it.
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})  # noqa: S606
