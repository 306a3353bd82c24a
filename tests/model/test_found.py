"""What the explorer has found in forkq: each of these worlds broke a promise once."""

from __future__ import annotations

from . import worlds
from .explorer import explore
from .story import story
from .world import World


def test_a_child_that_gave_a_stray_lease_back_watches_its_queue_again() -> None:
    """A fetch arrived after its connection had ended, and leased a job of which the child knew
    nothing. The child gave it back at its next look, and slept: Redis reports no change to who has
    made it, and the child's queue was not watched any more."""
    world = World("a late fetch", [worlds.GOOD], faults=("late loss",), most_faults=1)
    result = explore(world)
    assert result.found is None, story(world, result.found)
