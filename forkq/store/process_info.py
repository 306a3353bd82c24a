"""What forkq's children and clocks and Sidekiq's processes write about themselves: how others read
it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
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
    # The pid of its master, and the highest version of payloads that it knows: only forkq's
    # children write them.
    master: int = 0
    knows: int | None = None
    # How many threads of forkq's child run jobs, if it is another number than ``concurrency``.
    threads: int = 0

    @property
    def all_threads(self) -> int:
        """How many of its threads run jobs."""
        return self.threads or self.concurrency

    @property
    def all_queues(self) -> tuple[str, ...]:
        """The queues and patterns of all capsules, each once."""
        named = (name for each in self.capsules.values() for name in each.weights)
        return self.queues or tuple(dict.fromkeys(named))


def process_info(raw: Any) -> ProcessInfo:
    """The decoded field ``info``. Raises one of UNREADABLE."""
    return msgspec.json.decode(bounded(raw), type=ProcessInfo)


def live_queues(
    connection: RedisConnection, keys: Keys, *, quiet: bool = True, of_forkq: bool = False
) -> set[str]:
    """The queues and patterns of all ``live_processes``; With ``of_forkq`` only those of forkq's
    own processes, which run suspects."""
    found = live_processes(connection, keys, quiet=quiet)
    return {name for info in found if info.master or not of_forkq for name in info.all_queues}


def live_processes(
    connection: RedisConnection, keys: Keys, *, quiet: bool = True
) -> list[ProcessInfo]:
    """Every process whose record has not expired and is readable; without ``quiet`` only those that
    fetch."""
    identities = decoded_names(connection.call("SMEMBERS", keys.processes))
    records = [keys.process(identity) for identity in identities]
    if not quiet and records:
        states = connection.pipeline([("HGET", record, "quiet") for record in records])
        pairs = zip(records, states, strict=True)
        records = [record for record, state in pairs if state != b"true"]
    commands = [("HGET", record, "info") for record in records]
    found = []
    for raw in connection.pipeline(commands) if commands else ():
        with suppress(*UNREADABLE):
            found.append(process_info(raw))
    return found


def running_services(
    connection: RedisConnection, keys: Keys, services: Iterable[str]
) -> frozenset[str]:
    """The services among ``services`` that run: their clocks announce it (clock/cron/services.py).
    Raises ConnectionLost or RedisError."""
    names = sorted(services)
    if not names:
        return frozenset()
    found = connection.call("MGET", *map(keys.cron_origin, names))
    return frozenset(name for name, value in zip(names, found, strict=True) if value is not None)
