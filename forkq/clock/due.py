"""Moving what is due from the schedule and retry sets to the queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..connection import Command, Wire
from ..errors import InvalidJob, MalformedPayload
from ..keys import Keys
from ..payload import DEFAULT_QUEUE, dumps, loads
from ..scripts import DUE
from ..times import now

# Small enough that no script holds the server up, large enough that a flood is soon over.
_BATCH: Final = 200
_FIXED_KEYS: Final = 3
_TO_THE_DEAD: Final = 3


@dataclass(frozen=True, slots=True)
class Mover:
    """Moves due jobs on one wire."""

    keys: Keys
    wire: Wire

    def move(self) -> None:
        """Moves one batch of each set; more may be due."""
        self._move(self.keys.schedule)
        self._move(self.keys.retry)

    def next_due(self, *, watch: bool) -> float | None:
        """When the next job is due, epoch seconds; None if there is none. With ``watch``, the
        server tells the wire when either set has changed since."""
        commands: list[Command] = []
        for name in (self.keys.schedule, self.keys.retry):
            if watch:
                commands.append(("CLIENT", "CACHING", "YES"))
            commands.append(("ZRANGE", name, 0, 0, "WITHSCORES"))
        replies = self.wire.pipeline(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return min((score for r in replies for score in _scores(r)), default=None)

    def _move(self, name: str) -> None:
        members: list[bytes] = self.wire.call(
            "ZRANGEBYSCORE", name, "-inf", now(), "LIMIT", 0, _BATCH
        )
        if not members:
            return
        lists: dict[str, int] = {}
        moves: list[Any] = []
        for member in members:
            queue, payload = _woken(member)
            if queue is None:
                moves += (_TO_THE_DEAD, "", member, member)
            else:
                number = lists.setdefault(queue, _FIXED_KEYS + 1 + len(lists))
                moves += (number, queue, member, payload)
        keys = (name, self.keys.queues, self.keys.dead, *(self.keys.queue(q) for q in lists))
        self.wire.script(DUE, keys, (now(), *moves))


def _woken(member: bytes) -> tuple[str | None, bytes]:
    """The queue of a due job and its payload with ``enqueued_at``; no queue: it is no job."""
    try:
        job = loads(member)
        queue = job.get("queue") or DEFAULT_QUEUE
        if type(queue) is not str:
            return None, member
        job["enqueued_at"] = now()
        return queue, dumps(job)
    except (MalformedPayload, InvalidJob):
        return None, member


def _scores(reply: Any) -> list[float]:
    """The scores in a ZRANGE reply: RESP3 answers pairs, RESP2 a flat list."""
    if not isinstance(reply, list) or not reply:
        return []
    return [float(reply[0][1] if isinstance(reply[0], list) else reply[1])]
