"""The processes that run jobs, by host and master, and the orders that they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..servers import Server
from .door import OnServer
from .door import server as default_server
from .processes import Process, living, processes

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
