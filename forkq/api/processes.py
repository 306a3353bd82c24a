"""The processes that run jobs: forkq's children, and Sidekiq's processes on the same Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ..limits.patterns import matches_any
from ..servers import Server
from ..store.process_info import UNREADABLE, process_info
from .door import server as default_server
from .names import texts

_FIELDS: Final = ("info", "concurrency", "busy", "beat", "quiet", "rss", "rtt_us", "cpu", "refused")


@dataclass(frozen=True, slots=True)
class Process:
    """One child of forkq, or one process of Sidekiq, as of its last heartbeat.

    ``identity`` is its name in Redis. It has ``concurrency`` threads, of which ``busy`` run a job;
    ``quiet``: it fetches no more. ``started_at`` and ``beat``, its last heartbeat, are epoch
    seconds. ``rss`` is its resident memory in KiB, ``rtt_us`` its last round trip to Redis in
    microseconds. ``version`` is that of forkq or Sidekiq. Its last heartbeat was ``silent_for``
    seconds ago. ``capsules`` are the names of its capsules; ``master`` is the pid of its master, 0
    for a process of Sidekiq. ``cpu`` is the processor time that it used until its last heartbeat,
    100 for one processor; None if it does not say. ``refused``: what Redis refuses to it, and the
    remedy; "" if nothing.
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
    silent_for: float = field(default=0.0, compare=False)
    capsules: tuple[str, ...] = ()
    master: int = 0
    cpu: float | None = None
    refused: str = ""

    def serves(self, queue: str) -> bool:
        """Whether the process fetches from that queue, by name or by a pattern."""
        return matches_any(queue, self.queues)


def processes(server: Server | None = None) -> list[Process]:
    """Every process whose record has not expired, by host and age. Raises ServerUnavailable."""
    server = server or default_server()
    return living(server, identities(server))


def living(server: Server, names: list[str]) -> list[Process]:
    """The processes of the identities ``names`` that have a record which can be read, by host and
    age."""
    if not names:
        return []
    moment = server.now()
    asked = (("HMGET", server.keys.process(name), *_FIELDS) for name in names)
    records = server.ask_leniently(*asked)
    found = [_process(name, record, moment) for name, record in zip(names, records, strict=True)]
    return sorted(
        (process for process in found if process is not None),
        key=lambda p: (p.hostname, p.started_at, p.identity),
    )


def identities(server: Server) -> list[str]:
    """The identities in Redis. A process that was killed is among them for up to a minute."""
    [names] = server.ask(("SMEMBERS", server.keys.processes))
    return texts(names)


def _process(identity: str, record: Any, moment: float = 0.0) -> Process | None:
    """The record of one process; None if it is missing or cannot be read."""
    try:
        raw, concurrency, busy, beat, quiet, rss, rtt, cpu, refused = record
        info = process_info(raw)
        return Process(
            identity=identity,
            hostname=info.hostname,
            pid=info.pid,
            tag=info.tag or "",
            queues=info.all_queues,
            concurrency=int(concurrency or info.concurrency),
            busy=int(busy or 0),
            quiet=quiet == b"true",
            started_at=info.started_at,
            beat=float(beat or 0),
            rss=int(rss or 0),
            rtt_us=int(rtt or 0),
            labels=info.labels,
            version=info.version,
            silent_for=max(0.0, moment - float(beat)) if beat else 0.0,
            capsules=tuple(info.capsules),
            master=info.master,
            cpu=None if cpu is None else float(cpu),
            refused=str(refused or b"", "utf-8", "replace"),
        )
    except UNREADABLE:
        return None
