"""Work with Redis that takes several round trips, written once for two kinds of callers.

``carry_out`` waits for all replies. The master waits for one reply at a time, and runs its loop
between two of them (master/rescue.py).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from ..wire.keys import Keys
from .connection import Call, Command, RedisConnection, RedisError
from .scripts import REQUEUE

T = TypeVar("T")

# Of how many queues one call returns leases, and about how many bytes of payloads it moves.
_QUEUES: Final = 500
_BYTES: Final = 4 << 20
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


def requeue_calls(
    keys: Keys, queues: Sequence[str], owner: str, below: int = 0, keep: Iterable[int] = ()
) -> Iterator[Call]:
    """The calls that return leases of one owner without a crash record: after a graceful end, and
    those that a child finds in Redis and does not know. Each is made again while its reply (how
    many jobs were moved, and whether there are more) says that there are more. Leases with sequence
    numbers from ``below`` on (0: none) and those that ``keep`` names stay."""
    arguments = (owner, below, _BYTES, *keep)
    for start in range(0, len(queues), _QUEUES):
        lists = keys.of_returns(queues[start : start + _QUEUES])
        yield Call(REQUEUE, (keys.queues, *lists), arguments)
