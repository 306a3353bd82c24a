"""``forkq demo``: the main job, on real input, before your eyes."""

from __future__ import annotations

import importlib

import click

from ..errors import ForkqError

_EXTRA = {"PIL": "Pillow", "rich": "rich"}


@click.command()
def demo() -> int:
    """Run a real workload with a kill in the middle, and count what was lost.

    It works on the pictures, CSV and text files of the folder FORKQ_DEMO_INPUT, or on a set that it
    makes, and leaves everything in ./demo-results. No running forkq is touched.
    """
    # Not imported above: Pillow and rich come with an extra, and every command imports this file.
    try:
        runner = importlib.import_module("..demo.runner", __package__)
    except ModuleNotFoundError as error:
        missing = _EXTRA.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        raise ForkqError(
            f"the demo needs {missing}, which is not installed: pip install 'forkq[demo]'"
        ) from None
    code: int = runner.run()
    return code
