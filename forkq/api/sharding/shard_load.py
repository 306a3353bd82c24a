"""How busy each shard is, and which queue would better be on another one."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from ...errors import ServerUnavailable
from ...servers import Server
from ...store.cluster import owner_of
from ...store.sentinel import address_text
from ...store.server_check import server_info
from ...values import replace
from ...wire.queue_moves import moves_under_way
from ...wire.redis_url import slot_of
from ..stats import Stats, stats

T = TypeVar("T")

# Shares of a core: a node with less to do needs no help, and a move that brings less is not worth
# its while.
_BUSY: Final = 0.5
_WORTH: Final = 0.1
# A queue with a larger share of a node's jobs would only carry the load elsewhere.
_NEARLY_ALL: Final = 0.9
# A child tells its counts at least so often, seconds: a shorter measurement says nothing of queues.
BEAT: Final = 10.0


class CounterSample(NamedTuple):
    """What the server of a shard has counted until a moment (monotonic). ``jobs``: how many jobs of
    each queue of the shard have started."""

    at: float
    server: str
    cpu: float
    commands: int
    jobs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """One shard. ``node`` is the address of its server in a cluster, ``server`` the name that the
    server has for itself: other shards may be there, too. ``cpu`` (a share of one core) and
    ``commands`` (a second) are of the whole server. ``jobs``: how many have started, by queue; in
    the ``seconds`` of the measurement or, if that was short, ever. ``strays``: how many jobs wait
    here of queues that are on another shard. ``moves``: the queues with a page under way from here.
    ``spread``: the queues with jobs of which this shard has one part of several.
    """

    name: str
    slot: int | None
    node: str
    server: str
    cpu: float
    commands: float
    seconds: float
    jobs: Mapping[str, int]
    stats: Stats
    strays: Mapping[str, int] = field(default_factory=dict)
    moves: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()

    @property
    def waiting(self) -> int:
        """How many jobs wait in queues."""
        return self.stats.enqueued

    @property
    def jobs_per_second(self) -> float | None:
        """How many jobs have started a second; None if the measurement was too short."""
        return sum(self.jobs.values()) / self.seconds if self.seconds >= BEAT else None


class Proposal(NamedTuple):
    """To give ``queue`` of ``source``, which has ``share`` of the jobs of its node, to ``target``.
    ``is_all``: it has nearly all of them, so that a move would only carry the load elsewhere."""

    source: ShardLoad
    target: ShardLoad
    queue: str
    share: float
    is_all: bool


def measure(
    servers: Sequence[Server], seconds: float, pause: Callable[[float], None] = time.sleep
) -> tuple[list[ShardLoad], dict[str, ServerUnavailable]]:
    """The loads of the shards over so many seconds, and the errors of those that are down."""
    before, down = _each(servers, sample)
    pause(seconds)
    up = [server for server in servers if server.name in before]
    loads, lost = _each(up, lambda server: _load(server, before[server.name]))
    return list(loads.values()), {**down, **lost}


def _each(
    servers: Iterable[Server], ask: Callable[[Server], T]
) -> tuple[dict[str, T], dict[str, ServerUnavailable]]:
    """The answers of the servers, and the errors of those that are down."""
    found: dict[str, T] = {}
    down: dict[str, ServerUnavailable] = {}
    for server in servers:
        try:
            found[server.name] = ask(server)
        except ServerUnavailable as error:
            down[server.name] = error
    return found, down


def sample(server: Server) -> CounterSample:
    """Reads the counters of a server. Raises ServerUnavailable."""
    with server.connection() as connection:
        info = server_info(connection)
    [found] = server.ask_leniently(("HGETALL", server.keys.totals("queues")))
    jobs: Counter[str] = Counter()
    for raw, count in (found or {}).items():
        name, _, what = raw.decode("utf-8", "replace").rpartition("|")
        if what == "n":
            jobs[name] = int(count)
    cpu = sum(float(info.get(f"used_cpu_{kind}", 0)) for kind in ("user", "sys"))
    commands = int(info.get("total_commands_processed", 0))
    return CounterSample(time.monotonic(), info.get("run_id", ""), cpu, commands, jobs)


def _load(server: Server, before: CounterSample) -> ShardLoad:
    after, counts = sample(server), stats(server)
    seconds = max(after.at - before.at, 1e-3)
    jobs = dict(after.jobs)
    if seconds >= BEAT:
        # Fewer than before: Redis has lost its latest counts in a restart.
        jobs = {name: max(0, count - before.jobs.get(name, 0)) for name, count in jobs.items()}
    slot, node = _place(server)
    cpu, commands = after.cpu - before.cpu, after.commands - before.commands
    rates = (max(cpu / seconds, 0.0), max(commands / seconds, 0.0))
    figures = (server.name, slot, node, after.server, *rates, seconds, jobs, counts)
    spread = tuple(queue for queue in jobs if len(server.parts_of(queue)) > 1)
    load = ShardLoad(*figures, spread=spread)
    return replace(load, strays=_strays(server, counts), moves=_moves(server))


def _place(server: Server) -> tuple[int | None, str]:
    """The slot and the node of a shard of a cluster; None and "" for another server."""
    with server.connection() as connection:
        if not connection.in_cluster:
            return None, ""
    slot = slot_of(server.keys.prefix)
    [slots] = server.ask(("CLUSTER", "SLOTS"))
    found = owner_of(slot, slots, ("?", 0))
    return slot, address_text(found[0]) if found else "?"


def _strays(server: Server, counts: Stats) -> dict[str, int]:
    """How many jobs wait here, by queue, of queues that are on another shard."""
    sizes = {queue.name: queue.size for queue in counts.queues if queue.size}
    return {name: size for name, size in sizes.items() if not server.has(name)}


def _moves(server: Server) -> tuple[str, ...]:
    [found] = server.ask_leniently(("HGETALL", server.keys.moves))
    return moves_under_way(found or {})


def proposal(loads: Sequence[ShardLoad]) -> Proposal | None:
    """Which queue would better be on another shard: of the busiest node, the one whose share of the
    jobs is nearest to half of what that node has more to do than the idlest one; None if no move is
    worth its while."""
    nodes: defaultdict[str, list[ShardLoad]] = defaultdict(list)
    for load in loads:
        nodes[load.server or load.name].append(load)
    busiest, *others = sorted(nodes.values(), key=lambda node: -node[0].cpu)
    if not others or busiest[0].cpu < _BUSY:
        return None
    target, cpu = others[-1][0], busiest[0].cpu
    more = cpu - target.cpu
    useful = (
        one
        for one in _candidates(busiest, target)
        if one.is_all or _WORTH <= one.share * cpu < more  # more would make the other one busy
    )
    return min(useful, key=lambda one: abs(one.share * cpu - more / 2), default=None)


def _candidates(node: Sequence[ShardLoad], target: ShardLoad) -> Iterator[Proposal]:
    total = sum(sum(load.jobs.values()) for load in node)
    for load in node:
        for queue, count in load.jobs.items():
            share = count / total if total else 0.0
            if count and queue not in load.spread:
                yield Proposal(load, target, queue, share, share > _NEARLY_ALL)
