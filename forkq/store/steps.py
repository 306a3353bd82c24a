"""Work with Redis that takes several round trips, written once for two kinds of callers.

``carry_out`` waits for all replies. The master waits for one reply at a time, and runs its loop
between two of them (master/rescue.py).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from .connection import Call, Command, RedisConnection, RedisError

T = TypeVar("T")

# Yields what to send in one round trip, gets the replies (errors among them), returns the result.
Steps: TypeAlias = "Generator[Sequence[Command | Call], list[Any], T]"


def carry_out(connection: RedisConnection, steps: Steps[T]) -> T:
    """Does all the steps now. Raises ConnectionLost, and what ``steps`` raises."""
    try:
        commands = next(steps)
        while True:
            commands = steps.send(connection.exchange(commands))
    except StopIteration as end:
        result: T = end.value
        return result


def resume(steps: Steps[T], replies: list[Any]) -> Steps[T]:
    """The rest of ``steps`` that have begun; ``replies`` answer their last commands."""
    while True:
        try:
            commands = steps.send(replies)
        except StopIteration as end:
            result: T = end.value
            return result
        replies = yield commands


def checked(replies: list[Any]) -> list[Any]:
    """The replies. Raises the first error among them."""
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply
    return replies
