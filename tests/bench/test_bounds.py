"""Where the bounds of docs/scale.md are: what a job, an idle tree and a shard cost a server.

`pytest tests/bench/test_bounds.py -m bench -n0 -s`. CPU is that of the server, from INFO: on a
machine with few cores jobs per second say what the machine can do, and not what a server could.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import pytest
from redis import Redis

from forkq import Client
from forkq.config.cluster_shards import prefix_of
from forkq.config.shards import Shard
from forkq.sharded_client import ShardedClient
from forkq.wire.defaults import with_defaults
from forkq.wire.keys import Keys
from forkq.wire.redis_url import slot_of
from forkq.wire.spread import part_of
from tests.bench.load import APP
from tests.process.shared import measured, pass_time
from tests.support.cluster import Cluster
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

PREFIX: Final = "{forkq}:"
KEYS: Final = Keys(PREFIX)
JOBS: Final = 40_000
PUSHERS: Final = 12
SHARDS: Final = 8
PARTS: Final = ("default", "s1", "s2", "s3")
SECONDS: Final = 20.0
PAIRS: Final = 7
CONFIG: Final = f'[redis]\nprefix = "{PREFIX}"\n'


class Cost(NamedTuple):
    """What a server has spent: microseconds of CPU, commands, bytes that came and went."""

    cpu: float
    commands: float
    bytes_in: float
    bytes_out: float

    @classmethod
    def until_now(cls, redis: Redis) -> Cost:
        cpu: Any = redis.info("cpu")
        stats: Any = redis.info("stats")
        spent = 1e6 * (float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]))
        names = ("total_commands_processed", "total_net_input_bytes", "total_net_output_bytes")
        return cls(spent, *(float(stats[name]) for name in names))

    def since(self, before: Cost, count: float) -> Cost:
        """What was spent since then, for each of so many."""
        return Cost(*((b - a) / count for a, b in zip(before, self, strict=True)))


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server(tcp=True, aof=True).start()) as server:
        yield server


def push_alone(url: str, prefix: str, count: int) -> None:
    with closing(Client(url, prefix=prefix)) as client:
        for number in range(count):
            client.push({"class": "Noop", "args": [number]})


def push_from_processes(url: str, prefix: str, jobs: int) -> None:
    """A server that waits for one client only pays a wake-up for each push."""
    with ProcessPoolExecutor(PUSHERS, mp_context=get_context("fork")) as pool:
        list(pool.map(partial(push_alone, url, prefix), [jobs // PUSHERS] * PUSHERS))


def push_many(url: str, prefix: str, jobs: int) -> None:
    with closing(Client(url, prefix=prefix)) as client:
        client.push_bulk({"class": "Noop", "args": [[number] for number in range(jobs)]})


def jobs_of(redis: Redis, keys: Keys) -> int:
    return int(redis.llen(keys.queue("default"))) + int(redis.hlen(keys.inflight("default")))


@contextmanager
def tree(url: str, config: str = CONFIG, *args: str) -> Iterator[ForkqTree]:
    start = StartTree()
    try:
        yield start(url, app=APP, config=config, args=("--log-level", "error", *args))
    finally:
        start.close()


def run_all(url: str, redis: Redis, keys: Keys) -> None:
    """Until a child of ten processors has run what there is."""
    config = f'[redis]\nprefix = "{keys.prefix}"\n'
    with tree(url, config, "-c", "10"):
        wait_until(lambda: not jobs_of(redis, keys), deadline=120, what="the end of all jobs")


def test_what_a_job_costs_one_server(server: Server) -> None:
    """Prints what a push alone, a push among many, and a run cost the server, for each job."""
    steps: dict[str, Callable[[Redis], None]] = {
        "pushed alone": lambda _: push_from_processes(server.url, PREFIX, JOBS),
        "run": lambda redis: run_all(server.url, redis, KEYS),
        "pushed among many": lambda _: push_many(server.url, PREFIX, JOBS),
    }
    with server.client() as redis:
        for name, step in steps.items():
            before = Cost.until_now(redis)
            step(redis)
            cost = Cost.until_now(redis).since(before, JOBS)
            measured(
                f"{name}: {cost.cpu:.1f} us of CPU, {cost.commands:.2f} commands, "
                f"{cost.bytes_in:.0f} bytes in, {cost.bytes_out:.0f} out"
            )
            assert cost.cpu > 0


@pytest.mark.parametrize(("trees", "workers"), [(1, 1), (1, 4), (8, 1)])
def test_what_an_idle_tree_costs(server: Server, trees: int, workers: int) -> None:
    """Prints connections, commands and CPU of the server for each tree that has nothing to do."""
    with ExitStack() as stack, server.client() as redis:
        alone = of_idle_time(redis).cpu
        for _ in range(trees):
            stack.enter_context(tree(server.url, CONFIG, "-w", str(workers)))
        cost = of_idle_time(redis).since(Cost(alone, 0, 0, 0), SECONDS * trees)
        connections = (len(redis.client_list()) - 1) / trees
        measured(
            f"{trees} trees with {workers} children, each: {connections:.1f} connections, "
            f"{cost.commands:.1f} commands/s, {cost.cpu / 1e6:.3%} of a core, "
            f"{cost.bytes_in + cost.bytes_out:.0f} bytes/s"
        )
        assert connections >= 2


def of_idle_time(redis: Redis) -> Cost:
    """What the server spends while nothing is pushed."""
    before = Cost.until_now(redis)
    pass_time(SECONDS)
    return Cost.until_now(redis).since(before, 1)


class Drain(NamedTuple):
    """Jobs a second, and microseconds of CPU of server and child for each job."""

    rate: float
    server: float
    child: float


def test_a_drain_of_a_cluster_and_of_one_server(server: Server) -> None:
    """Prints jobs/s and CPU for each job, in turn, and the medians of the ratios of the pairs."""
    found: dict[str, list[Drain]] = {"cluster": [], "server": []}
    with closing(Cluster(3, aof=True).start()) as cluster, ExitStack() as stack:
        url = ",".join(f"127.0.0.1:{node.port}" for node in cluster.primaries)
        places = {
            "cluster": (f"cluster://{url}", cluster.owner(slot_of(PREFIX))),
            "server": (server.url, server),
        }
        redis = {name: stack.enter_context(one.client()) for name, (_, one) in places.items()}
        for turn in range(PAIRS):
            for name in sorted(places, reverse=turn % 2 == 1):
                found[name].append(drained(places[name][0], redis[name]))
    for name, drains in found.items():
        rate, of_server, of_child = (statistics.median(each) for each in zip(*drains, strict=True))
        measured(f"{name}: {rate:,.0f} jobs/s, CPU of a job: {of_server:.1f} us in the server, "
                 f"{of_child:.1f} us in the child")  # fmt: skip
    for name in Drain._fields:
        pairs = zip(found["cluster"], found["server"], strict=True)
        ratios = [getattr(there, name) / getattr(here, name) for there, here in pairs]
        measured(f"{name}, cluster / server: {statistics.median(ratios):.3f}")


def drained(url: str, redis: Redis) -> Drain:
    """One drain. Jobs a second are those of the middle nine tenths."""
    push_many(url, PREFIX, JOBS)
    before = Cost.until_now(redis)
    with tree(url, CONFIG, "-c", "10") as forkq:
        child = forkq.children("forkq child")[0]
        first = below(redis, JOBS - JOBS // 20)
        last = below(redis, JOBS // 20)
        wait_until(lambda: not jobs_of(redis, KEYS), deadline=60, what="the end of all jobs")
        user, system, *_ = child.cpu_times()
    rate = (first[1] - last[1]) / (last[0] - first[0])
    of_server = Cost.until_now(redis).since(before, JOBS).cpu
    return Drain(rate, of_server, 1e6 * (user + system) / JOBS)


def below(redis: Redis, level: int) -> tuple[float, int]:
    """When the queue was first seen at or below ``level``, by the server's clock."""

    def look() -> tuple[float, int] | None:
        length: Any = redis.llen(KEYS.queue("default"))
        now: Any = redis.time()
        return (now[0] + now[1] / 1e6, length) if length <= level else None

    found = wait_until(look, deadline=120, what=f"a queue of at most {level}", every=0.005)
    assert found is not None
    return found


