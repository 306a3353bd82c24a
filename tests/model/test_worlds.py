"""All that can happen in small worlds keeps every promise: docs/proof.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import worlds
from .explorer import explore, walk
from .ghosts import PROMISES
from .story import story
from .world import World

# The others differ from one of these in numbers only, or take long.
LONG = (
    *(worlds.RATE_AND_LOSS, worlds.PERMITS, worlds.DEATHS_IN_TWO, worlds.TWO_FAILURES),
    *(worlds.EXPIRY_AND_LOSS, worlds.EXPIRY_AND_DEATH, worlds.TWO_EXPIRE, worlds.EXPIRY_PAUSED),
    *(worlds.EXPIRY_AT_LIMIT, worlds.TOO_LATE),
    *(worlds.UNIQUE_EXPIRES, worlds.CANCELS, worlds.CURSOR_LATE, worlds.UNIQUE_AND_LOSS),
)
IN_ALL_ORDERS = [world for world in worlds.SMALL if world not in LONG]


@pytest.mark.parametrize(
    "world", [*worlds.SMALL, worlds.ALL_TOGETHER], ids=lambda world: world.name
)
def test_a_small_world_keeps_all_promises(world: World) -> None:
    """So it does with its steps in all orders: those that are not tried hide nothing
    (footprints.py). ``test_mutations.py`` looks at each changed script both ways, too."""
    result = explore(world)
    assert result.found is None, story(world, result.found)
    assert result.is_complete
    assert result.situations > len(world.jobs)
    if world in IN_ALL_ORDERS:
        all_orders = explore(world, in_all_orders=True)
        assert all_orders.found is None
        assert result.situations <= all_orders.situations
        assert result.ends == all_orders.ends != frozenset()


def test_the_reduction_makes_worlds_smaller() -> None:
    all_orders, reduced = explore(worlds.ALONE, in_all_orders=True), explore(worlds.ALONE)
    assert 5 * reduced.situations < 4 * all_orders.situations


@pytest.mark.parametrize("seed", range(3))
def test_a_random_way_through_a_wide_world_keeps_all_promises(seed: int) -> None:
    found = walk(worlds.WIDE, seed, 1000)
    assert found is None, story(worlds.WIDE, found)


def test_what_cannot_end_is_found() -> None:
    """A suspect in a world without a solo child waits for ever, and the story says how."""
    world = World("no solo child", [worlds.GOOD], faults=("kill",), most_faults=1)
    result = explore(world)
    assert result.found is not None
    assert result.found.violation.promise == "nothing waits for ever"
    told = story(world, result.found)
    assert "child A is killed" in told
    assert told.endswith(PROMISES["nothing waits for ever"])


def test_the_same_world_has_the_same_situations() -> None:
    first, second = explore(worlds.LOST_REPLIES), explore(worlds.LOST_REPLIES)
    assert (first.situations, first.steps) == (second.situations, second.steps)


def test_the_page_has_each_promise() -> None:
    page = (Path(__file__).parents[2] / "docs" / "proof.md").read_text()
    for name, sentence in PROMISES.items():
        assert f"| {name} | {sentence} |" in page
