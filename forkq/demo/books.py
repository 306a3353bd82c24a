"""The books: where every pushed job is, read from Redis and from the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..config.config import Config
from ..default_client import address
from ..store.connection import ConnectionLost, RedisConnection
from ..wire.keys import Keys
from ..wire.payload import Payload, loads
from .plan import Pushed

_TIMEOUT: Final = 2.0


@dataclass(frozen=True, slots=True)
class Depths:
    """How many jobs are where, and when the next of a set is due (epoch seconds, 0: none is)."""

    queued: int = 0
    in_flight: int = 0
    retry: int = 0
    schedule: int = 0
    dead: int = 0
    retry_due: float = 0.0
    schedule_due: float = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether no job is on its way any more."""
        return not (self.queued or self.in_flight or self.retry or self.schedule)


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the pushed jobs, by jid: each is in exactly one place. ``dead`` says why."""

    done: frozenset[str] = frozenset()
    dead: Mapping[str, str] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()

    @property
    def pushed(self) -> int:
        """How many there are."""
        return len(self.done) + len(self.dead) + len(self.waiting) + len(self.lost)

    @property
    def balanced(self) -> bool:
        """Whether all that was pushed is done or dead."""
        return not self.waiting and not self.lost


class Books:
    """Reads the demo's Redis; the demo writes there with the public client only."""

    def __init__(self, config: Config) -> None:
        self._connection = RedisConnection(
            address(config), timeout=_TIMEOUT, connect_timeout=_TIMEOUT
        )
        self._keys = Keys(config.redis.prefix)
        self._queues = tuple(name for c in config.capsules for name in c.queue_names)
        self._last = Depths()

    def depths(self) -> Depths:
        """How things stand; as they stood before if the server does not answer just now."""
        keys = self._keys
        due = [("ZRANGE", name, 0, 0, "WITHSCORES") for name in (keys.retry, keys.schedule)]
        sets = [("ZCARD", name) for name in (keys.retry, keys.schedule, keys.dead)]
        lists = [("LLEN", keys.queue(name)) for name in self._queues]
        hashes = [("HLEN", keys.inflight(name)) for name in self._queues]
        try:
            replies = self._ask([*due, *sets, *lists, *hashes])
        except ConnectionLost:
            return self._last
        retry_due, schedule_due = (_score(reply) for reply in replies[:2])
        retry, schedule, dead = replies[2:5]
        queued, in_flight = replies[5 : 5 + len(lists)], replies[5 + len(lists) :]
        self._last = Depths(
            sum(queued), sum(in_flight), retry, schedule, dead, retry_due, schedule_due
        )
        return self._last

    def account(self, pushed: Sequence[Pushed], folder: Path) -> Account:
        """Looks for every job: in the dead set, on its way, else for its result on disk."""
        dead_payloads, on_the_way = self._payloads()
        jids = {job.jid for job in pushed}
        dead = {job["jid"]: _cause(job) for job in dead_payloads if job.get("jid") in jids}
        waiting = {job["jid"] for job in on_the_way if job.get("jid") in jids} - dead.keys()
        left = [job for job in pushed if job.jid not in dead and job.jid not in waiting]
        done = {job.jid for job in left if (folder / job.result).is_file()}
        lost = {job.jid for job in left} - done
        return Account(frozenset(done), dead, frozenset(waiting), frozenset(lost))

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _payloads(self) -> tuple[list[Payload], list[Payload]]:
        """The dead, and those on their way; all of one moment."""
        keys = self._keys
        dead, *others = self._ask(
            [
                ("ZRANGE", keys.dead, 0, -1),
                *(("LRANGE", keys.queue(name), 0, -1) for name in self._queues),
                *(("HVALS", keys.inflight(name)) for name in self._queues),
                *(("ZRANGE", name, 0, -1) for name in (keys.retry, keys.schedule)),
            ]
        )
        on_the_way = [loads(payload) for reply in others for payload in reply]
        return [loads(payload) for payload in dead], on_the_way

    def _ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies, all of one moment. Raises ConnectionLost or RedisError."""
        self._connection.connect()
        replies = self._connection.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
        if isinstance(replies, Exception):
            raise replies
        found: list[Any] = replies
        return found


def _cause(job: Payload) -> str:
    """Why a job died, in a line."""
    name = str(job.get("error_class", "")).rpartition(".")[2]
    return " ".join(f"{name}: {job.get('error_message', '')}".split())


def _score(reply: list[Any]) -> float:
    """Of the first entry: RESP3 answers pairs, RESP2 a flat list."""
    if not reply:
        return 0.0
    return float(reply[0][1] if isinstance(reply[0], list) else reply[1])
