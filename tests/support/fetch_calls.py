"""The KEYS of the scripts, for tests that call these with arguments of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forkq.wire.keys import Keys

KEYS = Keys()


def keys_of(*queues: str, done: Sequence[Any] = (), ruled: Sequence[str] = ()) -> list[str]:
    """The KEYS of fetch.lua: it acknowledges ``done`` (per queue its number, how many, and their
    sequence numbers), and has rules for the queues ``ruled``."""
    marks, at = [], 0
    while at < len(done):
        marks.append(KEYS.awaited(queues[done[at] - 1]))
        at += 2 + done[at + 1]
    rules = [key for name in ruled for key in KEYS.of_rules(name)]
    return [KEYS.paused, KEYS.controlled, *KEYS.lists_and_leases(queues), *marks, *rules]


def counted(done: Sequence[Any]) -> list[Any]:
    """The arguments of ``done``: of how many queues; then as it is."""
    queues, at = 0, 0
    while at < len(done):
        queues, at = queues + 1, at + 2 + done[at + 1]
    return [queues, *done]
