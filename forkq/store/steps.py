"""Work with Redis that takes several round trips, written once for two kinds of callers.

One waits for all answers (``carry_out``). The master waits for one answer at a time, and looks
after its children in between (master/rescue.py).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from .connection import Call, Command, RedisConnection, RedisError

T = TypeVar("T")

# Yields what to send in one round trip, gets the replies (errors among them), returns the result.
Steps: TypeAlias = "Generator[Sequence[Command | Call], list[Any], T]"


def carry_out(connection: RedisConnection, steps: Steps[T]) -> T:
    """Does all of it now. Raises ConnectionLost, and what ``steps`` raises."""
    try:
        commands = next(steps)
        while True:
            commands = steps.send(connection.exchange(commands))
    except StopIteration as end:
        result: T = end.value
        return result


def resume(steps: Steps[T], replies: list[Any]) -> Steps[T]:
    """The rest of ``steps`` that have begun, from the replies to their last commands on."""
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
