"""Which children the master tells of the held classes, and when."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from forkq.config.capsule import Capsule
from forkq.master.child_handle import ChildHandle
from forkq.master.relays import HeldClassRelay
from forkq.master.slot import CLOCK, Slot
from forkq.runtime.pipe import (
    ClassesHeld,
    HoldClasses,
    Order,
    PipeReader,
    fitting,
    send,
)
from tests.unit.master.handles import make


class Tree:
    """Handles without processes. The relay asks for nothing but the children that live."""

    def __init__(self) -> None:
        self.living: list[ChildHandle] = []
        self._readers: dict[ChildHandle, PipeReader[Order]] = {}
        self.relay = HeldClassRelay(self)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[ChildHandle]:
        return iter(self.living)

    def fork(self, name: str, shard: str = "") -> ChildHandle:
        """A child that has not booted yet, or a clock."""
        clock = name.startswith(CLOCK)
        capsule = None if clock else Capsule("default", (("default", 0),), 1, shard=shard)
        slot = Slot(name, capsule, clock_of=shard if clock else "")
        child, reader = make(slot, 0, name)
        self.living.append(child)
        self._readers[child] = reader
        return child

    def advance(self) -> dict[str, list[tuple[str, ...]]]:
        """One turn: what was told to each child, by its name."""
        self.relay.advance()
        found: dict[str, list[tuple[str, ...]]] = {}
        for child, reader in self._readers.items():
            told = [order.names for order in reader.read() if isinstance(order, HoldClasses)]
            if told:
                found[child.name] = told
        return found

    def end(self) -> None:
        for child, reader in self._readers.items():
            child.close()
            os.close(reader.fd)


@pytest.fixture
def tree() -> Iterator[Tree]:
    made = Tree()
    yield made
    made.end()


def test_every_child_is_told_once_also_a_new_one_before_it_is_ready(tree: Tree) -> None:
    clock = tree.fork(CLOCK)
    tree.fork("default.0")
    assert tree.advance() == {}
    clock.told.held_classes = ("Boom",)
    assert tree.advance() == {"default.0": [("Boom",)]}
    assert tree.advance() == {}
    tree.fork("default.solo0")
    assert tree.advance() == {"default.solo0": [("Boom",)]}
    clock.told.held_classes = ()
    assert tree.advance() == {"default.0": [()], "default.solo0": [()]}


def test_a_clock_that_dies_releases_nothing(tree: Tree) -> None:
    clock = tree.fork(CLOCK)
    tree.fork("default.0")
    clock.told.held_classes = ("Boom",)
    tree.advance()
    tree.living.remove(clock)
    assert tree.advance() == {}
    tree.fork("default.1")
    assert tree.advance() == {"default.1": [("Boom",)]}
    after = tree.fork(CLOCK)
    assert tree.advance() == {}, "it has not looked yet"
    after.told.held_classes = ()
    assert tree.advance() == {"default.0": [()], "default.1": [()]}


def test_a_class_is_held_on_its_shard(tree: Tree) -> None:
    clock = tree.fork(f"{CLOCK}@mail", shard="mail")
    tree.fork("default@mail.0", shard="mail")
    tree.fork("default@shop.0", shard="shop")
    clock.told.held_classes = ("Boom",)
    assert tree.advance() == {"default@mail.0": [("Boom",)]}


def test_a_child_whose_pipe_is_full_is_told_later(tree: Tree) -> None:
    clock, child = tree.fork(CLOCK), tree.fork("default.0")
    for size in (3000, 1):
        while send(child.control, HoldClasses(("x" * size,))):
            pass
    clock.told.held_classes = ("Boom",)
    assert tree.advance()["default.0"][-1] != ("Boom",)  # the child reads its orders
    assert tree.advance() == {"default.0": [("Boom",)]}


def test_the_names_fit_into_one_message() -> None:
    names = [f"{'é' * 90}{number:03}" for number in range(100)]
    chosen = fitting(names)
    assert 10 < len(chosen) < 100
    read, write = os.pipe()
    os.set_blocking(write, False)
    assert send(write, ClassesHeld(chosen))
    assert len(os.read(read, 65536)) < 4096, "PIPE_BUF"
    os.close(read)
    os.close(write)
