"""Passes on which classes are held: the clock of a shard sees it in Redis, and the children whose
jobs are there obey."""

from __future__ import annotations

from ..runtime.pipe import HoldClasses
from .child_handle import ChildHandle
from .children import Children


class HeldClassRelay:
    """Called in each turn of the master's loop, right after the forks: a new child must know it
    before it fetches."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._held: dict[str, tuple[str, ...]] = {}  # by shard; a clock may die
        self._told: dict[ChildHandle, tuple[str, ...]] = {}

    def advance(self) -> None:
        """Tells each child what it does not know yet. One whose pipe is full is told later."""
        for child in self._children:
            if child.slot.capsule is None and child.held_classes is not None:
                self._held[child.shard] = tuple(child.held_classes)
        self._told = {
            child: known for child, known in self._told.items() if child in self._children
        }
        for child in self._children:
            names = self._held.get(child.shard, ())
            if child.slot.capsule is None or names == self._told.get(child, ()):
                continue
            if child.send(HoldClasses(names)):
                self._told[child] = names
