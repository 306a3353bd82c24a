"""``forkq demo``: the main job, on real input, before your eyes."""

from __future__ import annotations

import click

from ..errors import ForkqError


@click.command()
def demo() -> int:
    """Run a real workload with a kill in the middle, and count what was lost: nothing."""
    raise ForkqError("not there yet")
