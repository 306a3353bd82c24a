"""A Rescue for each shard: whose jobs it gets, and which one waits for a shard that is slow."""

from __future__ import annotations

import time
from typing import cast

import pytest

from forkq.master import rescue
from forkq.master.rescue import DeadChild, Rescue, ShardRescues


class OneRescue:
    """Stands for the Rescue of one shard. ``turns``: how often it was called; ``slow``: it waits in
    each for Redis."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.due: float | None = None
        self.turns = 0
        self.slow = False

    def add(self, child: DeadChild) -> None:
        self.added.append(child.identity)
        self.due = time.monotonic()

    def advance(self) -> bool:
        self.turns += 1
        if self.slow:
            time.sleep(0.002)
        else:
            self.due = None
        return self.due is None


@pytest.fixture
def parts() -> dict[str, OneRescue]:
    return {"default": OneRescue(), "mail": OneRescue(), "bulk": OneRescue()}


@pytest.fixture
def rescues(parts: dict[str, OneRescue]) -> ShardRescues:
    return ShardRescues({name: cast("Rescue", part) for name, part in parts.items()})


def dead(identity: str, shard: str) -> DeadChild:
    return DeadChild(identity, ("q",), None, shard=shard)


def test_each_child_goes_to_its_shard(rescues: ShardRescues, parts: dict[str, OneRescue]) -> None:
    """A child from before a rolling restart that has brought the shards was on the default one."""
    assert rescues.due is None
    for identity, shard in (("a", "mail"), ("b", "default"), ("c", "")):
        rescues.add(dead(identity, shard))
    assert {name: part.added for name, part in parts.items()} == {
        "default": ["b", "c"], "mail": ["a"], "bulk": [],
    }  # fmt: skip
    assert rescues.due == parts["default"].due or rescues.due == parts["mail"].due
    assert rescues.advance()
    assert rescues.due is None


def test_a_turn_waits_for_one_slow_shard_and_the_next_turn_begins_behind_it(
    rescues: ShardRescues, parts: dict[str, OneRescue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "_TURN_LIMIT", 0.001)
    for name, part in parts.items():
        rescues.add(dead(name, name))
        part.slow = True
    for turn in range(1, 4):
        assert not rescues.advance()
        assert sum(part.turns for part in parts.values()) == turn
    assert [part.turns for part in parts.values()] == [1, 1, 1]
