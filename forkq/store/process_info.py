"""What forkq's children and Sidekiq's processes write about themselves: how others read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import MalformedPayload
from ..limits.patterns import decoded_names
from ..wire.payload import bounded

if TYPE_CHECKING:
    from ..wire.keys import Keys
    from .connection import RedisConnection

# msgspec's errors are ValueErrors.
UNREADABLE = (TypeError, ValueError, RecursionError, MalformedPayload)


class _Capsule(msgspec.Struct):
    weights: dict[str, int] = {}


class ProcessInfo(msgspec.Struct):
    """What Sidekiq and forkq write under ``info``. Sidekiq 8.1.2 writes ``concurrency`` as a field
    of the record instead, and plans to drop ``queues`` in 9.0."""

    hostname: str
    pid: int
    started_at: float
    concurrency: int = 0
    capsules: dict[str, _Capsule] = {}
    queues: tuple[str, ...] = ()
    tag: str | None = ""
    labels: tuple[str, ...] = ()
    version: str = ""
    # The pid of its master: forkq alone writes it.
    master: int = 0

    @property
    def all_queues(self) -> tuple[str, ...]:
        """The queues and patterns of all capsules, each once."""
        named = (name for each in self.capsules.values() for name in each.weights)
        return self.queues or tuple(dict.fromkeys(named))


def process_info(raw: Any) -> ProcessInfo:
    """The decoded field ``info``. Raises one of UNREADABLE."""
    return msgspec.json.decode(bounded(raw), type=ProcessInfo)


def live_queues(connection: RedisConnection, keys: Keys, *, quiet: bool = True) -> set[str]:
    """The queues and patterns of every process whose record has not expired; without ``quiet`` only
    of those that fetch."""
    identities = decoded_names(connection.call("SMEMBERS", keys.processes))
    records = [keys.process(identity) for identity in identities]
    if not quiet and records:
        states = connection.pipeline([("HGET", record, "quiet") for record in records])
        pairs = zip(records, states, strict=True)
        records = [record for record, state in pairs if state != b"true"]
    commands = [("HGET", record, "info") for record in records]
    infos = connection.pipeline(commands) if commands else ()
    return {name for info in infos for name in _queues_in(info)}


def _queues_in(info: Any) -> tuple[str, ...]:
    """The queues of one process; none if its record has expired, or is not readable."""
    try:
        return process_info(info).all_queues
    except UNREADABLE:
        return ()
