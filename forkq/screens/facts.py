"""What every page needs to know of the cluster, asked once a second for all visitors together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import msgspec

from .. import api
from ..api import cron
from ..errors import NotPermitted
from ..metrics.samples import number, rows
from ..store.held_classes import HeldClassRecord, held_in
from ..values import replace
from .checks import DUE, LATENCY
from .fleet import Fleet
from .flow import MeasuredFlow, QueueFlow, Sample
from .pace import Pace

_FRESH: Final = 1.0  # seconds
_SLOW: Final = 5.0  # seconds between two looks at what changes slowly, or costs more
_MINUTES: Final = 60
_SAMPLES: Final = 300
_SAMPLE_EVERY: Final = 2.0  # seconds
_CRASHES: Final = 900.0  # seconds for which crashes are remembered
_SLOW_FOR: Final = 60.0  # seconds: a single round trip that takes long says little
_DIED: Final = 3600.0  # seconds
_OLD: Final = 15.0  # seconds after which what another shard has told is not shown


class RedisMemory(msgspec.Struct, frozen=True):
    """The memory of Redis, in bytes. ``most`` is 0 without a bound."""

    used: int
    most: int
    policy: str

    @property
    def share(self) -> float:
        return self.used / self.most if self.most else 0.0


class LastMinute(NamedTuple):
    """How many runs ended in the last 60 seconds, failed ones included, and how many failed."""

    processed: int
    failed: int


class SlowFacts(msgspec.Struct, frozen=True):
    """The facts that are asked for less often: damaged keys, the figures of the last hour by minute
    and those of the last 60 seconds, how many children have ``ended`` badly (since the first one,
    by the reason), and the periodic jobs whose app does not run (``asleep``), or whose tick has
    been due for some seconds (``late_ticks``)."""

    damaged: tuple[str, ...]
    hour: api.MetricsReport
    minute: LastMinute
    ended: Mapping[str, int] = msgspec.field(default_factory=dict)
    asleep: tuple[str, ...] = ()
    late_ticks: Mapping[str, float] = msgspec.field(default_factory=dict)


class OverdueJobs(msgspec.Struct, frozen=True):
    """How many ``scheduled`` jobs and ``retries`` have been due for longer than the clock may take,
    and for how many ``seconds`` the first of them."""

    scheduled: int = 0
    retries: int = 0
    seconds: float = 0.0

    @property
    def jobs(self) -> int:
        """How many jobs are overdue."""
        return self.scheduled + self.retries


class Facts(msgspec.Struct, frozen=True, dict=True):
    """The cluster as of ``at`` (epoch seconds). ``leader``: the host of the clock that leads.
    ``replica_of``: where the master is, if this Redis is a replica. ``died``: in the last hour.
    ``overdue`` and ``died`` are None if the user may not count them (ZCOUNT).
    ``began``: how many jobs of each queue forkq's children have begun since the first one.
    ``flows``: of queues with jobs. ``crashes``: in the last 15 minutes, by the reason, and
    ``slow_trips``: the processes whose round trips have been slow for a minute, both as far as this
    process has looked."""

    at: float
    stats: api.Stats
    states: tuple[api.QueueState, ...]
    processes: tuple[api.Process, ...]
    leader: str
    memory: RedisMemory
    slow: SlowFacts
    replica_of: str = ""
    held: tuple[HeldClassRecord, ...] = ()
    overdue: OverdueJobs | None = OverdueJobs()
    died: int | None = 0
    began: Mapping[str, int] = msgspec.field(default_factory=dict)
    flows: Mapping[str, MeasuredFlow] = msgspec.field(default_factory=dict)
    crashes: Mapping[str, int] = msgspec.field(default_factory=dict)
    slow_trips: frozenset[str] = frozenset()

    @property
    def threads(self) -> int:
        """How many jobs can run at once."""
        return sum(process.concurrency for process in self.processes)

    def latency(self, queue: str) -> float:
        """For how many seconds the next job of a queue has waited."""
        return self._latencies.get(queue, 0.0)

    @cached_property
    def fleet(self) -> Fleet:
        """Which processes serve which queue."""
        return Fleet(self.processes, self.states)

    @cached_property
    def _latencies(self) -> dict[str, float]:
        return {one.name: one.latency for one in self.stats.queues}


class Observer:
    """Asks a server for the facts, and remembers the sizes of queues since it was first asked.
    ``server`` is called for each look. ``siblings``: the observers of all shards, by their
    names."""

    def __init__(
        self, server: Callable[[], api.Server], siblings: Mapping[str, Observer] | None = None
    ) -> None:
        self._server = server
        self._siblings = siblings
        self._latest: Facts | None = None
        self._lock = threading.Lock()
        self._next_at = float("-inf")
        self._pace = Pace(_FRESH)
        self._facts: Facts | None = None
        self._look_at = float("-inf")
        self._slow: SlowFacts | None = None
        self._sampled_at = float("-inf")
        self._sizes: dict[str, deque[tuple[float, int]]] = {}
        self._flows: dict[str, QueueFlow] = {}
        self._slow_since: dict[str, float] = {}
        self._ended = deque[tuple[float, Mapping[str, int]]]()

    @property
    def server(self) -> api.Server:
        """The server that is looked at."""
        return self._server()

    def facts(self) -> Facts:
        """The facts, at most a second old; older where asking takes long. Raises
        ServerUnavailable."""
        with self._lock:
            begin = time.monotonic()
            if self._facts is None or begin >= self._next_at:
                self._facts = None
                server = self.server
                asked = _ask(server, self._slow_facts(server, begin))
                end = time.monotonic()
                self._next_at = end + self._pace.pause_after(end - begin)
                self._sample(asked, end)
                flows = {one.name: self._flows[one.name].flow() for one in asked.states if one.size}
                slow_trips = self._slow_trips(asked.processes, end)
                crashes = self._crashes()
                self._facts = replace(asked, flows=flows, crashes=crashes, slow_trips=slow_trips)
                self._latest = self._facts
            return self._facts

    def parts(self, queue: str) -> dict[str, int | None]:
        """How many jobs each part of a spread queue has, by the name of the shard, as far as its
        observer has seen lately (else None); empty for a queue that is not spread. Asks no other
        shard."""
        names = self.server.parts_of(queue)
        if len(names) == 1 or self._siblings is None:
            return {}
        return {name: _size_in(self._siblings[name]._latest, queue) for name in names}

    def _slow_facts(self, server: api.Server, now: float) -> SlowFacts:
        if self._slow is None or now >= self._look_at:
            self._slow = _ask_slow(server)
            self._look_at = now + _SLOW
            self._ended.append((now, self._slow.ended))
            while now - self._ended[0][0] > _CRASHES:
                self._ended.popleft()
        return self._slow

    def _slow_trips(self, processes: Iterable[api.Process], now: float) -> frozenset[str]:
        slow = (one.identity for one in processes if one.rtt_us > LATENCY.limit * 1e6)
        self._slow_since = {name: self._slow_since.get(name, now) for name in slow}
        return frozenset(
            name for name, since in self._slow_since.items() if now - since >= _SLOW_FOR
        )

    def _crashes(self) -> dict[str, int]:
        (_, first), (_, last) = self._ended[0], self._ended[-1]
        return {why: last[why] - first.get(why, 0) for why in last if last[why] > first.get(why, 0)}

    def forget(self) -> None:
        """Forgets what was asked, after an action: the next page shows what it did."""
        with self._lock:
            self._facts = None
            self._look_at = float("-inf")

    def sizes(self, queue: str) -> list[tuple[float, int]]:
        """The sizes of a queue: (epoch seconds, jobs), the oldest first."""
        with self._lock:
            return list(self._sizes.get(queue, ()))

    def flow(self, queue: str) -> MeasuredFlow | None:
        """How a queue with jobs moves; None if it was not seen yet."""
        with self._lock:
            known = self._flows.get(queue)
            return None if known is None else known.flow()

    def _sample(self, facts: Facts, now: float) -> None:
        if now - self._sampled_at < _SAMPLE_EVERY and not self._new_queues(facts):
            return
        self._sampled_at = now
        names = {state.name for state in facts.states}
        for gone in set(self._sizes) - names:
            del self._sizes[gone], self._flows[gone]
        for state in facts.states:
            samples = self._sizes.setdefault(state.name, deque(maxlen=_SAMPLES))
            samples.append((facts.at, state.size))
            self._flows.setdefault(state.name, QueueFlow()).add(_sampled(facts, state, now))

    def _new_queues(self, facts: Facts) -> bool:
        return any(state.name not in self._flows for state in facts.states)


def _size_in(latest: Facts | None, queue: str) -> int | None:
    """The size of a queue as of these facts; None if they are old."""
    if latest is None or time.time() - latest.at > _OLD:
        return None
    return sum(one.size for one in latest.stats.queues if one.name == queue)


def _sampled(facts: Facts, state: api.QueueState, now: float) -> Sample:
    ready = state.size > 0 and not facts.fleet.holds(state)
    next_at = facts.at - facts.latency(state.name)
    return Sample(now, state.size, facts.began.get(state.name, 0), next_at, ready)


class ShardObservers(dict[str, Observer]):
    """An Observer for each shard, by its name: made when it is first asked for."""

    def __missing__(self, shard: str) -> Observer:
        return self.setdefault(shard, Observer(partial(api.server, shard), self))


def _ask(server: api.Server, slow: SlowFacts) -> Facts:
    stats, states, now = api.stats(server), tuple(api.queues(server=server)), server.now()
    names, waiting = server.keys, [state.name for state in states if state.size]
    fields = [f"{name}|n" for name in waiting] or ["|n"]  # HMGET wants one at least
    held, leader, began = server.ask_leniently(
        ("HGETALL", names.held_classes),
        ("GET", names.leader),
        ("HMGET", names.totals("queues"), *fields),
    )
    info, (overdue, died) = _info(server), _counted(server, now)
    return Facts(
        at=time.time(),
        stats=stats,
        states=states,
        processes=tuple(api.processes(server)),
        leader=_host(leader),
        memory=_memory(info),
        slow=slow,
        replica_of=_replica_of(info),
        held=tuple(held_in(held or {})),
        overdue=overdue,
        died=died,
        began={name: number(count) for name, count in zip(waiting, began or (), strict=False)},
    )


def _counted(server: api.Server, now: float) -> tuple[OverdueJobs | None, int | None]:
    """Counts the overdue jobs, and those that died in the last hour."""
    names, until = server.keys, now - DUE.limit
    try:
        scheduled, retries, died = server.ask_leniently(
            ("ZCOUNT", names.schedule, "-inf", until),
            ("ZCOUNT", names.retry, "-inf", until),
            ("ZCOUNT", names.dead, now - _DIED, "+inf"),
        )
    except NotPermitted:
        return None, None
    if not (scheduled or retries):
        return OverdueJobs(), died or 0
    late = server.ask_leniently(
        *(("ZRANGE", key, 0, 0, "WITHSCORES") for key in (names.schedule, names.retry))
    )
    scores = [float(entries[0][1]) for entries in late if entries]
    longest = max((now - score for score in scores), default=0.0)
    return OverdueJobs(scheduled or 0, retries or 0, longest), died or 0


def _host(leader: bytes | None) -> str:
    """The host in ``Keys.leader``: HOST:PID:NONCE, and more. "" without a leader."""
    identity = (leader or b"").partition(b" ")[0].decode("utf-8", "replace")
    return identity.rsplit(":", 2)[0]


def _ask_slow(server: api.Server) -> SlowFacts:
    [totals] = server.ask_leniently(("HGETALL", server.keys.totals("children")))
    counted = {name.partition("|"): row.get("n", 0) for name, row in rows(totals or {}).items()}
    hour = api.Metrics(server).over(_MINUTES)
    now, periodic = time.time(), cron.list(server)
    active = [one for one in periodic if one.entry.enabled and not one.paused]
    late = {one.name: now - _due(one, now) for one in active if not one.asleep}
    return SlowFacts(
        damaged=tuple(api.damaged_keys(server=server)),
        hour=hour,
        minute=last_minute(hour.total.points, now),
        ended={why: count for (kind, _, why), count in counted.items() if kind == "crash"},
        asleep=tuple(one.name for one in active if one.asleep),
        late_ticks={name: seconds for name, seconds in late.items() if seconds > 0},
    )


def _due(one: cron.Periodic, now: float) -> float:
    """When the next tick of a periodic job is due, or was; ``now`` if it has had none yet."""
    ticks = [] if one.last is None else one.entry.schedule.ticks(one.last, now, 1)
    return one.entry.due(ticks[0]) if ticks else now


def _replica_of(info: Mapping[str, str]) -> str:
    is_replica = info.get("role") == "slave"
    return f"{info.get('master_host')}:{info.get('master_port')}" if is_replica else ""


def _memory(info: Mapping[str, str]) -> RedisMemory:
    """The memory of Redis; all zero if the user's rights do not allow INFO. Without ``maxmemory``
    the memory of the server's host bounds it."""
    return RedisMemory(
        used=int(info.get("used_memory", 0)),
        most=int(info.get("maxmemory", 0)) or int(info.get("total_system_memory", 0)),
        policy=info.get("maxmemory_policy", ""),
    )


