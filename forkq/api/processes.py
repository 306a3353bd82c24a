"""The processes that run jobs: forkq's children, and Sidekiq's processes on the same Redis; by host
and master, and the orders that they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ..limits.patterns import decoded_names, matches_any
from ..servers import Server
from ..store.process_info import UNREADABLE, process_info
from ..wire.lease import Blocking
from .door import OnServer
from .door import server as default_server

_FIELDS: Final = (
    *("info", "concurrency", "busy", "beat", "quiet", "rss", "rtt_us", "cpu", "refused"),
    "blocking",
)


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
    remedy; "" if nothing. ``blocking``: the job that blocked its event loop at the last heartbeat,
    or a callback of no job (then ``blocking.sequence`` is 0).
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
    blocking: Blocking | None = None

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


def _blocking(raw: Any) -> Blocking | None:
    """What blocks a loop; None if nothing does, or if the value cannot be read."""
    if type(raw) is not bytes or not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=Blocking)
    except UNREADABLE:
        return None


def texts(values: Iterable[bytes]) -> list[str]:
    """Names as text, sorted. Names that are not UTF-8 are left out."""
    return sorted(decoded_names(values))


def identities(server: Server) -> list[str]:
    """The identities in Redis. A process that was killed is among them for up to a minute."""
    [names] = server.ask(("SMEMBERS", server.keys.processes))
    return texts(names)


def _process(identity: str, record: Any, moment: float = 0.0) -> Process | None:
    """The record of one process; None if it is missing or cannot be read."""
    try:
        raw, concurrency, busy, beat, quiet, rss, rtt, cpu, refused, blocking = record
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
            blocking=_blocking(blocking),
        )
    except UNREADABLE:
        return None


# Seconds after which an order is forgotten that its process did not take.
_ORDER_TTL: Final = 60


@dataclass(frozen=True, slots=True)
class Tree:
    """The children of one master, or one process of Sidekiq, on one host.

    ``master`` is the pid of the master; of Sidekiq's process its own. Masters have no heartbeat in
    Redis: a tree is known by its living children.
    """

    hostname: str
    master: int
    tag: str
    version: str
    processes: tuple[Process, ...]

    @property
    def concurrency(self) -> int:
        """How many threads its processes have together."""
        return sum(process.concurrency for process in self.processes)

    @property
    def busy(self) -> int:
        """How many of the threads run a job."""
        return sum(process.busy for process in self.processes)

    @property
    def rss(self) -> int:
        """The resident memory of its processes, in KiB; shared pages count in each."""
        return sum(process.rss for process in self.processes)

    @property
    def silent_for(self) -> float:
        """Seconds since the heartbeat of its most silent process."""
        return max((process.silent_for for process in self.processes), default=0.0)


class ProcessSet(OnServer):
    """Every process whose record has not expired: forkq's children and Sidekiq's processes.

    The orders go through Redis, as from Sidekiq's web UI: a process takes one with its next
    heartbeat, within some seconds. They return to how many living processes they were sent. A
    process of no known identity is left out. Raises ServerUnavailable.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[Process]:
        return iter(processes(self.server))

    def __len__(self) -> int:
        return len(processes(self.server))

    def get(self, identity: str) -> Process | None:
        """The process of that identity; None if it has no living record."""
        return next(iter(living(self.server, [identity])), None)

    def trees(self) -> list[Tree]:
        """The processes by host and master."""
        found: dict[tuple[str, int], list[Process]] = {}
        for process in self:
            found.setdefault((process.hostname, process.master or process.pid), []).append(process)
        return [
            Tree(host, master, members[0].tag, members[0].version, tuple(members))
            for (host, master), members in sorted(found.items())
        ]

    def quiet(self, *identities: str) -> int:
        """Has the processes fetch no more jobs; running jobs go on. There is no way back but a
        restart."""
        return self._order("TSTP", identities)

    def stop(self, *identities: str) -> int:
        """Has the processes stop as at TERM. The master starts a new child in the place of each
        that it did not stop itself; stop a whole tree on its host (``forkq stop``)."""
        return self._order("TERM", identities)

    def dump_stacks(self, *identities: str) -> int:
        """Has the processes log the stack of each thread, with the job that it runs; look into
        their logs. The stacks do not come to Redis."""
        return self._order("TTIN", identities)

    def _order(self, signal: str, identities: Sequence[str]) -> int:
        """Leaves the order for the processes that live, as Sidekiq's web UI does."""
        server = self.server
        found = [server.keys.signals(one.identity) for one in living(server, list(identities))]
        orders = (c for key in found for c in (("LPUSH", key, signal), ("EXPIRE", key, _ORDER_TTL)))
        server.ask(*orders)
        return len(found)


def untaken(identities: Sequence[str], server: Server | None = None) -> list[str]:
    """The processes that have not taken their orders yet, or never did: ask before orders are
    forgotten."""
    server = server or default_server()
    left = server.ask(*(("EXISTS", server.keys.signals(one)) for one in identities))
    return [identity for identity, is_left in zip(identities, left, strict=True) if is_left]
