"""What a child offers to fetch from, where patterns stand for many queues."""

from __future__ import annotations

from forkq.child.fetch.queues import QueueGroup


def test_a_name_that_wakes_while_none_is_offered_moves_no_turn() -> None:
    """A push may be heard while a fetch is under way that offered nothing of the pattern."""
    entry = QueueGroup("tenant-*")
    entry.learn(["tenant-1"])
    entry.offer(64, turning=False)
    entry.block({"tenant-1": float("inf")})
    assert entry.offer(64, turning=False) == []
    entry.wake("tenant-1")
    entry.took({"critical": 1})
    assert entry.offer(64, turning=False) == ["tenant-1"]
