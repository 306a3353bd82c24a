"""Which part of a spread queue (``[spread]``) a job goes to.

A part is the queue on one shard. What a job's key leads to is a format, written down in
docs/wire.md: each process must find the same part, in each version of forkq.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32


def in_turn(parts: Sequence[str], key: str) -> Iterator[str]:
    """The parts in the order in which a job with that key tries them. ``parts`` are the names of
    shards, in alphabetical order.

    The CRC-32 of the key, divided by the number of parts, leaves the number of the first one; the
    quotient, divided by the number of those that are left, that of the second, and so on. So the
    jobs of a part that is down are spread evenly over the others, and those of the others stay.
    """
    number, left = crc32(key.encode()), list(parts)
    while left:
        number, at = divmod(number, len(left))
        yield left.pop(at)


def part_of(parts: Sequence[str], key: str) -> str:
    """The part that a job with that key is pushed to while all are up."""
    return parts[0] if len(parts) == 1 else next(in_turn(parts, key))
