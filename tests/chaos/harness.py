"""One run of the harness, from its plan to its verdict."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from tests.redis.proxy import Proxy
from tests.support.waiting import NotInTime, wait_until

from .faults import Injector, Servers
from .host import Host, namespace_obstacle
from .ledger import Ledger, Watch
from .plan import BURIED, Plan
from .timeline import Timeline
from .traffic import IN_DOUBT, NOT_PUSHED, PUSHED, Traffic
from .verdict import Left, Verdict, look

NAMES = ("host-a", "host-b", "host-c", "host-d", "host-e", "host-f", "host-g", "host-h")
BACKLOG = 4000  # jobs that may wait
TURN = 0.02
# Seconds for the last jobs, once the last fault is over. The jobs of a lost host wait for longer.
DRAIN, DRAIN_AFTER_LOSS = 60.0, 180.0
STALLED = 300.0  # seconds without any job that ends: then a run of so many jobs gives up


@dataclass(frozen=True)
class Result:
    """`problems` is empty if every promise was kept. `report` are lines for a person."""

    problems: list[str]
    report: list[str]


def run(
    plan: Plan,
    *,
    quiet: bool = False,
    keep: Path | None = None,
    env: Mapping[str, str] | None = None,
    drain: float = 0,
) -> Result:
    """Runs a plan. With `keep`, ledger, logs and timeline are copied there. `drain` is how long it
    waits for the last jobs."""
    folder = Path(tempfile.mkdtemp(prefix="forkq-chaos-"))
    try:
        with ExitStack() as stack:
            return Harness(plan, folder, stack, quiet=quiet, env=env or {}).run(drain)
    finally:
        if keep is not None:
            shutil.copytree(
                folder, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("watch")
            )
        shutil.rmtree(folder)


class Harness:
    """Everything of one run. The stack ends what it starts."""

    def __init__(
        self, plan: Plan, folder: Path, stack: ExitStack, *, quiet: bool, env: Mapping[str, str]
    ) -> None:
        self._plan = plan
        self._folder = folder
        (folder / "locks").touch()
        self._timeline = Timeline(folder / "timeline", quiet=quiet)
        stack.callback(self._timeline.close)
        self._watch = Watch(folder)
        stack.callback(self._watch.close)
        self._ledger = Ledger(folder)
        self._servers = Servers()
        stack.callback(self._servers.close)
        self._servers.master.cli("SET", "queue:damaged", "no list")
        self._proxy = stack.enter_context(Proxy(self._servers.master.port))
        self._namespace = not namespace_obstacle()
        self._hosts = [self._host(stack, number, env) for number in range(plan.hosts)]
        self._injector = Injector(self._hosts, self._servers, [self._proxy], self._timeline)
        stack.callback(lambda: self._injector.undo_due(everything=True))
        self._began = time.monotonic()
        self._moved = (0, self._began)
        self._stack = stack

    def _host(self, stack: ExitStack, number: int, env: Mapping[str, str]) -> Host:
        proxy = stack.enter_context(Proxy(self._servers.master.port))
        host = Host(
            NAMES[number],
            proxy,
            self._folder,
            namespace=self._namespace,
            preload=number % 2 == 1,
            env=dict(env),
        )
        stack.callback(self._close, host)
        return host

    def _close(self, host: Host) -> None:
        shutil.copy(host.log, self._folder / f"log-{host.name}")
        host.close()

    def run(self, drain: float) -> Result:
        """From the start of the hosts to the verdict."""
        for host in self._hosts:
            host.start()
        for host in self._hosts:
            wait_until(host.ready, deadline=60, what=f"{host.name} to be ready")
        self._began = self._timeline.began = time.monotonic()
        self._traffic = traffic = Traffic(self._plan, self._proxy.url, self._may_push)
        self._stack.callback(traffic.close)
        traffic.start()
        self._inject_all(traffic)
        self._drain(traffic, drain or (DRAIN_AFTER_LOSS if self._plan.loses_hosts() else DRAIN))
        spent = time.monotonic() - self._began
        wrong = [text for host in self._hosts if (text := host.shut_down())]
        self._ledger.read()
        return self._judge(traffic, spent, wrong)

    def _position(self) -> float:
        if self._plan.seconds:
            return (time.monotonic() - self._began) / self._plan.seconds
        return self._finished() / len(self._plan.kinds)

    def _finished(self) -> int:
        """How many jobs have ended, or may never do so."""
        return len(self._ledger.ended) + self._traffic.unsure

    def _may_push(self, number: int) -> bool:
        in_time = not self._plan.seconds or self._position() >= number / len(self._plan.kinds)
        return in_time and number - self._finished() < BACKLOG

    def _inject_all(self, traffic: Traffic) -> None:
        faults = list(reversed(self._plan.faults))
        while faults or not traffic.done:
            self._ledger.read()
            while faults and faults[-1].at <= self._position():
                self._injector.inject(faults.pop())
            self._injector.undo_due()
            if self._is_stalled():
                self._timeline.note("stalled", f"no job has ended for {STALLED:g} s")
                break
            time.sleep(TURN)
        self._injector.undo_due(everything=True)

    def _is_stalled(self) -> bool:
        ended, now = len(self._ledger.ended), time.monotonic()
        if ended != self._moved[0]:
            self._moved = ended, now
        return now - self._moved[1] > STALLED

    def _drain(self, traffic: Traffic, limit: float) -> None:
        self._timeline.note("no more faults", "waiting for the last jobs")
        try:
            wait_until(
                lambda: self._is_settled(traffic),
                deadline=limit,
                every=0.1,
                what="the last jobs",
            )
        except NotInTime:
            self._timeline.note("not drained", "the hosts stop")
        else:
            self._timeline.note("drained", "the hosts stop")

    def _is_settled(self, traffic: Traffic) -> bool:
        self._ledger.read()
        with suppress(RedisError):
            redis = self._servers.master.client()
            return self._settled(redis, traffic)
        return False

    def _settled(self, redis: Redis, traffic: Traffic) -> bool:
        _retry_now(redis)
        keys = [
            f"{prefix}{queue}{end}"
            for queue in ("default", "limited")
            for prefix, end in (
                ("queue:", ""),
                ("{queue:", "}:inflight"),
                ("{queue:", "}:suspects"),
            )
        ]
        return (
            not redis.exists(*keys, "retry", "schedule")
            and self._all_buried(redis, traffic)
            and self._all_ended(traffic)
        )

    def _all_buried(self, redis: Redis, traffic: Traffic) -> bool:
        must = sum(
            s == PUSHED and k in BURIED
            for k, s in zip(self._plan.kinds, traffic.state, strict=True)
        )
        return int(redis.zcard("dead")) >= must

    def _all_ended(self, traffic: Traffic) -> bool:
        return all(
            state != PUSHED or kind in BURIED or str(number) in self._ledger.ended
            for number, (kind, state) in enumerate(
                zip(self._plan.kinds, traffic.state, strict=True)
            )
        )

    def _judge(self, traffic: Traffic, spent: float, wrong: list[str]) -> Result:
        left = look(self._servers.master.client())
        verdict = Verdict(
            self._plan,
            traffic.state,
            self._ledger,
            self._watch,
            self._hosts,
            left,
            self._injector.kills,
        )
        return Result(wrong + verdict.problems, self._figures(traffic, spent, left, verdict))

    def _figures(self, traffic: Traffic, spent: float, left: Left, verdict: Verdict) -> list[str]:
        runs = sum(map(len, self._ledger.runs.values()))
        obstacle = namespace_obstacle()
        where = f"one pid namespace ({obstacle})" if obstacle else "pid namespaces of their own"
        stops = ", ".join(f"{seconds:.1f} s" for host in self._hosts for seconds in host.stops)
        pushed = len(traffic.state) - traffic.state.count(NOT_PUSHED)
        doubt = traffic.state.count(IN_DOUBT)
        lines = [
            f"{pushed:,} jobs on {len(self._hosts)} hosts in {where}: {runs:,} runs, {spent:.0f} s",
            f"pushes in doubt {doubt}; buried as they must be {len(left.dead)}",
            f"ticks {verdict.ticks}; processes {len(self._watch.born)}; last stops {stops}",
            f"{_listed('faults', self._injector.done)}",
            f"{_listed('runs again', verdict.reruns)}",
        ]
        if found := verdict.returns:
            middle, longest = statistics.median(found) * 1000, max(found) * 1000
            lines.append(f"SIGKILL to the new run: median {middle:.0f} ms, longest {longest:.0f}")
        return lines


def _listed(what: str, counts: Mapping[str, int]) -> str:
    found = sorted(counts.items(), key=lambda item: -item[1])
    return f"{sum(counts.values())} {what}: " + ", ".join(f"{n} {name}" for name, n in found)


def _retry_now(redis: Redis) -> None:
    """As an operator does it: a failed job would wait for up to half a minute."""
    for key in ("retry", "schedule"):
        members: Any = redis.zrange(key, 0, -1)
        if members:
            redis.zadd(key, dict.fromkeys(members, 0), xx=True)
