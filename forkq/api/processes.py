"""The processes that run jobs: forkq's children, and Sidekiq's processes on the same Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ..errors import MalformedPayload
from ..wire.payload import bounded
from .query import ask, ask_leniently, keys, texts

_FIELDS: Final = ("info", "concurrency", "busy", "beat", "quiet", "rss", "rtt_us")


@dataclass(frozen=True, slots=True)
class Process:
    """One child of forkq, or one process of Sidekiq, as of its last heartbeat.

    ``identity`` is its name in Redis. It has ``concurrency`` threads, of which ``busy`` run a job;
    ``quiet``: it fetches no more. ``started_at`` and ``beat``, its last heartbeat, are epoch
    seconds. ``rss`` is its resident memory in KiB, ``rtt_us`` its last round trip to Redis in
    microseconds. ``version`` is that of forkq or Sidekiq.
    """

    identity: str
    hostname: str
    pid: int
    tag: str
    queues: tuple[str, ...]
    concurrency: int
    busy: int
    quiet: bool
    started_at: float
    beat: float
    rss: int
    rtt_us: int
    labels: tuple[str, ...]
    version: str


class _Capsule(msgspec.Struct):
    weights: dict[str, int] = {}


class _Info(msgspec.Struct):
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


def processes() -> list[Process]:
    """Every process whose record has not expired, by host and age. Raises ServerUnavailable."""
    return living(identities())


def living(names: list[str]) -> list[Process]:
    """Those of these identities that have a record that can be read."""
    records = ask_leniently(*(("HMGET", keys().process(name), *_FIELDS) for name in names))
    found = [_process(name, record) for name, record in zip(names, records, strict=True)]
    return sorted(
        (process for process in found if process is not None),
        key=lambda p: (p.hostname, p.started_at, p.identity),
    )


def identities() -> list[str]:
    """The identities in Redis. A process that was killed is among them for up to a minute."""
    [names] = ask(("SMEMBERS", keys().processes))
    return texts(names)


def _process(identity: str, record: Any) -> Process | None:
    """The record of one process; None if it is missing or cannot be read."""
    try:
        raw, concurrency, busy, beat, quiet, rss, rtt = record
        info = msgspec.json.decode(bounded(raw), type=_Info)
        return Process(
            identity=identity,
            hostname=info.hostname,
            pid=info.pid,
            tag=info.tag or "",
            queues=info.queues or _queues(info.capsules),
            concurrency=int(concurrency or info.concurrency),
            busy=int(busy or 0),
            quiet=quiet == b"true",
            started_at=info.started_at,
            beat=float(beat or 0),
            rss=int(rss or 0),
            rtt_us=int(rtt or 0),
            labels=info.labels,
            version=info.version,
        )
    except (
        TypeError,
        ValueError,
        RecursionError,
        MalformedPayload,
    ):  # msgspec's errors are ValueErrors
        return None


def _queues(capsules: Mapping[str, _Capsule]) -> tuple[str, ...]:
    """The queues of all capsules, each once."""
    return tuple(dict.fromkeys(name for each in capsules.values() for name in each.weights))
