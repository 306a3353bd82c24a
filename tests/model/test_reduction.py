"""Steps that are not tried in all orders hide nothing: footprints.py. ``test_mutations.py`` looks
at each changed script both ways."""

from __future__ import annotations

import pytest

from . import worlds
from .explorer import explore
from .world import World

# The others differ from one of these in numbers only, or take long.
LONG = (
    *(worlds.RATE_AND_LOSS, worlds.PERMITS, worlds.DEATHS_IN_TWO, worlds.TWO_FAILURES),
    *(worlds.EXPIRY_AND_LOSS, worlds.EXPIRY_AND_DEATH, worlds.TWO_EXPIRE, worlds.EXPIRY_PAUSED),
    *(worlds.EXPIRY_AT_LIMIT, worlds.TOO_LATE),
    *(worlds.UNIQUE_EXPIRES, worlds.CANCELS, worlds.CURSOR_LATE, worlds.UNIQUE_AND_LOSS),
)
WORLDS = [world for world in worlds.SMALL if world not in LONG]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_all_orders_have_the_same_ends(world: World) -> None:
    all_orders, reduced = explore(world, in_all_orders=True), explore(world)
    assert all_orders.found is None
    assert reduced.situations <= all_orders.situations
    assert reduced.ends == all_orders.ends != frozenset()


def test_the_reduction_makes_worlds_smaller() -> None:
    all_orders, reduced = explore(worlds.ALONE, in_all_orders=True), explore(worlds.ALONE)
    assert 5 * reduced.situations < 4 * all_orders.situations
