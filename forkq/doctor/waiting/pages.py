"""All jobs of a server that wait or run, in pages that delay its other clients by no more than some
milliseconds. It changes nothing.

A job that moves on meanwhile may be read twice. It is missed only if it goes back to a place that
was read: the places are read in the order in which jobs go through them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ...servers import Server
from ...store.find_job import all_queues
from ...store.scripts import LIST_PAGE, SET_PAGE

# What one script reads at most: jobs, and bytes.
_PAGE: Final = 200
_BYTES: Final = 1 << 19
# Of how many leases one HSCAN looks at.
_LEASES: Final = 50
# A list whose entries are deleted while they are read is begun again, so its reading has an end.
_ROUNDS: Final = 2


class PageOfJobs(NamedTuple):
    """Payloads, and ``where`` they are. ``queue`` has them; "" in a set."""

    payloads: Sequence[bytes]
    where: str
    queue: str = ""


def pages(server: Server) -> Iterator[PageOfJobs]:
    """Reads the schedule, the retry set, all queues with their suspects and what moves to another
    shard, and what is in flight. Raises ServerUnavailable."""
    yield from _of_set(server, server.keys.schedule, "the schedule")
    yield from _of_set(server, server.keys.retry, "the retry set")
    with server.connection() as connection:
        queues = all_queues(connection, server.keys)
    for queue in queues:
        yield from _of_queue(server, queue)
    for queue in queues:
        yield from _in_flight(server, queue)


def _of_set(server: Server, key: str, where: str) -> Iterator[PageOfJobs]:
    after = (b"", b"")
    while found := server.run(SET_PAGE, (key,), ("up", *after, _PAGE, _BYTES)):
        yield PageOfJobs(found[::2], where)
        after = (found[-1], found[-2])


def _of_queue(server: Server, queue: str) -> Iterator[PageOfJobs]:
    keys = server.keys
    lists = (keys.suspects(queue), keys.queue(queue), keys.moving(queue))
    places = f"the suspects of {queue}", f"queue {queue}", f"the move of queue {queue}"
    sizes = server.ask_leniently(*(("LLEN", key) for key in lists))
    left = _ROUNDS * sum(size or 0 for size in sizes)
    number, read, last = 1, 0, b""
    while left > 0:
        reply = server.run(LIST_PAGE, lists, ("next", number, read, last, _PAGE, _BYTES))
        number, before, _, *found = reply
        if not found:
            return
        yield PageOfJobs(found, places[number - 1], queue)
        read, last, left = before + len(found), found[-1], left - len(found)


def _in_flight(server: Server, queue: str) -> Iterator[PageOfJobs]:
    cursor = b"0"
    while True:
        asked = ("HSCAN", server.keys.inflight(queue), cursor, "COUNT", _LEASES)
        [reply] = server.ask_leniently(asked)
        cursor, found = reply or (b"0", ())
        yield PageOfJobs(found[1::2], f"in flight from queue {queue}", queue)
        if cursor == b"0":
            return