def _info(server: api.Server) -> dict[str, str]:
    """The fields of INFO; empty if the user's rights do not allow it."""
    replies: list[Any] = []
    with suppress(NotPermitted):
        replies = server.ask_leniently(("INFO", "memory"), ("INFO", "replication"))
    texts = (
        one if isinstance(one, str) else bytes(one).decode("utf-8", "replace") for one in replies
    )
    lines = (line for text in texts for line in text.splitlines() if ":" in line)
    return dict(line.split(":", 1) for line in lines)


def last_minute(points: Sequence[api.Point], at: float) -> LastMinute:
    """The runs of the 60 seconds before ``at``, from counts by whole minutes: the minute that has
    begun, and of the one before it the share that is not yet 60 seconds ago, as if its runs were
    spread evenly over it."""
    before, latest = points[-2:]
    share = min(1.0, max(0.0, 1 - (at - latest.at) / 60))
    return LastMinute(
        latest.processed + round(share * before.processed),
        latest.failed + round(share * before.failed),
    )


def drains_in(samples: list[tuple[float, int]]) -> tuple[float, float | None] | None:
    """Jobs a second by which a queue grows (below 0: shrinks), and in how many seconds it is empty
    at this rate. None if it was looked at for less than ten seconds."""
    recent = samples[-30:]
    if len(recent) < 2 or recent[-1][0] - recent[0][0] < 10:
        return None
    (begin, before), (end, after) = recent[0], recent[-1]
    rate = (after - before) / (end - begin)
    return rate, (after / -rate if rate < 0 and after else None)
