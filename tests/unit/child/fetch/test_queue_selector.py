"""What a child offers to fetch from, where patterns stand for many queues."""

from __future__ import annotations

from forkq.child.fetch.offered_queue import OfferedQueue
from forkq.child.fetch.queue_group import QueueGroup
from forkq.limits.rules import NO_RULES


def test_a_name_that_wakes_while_none_is_offered_moves_no_turn() -> None:
    """A push may be heard while a fetch is under way that offered nothing of the pattern."""
    entry = OfferedQueue("tenant-*", 1, NO_RULES, QueueGroup())
    assert entry.known is not None
    entry.known.meet(["tenant-1"])
    entry.show(64, turning=False)
    entry.rest({"tenant-1": float("inf")})
    assert entry.show(64, turning=False) == []
    entry.known.wake("tenant-1")
    entry.turn({"critical": 1})
    assert entry.show(64, turning=False) == ["tenant-1"]
