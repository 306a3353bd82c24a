"""All that can happen in small worlds keeps every promise: docs/proof.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import worlds
from .explorer import explore, walk
from .ghosts import PROMISES
from .story import story
from .world import World


@pytest.mark.parametrize(
    "world", [*worlds.SMALL, worlds.ALL_TOGETHER], ids=lambda world: world.name
)
def test_a_small_world_keeps_all_promises(world: World) -> None:
    result = explore(world)
    assert result.found is None, story(world, result.found)
    assert result.is_complete
    assert result.situations > len(world.jobs)


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
