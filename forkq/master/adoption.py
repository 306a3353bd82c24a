"""How the master's living children get through its exec: written down as values, and made handles
again by the next program, whose children they still are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeAlias

import msgspec

from ..config.capsule import Capsule
from ..config.recycling import Recycling
from ..runtime.pipe import Fact, Reader, facts
from .child_handle import ChildHandle
from .slot import Slot
from .spawn import pidfd_of

Described: TypeAlias = dict[str, Any]

# What a handle has that another program cannot use as it is. The children put the suspects back
# that they hold (isolation.py).
_LIVE: Final = ("slot", "pidfd", "report", "memory", "isolation_facts", "on_trial")


def described(children: Iterable[ChildHandle]) -> list[Described]:
    """The children as values. Read their facts before."""
    return [_described(child) for child in children]


def revived(described: Described, slots: Mapping[str, Slot]) -> ChildHandle:
    """The child that ``described`` is about. It takes the slot of its name, if it was in a slot and
    the new configuration has that one. Else it has a slot of its own, which is not filled again."""
    slot = slots.get(described["name"]) if described["in_slot"] else None
    if slot is None:
        slot = Slot(described["name"], _capsule(described), clock_of=described.get("shard", ""))
    report = Reader[Fact](described["report"], facts)
    values = {name: value for name, value in described.items() if name in _names()}
    child = ChildHandle(slot=slot, pidfd=pidfd_of(described["pid"]), report=report, **values)
    child.told_queues = tuple(described["queues"])
    if described["in_slot"]:
        slot.child = child
    return child


def _described(child: ChildHandle) -> Described:
    """With what its slot knew of it: the new configuration may have other slots."""
    values = {name: getattr(child, name) for name in _names()}
    capsule = child.slot.capsule
    return {
        **msgspec.to_builtins(values),
        "report": child.report.fd,
        "name": child.name,
        "in_slot": child.slot.child is child,
        "queues": child.queues,
        "shard": child.shard,
        "concurrency": None if capsule is None else capsule.concurrency,
        "recycling": {} if capsule is None else msgspec.to_builtins(capsule.recycling),
    }


def _names() -> list[str]:
    return [field.name for field in fields(ChildHandle) if field.name not in _LIVE]


def _capsule(described: Described) -> Capsule | None:
    if described["concurrency"] is None:
        return None
    queues = tuple((name, 0) for name in described["queues"])
    # An older version of forkq has written no limits.
    limits = Recycling(**described.get("recycling", {}))
    name, shard = described["name"], described.get("shard", "")
    return Capsule(name, queues, described["concurrency"], recycling=limits, shard=shard)
