"""What every page needs to know of the cluster, asked once a second for all visitors together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from .. import api
from ..api import cron
from ..store.held_classes import HeldClass, held_in
from .pace import Pace

_FRESH: Final = 1.0  # seconds
_SLOW: Final = 5.0  # seconds between two looks at what changes slowly, or costs more
_MINUTES: Final = 60
_SAMPLES: Final = 300
_SAMPLE_EVERY: Final = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Memory:
    """Of Redis, in bytes. ``most`` is 0 without a bound."""

    used: int
    most: int
    policy: str

    @property
    def share(self) -> float:
        return self.used / self.most if self.most else 0.0


@dataclass(frozen=True, slots=True)
class SlowFacts:
    """What is asked less often: damaged keys, and the figures of the last hour by minute."""

    damaged: tuple[str, ...]
    hour: api.MetricsReport


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster as of ``at`` (epoch seconds). ``replica_of``: where the master is, if this Redis
    is a replica."""

    at: float
    stats: api.Stats
    states: tuple[api.QueueState, ...]
    processes: tuple[api.Process, ...]
    has_leader: bool
    memory: Memory
    slow: SlowFacts
    replica_of: str = ""
    held: tuple[HeldClass, ...] = ()

    @property
    def threads(self) -> int:
        """How many jobs can run at once."""
        return sum(process.concurrency for process in self.processes)

    def latency(self, queue: str) -> float:
        """For how many seconds the next job of a queue has waited."""
        return next((one.latency for one in self.stats.queues if one.name == queue), 0.0)


class Observer:
    """Asks a server for the facts, and remembers the sizes of queues since it was first asked.
    ``server`` is called for each look."""

    def __init__(self, server: Callable[[], api.Server]) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._next_at = float("-inf")
        self._pace = Pace(_FRESH)
        self._facts: Facts | None = None
        self._look_at = float("-inf")
        self._slow: SlowFacts | None = None
        self._sampled_at = float("-inf")
        self._sizes: dict[str, deque[tuple[float, int]]] = {}

    @property
    def server(self) -> api.Server:
        """The one that is looked at."""
        return self._server()

    def facts(self) -> Facts:
        """At most a second old; older where asking takes long. Raises ServerUnavailable."""
        with self._lock:
            begin = time.monotonic()
            if self._facts is None or begin >= self._next_at:
                self._facts = None
                server = self.server
                self._facts = _ask(server, self._slow_facts(server, begin))
                end = time.monotonic()
                self._next_at = end + self._pace.pause_after(end - begin)
                self._sample(self._facts, end)
            return self._facts

    def _slow_facts(self, server: api.Server, now: float) -> SlowFacts:
        if self._slow is None or now >= self._look_at:
            damaged = tuple(api.damaged_keys(server=server))
            self._slow = SlowFacts(damaged, api.Metrics(server).over(_MINUTES))
            self._look_at = now + _SLOW
        return self._slow

    def forget(self) -> None:
        """After an action: the next page shows what it did."""
        with self._lock:
            self._facts = None
            self._look_at = float("-inf")

    def sizes(self, queue: str) -> list[tuple[float, int]]:
        """The sizes of a queue: (epoch seconds, jobs), the oldest first."""
        with self._lock:
            return list(self._sizes.get(queue, ()))

    def _sample(self, facts: Facts, now: float) -> None:
        if now - self._sampled_at < _SAMPLE_EVERY:
            return
        self._sampled_at = now
        names = {state.name for state in facts.states}
        for gone in set(self._sizes) - names:
            del self._sizes[gone]
        for state in facts.states:
            samples = self._sizes.setdefault(state.name, deque(maxlen=_SAMPLES))
            samples.append((facts.at, state.size))


class ShardObservers(dict[str, Observer]):
    """One for each shard, by its name: made when it is first asked for."""

    def __missing__(self, shard: str) -> Observer:
        return self.setdefault(shard, Observer(partial(api.server, shard)))


def _ask(server: api.Server, slow: SlowFacts) -> Facts:
    [held] = server.ask_leniently(("HGETALL", server.keys.held_classes))
    return Facts(
        at=time.time(),
        stats=api.stats(server),
        states=tuple(api.queues(server=server)),
        processes=tuple(api.processes(server)),
        has_leader=cron.has_leader(server),
        memory=_memory(server),
        slow=slow,
        replica_of=_replica_of(server),
        held=tuple(held_in(held or {})),
    )


def _replica_of(server: api.Server) -> str:
    found = _info(server, "replication")
    is_replica = found.get("role") == "slave"
    return f"{found.get('master_host')}:{found.get('master_port')}" if is_replica else ""


def _memory(server: api.Server) -> Memory:
    """Of zeros if the user's rights do not allow INFO."""
    found = _info(server, "memory")
    return Memory(
        used=int(found.get("used_memory", 0)),
        most=int(found.get("maxmemory", 0)),
        policy=found.get("maxmemory_policy", ""),
    )


def _info(server: api.Server, section: str) -> dict[str, str]:
    """Empty if the user's rights do not allow INFO."""
    [reply] = server.ask_leniently(("INFO", section))
    text = reply if isinstance(reply, str) else bytes(reply or b"").decode("utf-8", "replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def drains_in(samples: list[tuple[float, int]]) -> tuple[float, float | None] | None:
    """Jobs a second by which a queue grows (below 0: shrinks), and in how many seconds it is empty
    at this rate. None if it was looked at for less than ten seconds."""
    recent = samples[-30:]
    if len(recent) < 2 or recent[-1][0] - recent[0][0] < 10:
        return None
    (begin, before), (end, after) = recent[0], recent[-1]
    rate = (after - before) / (end - begin)
    return rate, (after / -rate if rate < 0 and after else None)