def test_eight_shards_of_one_cluster() -> None:
    """Prints the CPU of the busiest node for each job of all, with one shard, and with eight on
    eight nodes. Shard after shard: on few cores, nodes that work at once have time to spare."""
    with closing(Cluster(SHARDS, aof=True).start()) as cluster:
        url = "cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.primaries)
        made = [PREFIX, *(prefix_of(PREFIX, number) for number in range(1, SHARDS))]
        one = spent(cluster, url, [PREFIX])
        eight = spent(cluster, url, made)
    measured(f"one shard: the busiest node takes {max(one):.1f} us for each job")
    shown = ", ".join(f"{cpu:.1f}" for cpu in eight)
    measured(f"eight shards: the nodes take {shown} us for each job of all")
    measured(f"one / the busiest of eight: {max(one) / max(eight):.1f}")


def spent(cluster: Cluster, url: str, prefixes: Sequence[str]) -> list[float]:
    """Microseconds of CPU of each node with a shard, for each job of all, pushed alone and run."""
    found: dict[int, float] = {}
    for prefix in prefixes:
        owner, keys = cluster.owner(slot_of(prefix)), Keys(prefix)
        with owner.client() as redis:
            before = Cost.until_now(redis)
            push_from_processes(url, prefix, JOBS // len(prefixes))
            run_all(url, redis, keys)
            cost = Cost.until_now(redis).since(before, JOBS)
        found[owner.port] = found.get(owner.port, 0.0) + cost.cpu
    return list(found.values())


def test_one_queue_over_four_shards() -> None:
    """Prints what a push alone, a push among many, and a run cost the busiest server for each job
    of all, with a queue on one shard, and spread over four; and the time in each command. Part
    after part: on few cores, servers that work at once have time to spare."""
    with ExitStack() as stack:
        servers = [stack.enter_context(closing(Server(tcp=True, aof=True).start())) for _ in PARTS]
        one, four = (costs_of_parts(servers[:count]) for count in (1, len(PARTS)))
    for parts, steps in (("1 part", one), ("4 parts", four)):
        for step, cost in steps.items():
            shown = ", ".join(f"{name} {spent:.2f}" for name, spent in cost.commands.items())
            measured(f"{parts}, {step}: {cost.cpu:.1f} us of CPU; in {shown}")
    for step in one:
        measured(f"{step}: one part / the busiest of four: {one[step].cpu / four[step].cpu:.1f}")
        assert one[step].cpu > four[step].cpu


class PartCost(NamedTuple):
    """Microseconds of the busiest server for each job of all: of CPU, and in each command."""

    cpu: float
    commands: dict[str, float]


def costs_of_parts(servers: Sequence[Server]) -> dict[str, PartCost]:
    """What each step costs the busiest of these servers, with a part of the queue on each."""
    names = PARTS[: len(servers)]
    queues = ("default",) if len(names) > 1 else ()
    pairs = zip(names, servers, strict=True)
    shards = [Shard(name, server.url, prefix=PREFIX, spread=queues) for name, server in pairs]
    found: dict[str, list[PartCost]] = {}
    for name, server in zip(names, servers, strict=True):
        push = partial(push_to_part, shards, name, JOBS // len(names))
        steps: dict[str, Callable[[Redis], None]] = {
            "pushed alone": partial(push, alone=True),
            "run": partial(run_all, server.url, keys=KEYS),
            "pushed among many": partial(push, alone=False),
        }
        with server.client() as redis:
            for step, do in steps.items():
                redis.config_resetstat()
                before = Cost.until_now(redis)
                do(redis)
                cpu = Cost.until_now(redis).since(before, JOBS).cpu
                found.setdefault(step, []).append(PartCost(cpu, _by_command(redis)))
            redis.flushall()
    return {step: max(costs) for step, costs in found.items()}


def _by_command(redis: Redis) -> dict[str, float]:
    """Microseconds in each command that jobs use, for each job of all."""
    stats: Any = redis.info("commandstats")
    names = ("sadd", "lpush", "evalsha")
    return {name: stats.get(f"cmdstat_{name}", {}).get("usec", 0) / JOBS for name in names}


def push_to_part(shards: Sequence[Shard], part: str, count: int, _: Redis, *, alone: bool) -> None:
    """Pushes so many jobs whose jids lead to that part, by the client of a program with shards."""
    with ProcessPoolExecutor(PUSHERS, mp_context=get_context("fork")) as pool:
        push = partial(_push_to_part, shards, part, count // PUSHERS, alone)
        list(pool.map(push, range(PUSHERS)))


def _push_to_part(shards: Sequence[Shard], part: str, count: int, alone: bool, pusher: int) -> None:
    names = sorted(shard.name for shard in shards)
    every = (f"{pusher}-{number}" for number in itertools.count())
    jids = itertools.islice((jid for jid in every if part_of(names, jid) == part), count)
    jobs = [{"class": "Noop", "args": [0], "jid": jid} for jid in jids]
    with closing(ShardedClient(shards, "default", shards[0].url, prefix=PREFIX)) as client:
        if alone:
            for job in jobs:
                client.push(job)
        else:
            for at in range(0, count, 1000):
                some = (client._encoded(with_defaults(job)) for job in jobs[at : at + 1000])
                client._write([job for job in some if job is not None])
