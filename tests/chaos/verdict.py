"""Judges a run: what every promise of docs/internals.md comes to, by the ledger."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from redis import Redis

from .host import Host
from .ledger import Breach, Ledger, Run, Watch
from .plan import BURIED, KILLERS, Plan
from .traffic import PUSHED

BUDGET = 3  # crashes that a job may cause alone
# A job runs again within moments of its process's death; the watch hears of that death a little
# later, on a busy machine.
SLACK = 3.0
# Events of the log that no fault of a run may lead to.
FORBIDDEN = frozenset(
    {
        "a processor died; replaced",
        "ran on two hosts",
        "redis went back in time: what it had confirmed is gone",
        "lease lost: others were given the job",
        "cannot boot; giving up",
        "the leader's handlers cannot be called",
    }
)
NUMBER = re.compile(rb"\d+")


@dataclass
class Left:
    """What is left in Redis: the place of each job by its number, and the dead payloads."""

    places: dict[str, str] = field(default_factory=dict)
    dead: dict[str, dict[str, Any]] = field(default_factory=dict)
    leases: list[str] = field(default_factory=list)
    damaged: bytes = b""


def look(redis: Redis) -> Left:
    """Reads what a run has left."""
    left = Left()
    raw: Any = redis
    for queue in (b"default", b"limited"):
        for payload in raw.lrange(b"queue:" + queue, 0, -1):
            left.places[number_of(payload)] = f"queue {queue.decode()}"
        for payload in raw.lrange(b"{queue:" + queue + b"}:suspects", 0, -1):
            left.places[number_of(payload)] = f"suspects of {queue.decode()}"
        for lease, payload in raw.hgetall(b"{queue:" + queue + b"}:inflight").items():
            left.places[number_of(payload)] = "in flight"
            left.leases.append(lease.decode())
    for key in ("schedule", "retry", "dead"):
        for payload in raw.zrange(key, 0, -1):
            left.places[number_of(payload)] = key
            if key == "dead":
                left.dead[number_of(payload)] = _decoded(payload)
    left.damaged = raw.type("queue:damaged")
    return left


def number_of(payload: bytes) -> str:
    """Of a job; "" for a periodic one."""
    args = _decoded(payload).get("args")
    if args is None:
        found = NUMBER.match(payload)
        return found[0].decode() if found else ""
    return str(args[0]) if args else ""


def _decoded(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_own_error(found: dict[str, Any]) -> bool:
    """A traceback, but neither a job's nor that of a refusal by Redis."""
    trace = str(found.get("exception", ""))
    refused = trace.rpartition("\n")[2].startswith("redis.exceptions.")
    return bool(trace) and found["event"] != "failed" and not refused


class Verdict:
    """`problems` has one line for each broken promise; `reruns` counts the repeated runs by what
    explains them; `returns` are the seconds from a SIGKILL to the new run of its jobs."""

    def __init__(
        self,
        plan: Plan,
        state: bytearray,
        ledger: Ledger,
        watch: Watch,
        hosts: Sequence[Host],
        left: Left,
        kills: dict[str, float],
    ) -> None:
        self.problems: list[str] = []
        self.reruns: Counter[str] = Counter()
        self.returns: list[float] = []
        self.ticks = 0
        self._plan, self._state, self._ledger, self._watch = plan, state, ledger, watch
        self._hosts, self._left, self._kills = hosts, left, kills
        self._causes = {f"{h.name}:{pid}": why for h in hosts for pid, why in h.causes.items()}
        for check in (
            self._check_lost,
            self._check_buried,
            self._check_breaches,
            self._check_reruns,
            self._check_killers,
            self._check_ticks,
            self._check_left,
            self._check_masters,
            self._check_logs,
        ):
            check()

    def _report(self, what: str, found: Sequence[str]) -> None:
        if found:
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            self.problems.append(f"{what}: {len(found)}: {'; '.join(found[:5])}{more}")

    def _pushed(self) -> Iterator[tuple[str, str]]:
        for number, kind in enumerate(self._plan.kinds):
            if self._state[number] == PUSHED:
                yield str(number), kind

    def _check_lost(self) -> None:
        """Invariant 1: each job that was pushed has succeeded, or is dead as it must be."""
        lost = [
            f"{kind} {number}, {self._story(number)}"
            for number, kind in self._pushed()
            if kind not in BURIED and number not in self._ledger.ended
        ]
        self._report("lost", lost)

    def _story(self, number: str) -> str:
        runs = self._ledger.runs_of(number)
        ways = ", ".join(run.outcome or "killed" for run in runs) or "never begun"
        return f"{ways}; now in {self._left.places.get(number, 'no place')}"

    def _check_buried(self) -> None:
        """Invariants 6, 7 and 8: the dead set has what must be there, and no innocent job."""
        must = {number for number, kind in self._pushed() if kind in BURIED}
        may = {str(number) for number, kind in enumerate(self._plan.kinds) if kind in BURIED}
        self._report(
            "not buried", [f"{n}, {self._story(n)}" for n in sorted(must - set(self._left.dead))]
        )
        self._report(
            "buried without a reason",
            [f"{n}, {self._story(n)}" for n in sorted(set(self._left.dead) - may)],
        )
        self._report("a job that must not succeed did", sorted(may & self._ledger.ended))
        strange = {n for n, k in enumerate(self._plan.kinds) if k in ("malformed", "unknown")}
        self._report(
            "ran though it is no job", [str(n) for n in strange if str(n) in self._ledger.runs]
        )

    def _check_breaches(self) -> None:
        """Invariant 2, and the limit of a queue: by the kernel's locks."""
        for kind, what in (("overlap", "in two places at once"), ("overlimit", "above the limit")):
            found = [
                f"{breach.number} in {breach.process}, {self._others(breach)}"
                for breach in self._ledger.breaches
                if breach.kind == kind and not self._is_frozen_one(breach)
            ]
            self._report(what, found)

    def _is_frozen_one(self, breach: Breach) -> bool:
        """Whether a process that did no more held the lock: forkq freezes a child that it removes,
        returns its jobs, and kills it."""
        return any(
            self._ledger.last_sign[run.process] < breach.at
            and self._watch.died_before(run.process, breach.at + SLACK)
            for run in self._open_runs(breach)
        )

    def _open_runs(self, breach: Breach) -> list[Run]:
        """The runs without an end that have begun before: of that job, or of that limit."""
        same = [breach.number]
        if breach.kind == "overlimit":
            same = [str(n) for n, kind in enumerate(self._plan.kinds) if kind == "limited"]
        return [
            run
            for number in same
            for run in self._ledger.runs_of(number)
            if run.begun < breach.at - 1e-3
            and not run.outcome
            and run.process != breach.process
            and not self._watch.died_before(run.process, breach.at - SLACK)
        ]

    def _others(self, breach: Breach) -> str:
        return ", ".join(
            f"begun {breach.at - run.begun:.3f} s before in {run.process}"
            for run in self._open_runs(breach)
        )

    def _check_reruns(self) -> None:
        """A run again needs a reason: an earlier failure, a stop, or its process's death."""
        unexplained = []
        for number in list(self._ledger.runs):
            for run, again in pairwise(self._ledger.runs_of(number)):
                why = self._reason(run, again)
                if not why:
                    unexplained.append(
                        f"{number}: {run.outcome or 'unfinished'} in {run.process}, again "
                        f"{again.begun - (run.ended or run.begun):.3f} s later in {again.process}"
                    )
                elif why != "retry":
                    self._count(number, run, again, why)
        self._report("ran again without a reason", unexplained)

    def _reason(self, run: Run, again: Run) -> str:
        if run.outcome == "failed" and again.attempt == run.attempt + 1:
            return "retry"
        if run.outcome == "interrupted":
            return "interrupted by a stop"
        if self._watch.died_before(run.process, again.begun + SLACK):
            return "killed before Redis had its end" if run.outcome else "killed while it ran"
        return ""

    def _count(self, number: str, run: Run, again: Run, why: str) -> None:
        place = run.process.rpartition(":")[0]
        killer = number.isdecimal() and self._plan.kinds[int(number)] in KILLERS
        cause = self._causes.get(place) or ("itself" if killer else self._neighbour(place))
        self.reruns[f"{why} ({cause})"] += 1
        killed = self._kills.get(place, 0.0)
        if run.begun <= killed <= again.begun:  # a new host of the same name may reuse a pid
            self.returns.append(again.begun - killed)

    def _neighbour(self, place: str) -> str:
        return "a job beside it" if place in self._killed_by_jobs else "ended by forkq"

    def _check_killers(self) -> None:
        """Invariant 8: a job that kills its process kills no more than its budget and one. The
        budget is twice as large after the death of a whole tree, which does not count itself: the
        job may have killed a child whose master had just been killed."""
        bad = []
        for number, job in self._left.dead.items():
            if self._plan.kinds[int(number)] not in KILLERS:
                continue
            crashes = job["forkq"]["crashes"]
            alone = sum(crash.get("alone") is True for crash in crashes)
            trees = sum(crash.get("tree") is True for crash in crashes)
            most = (2 * BUDGET if trees else BUDGET) + trees
            own = [
                run for run in self._ledger.runs_of(number) if not run.outcome and self._is_own(run)
            ]
            if alone < BUDGET or len(own) > 1 + most:
                bad.append(f"{number}: {alone} crashes alone, {len(own)} processes killed")
        self._report("a killer was not judged by its budget", bad)

    def _is_own(self, run: Run) -> bool:
        place = run.process.rpartition(":")[0]
        return place not in self._causes and place not in self._canaries

    @cached_property
    def _canaries(self) -> set[str]:
        """The first children of rolling restarts. If one dies, forkq suspects the new code, not the
        jobs that it ran."""
        return {
            f"{host.name}:{found['pid']}"
            for host in self._hosts
            for found in self._log_of(host)
            if str(found.get("child")).endswith(".canary") and "pid" in found
        }

    def _log_of(self, host: Host) -> list[dict[str, Any]]:
        return [_decoded(line.encode()) for line in host.log_text().splitlines()]

    def _check_ticks(self) -> None:
        """Each tick of the periodic job was pushed once in the whole cluster."""
        jobs: defaultdict[str, set[str]] = defaultdict(set)
        for number in self._ledger.runs:
            tick, _, jid = number.partition(":")
            if jid:
                jobs[tick].add(jid)
        self.ticks = len(jobs)
        self._report(
            "ticks pushed more than once", [tick for tick, jids in jobs.items() if len(jids) > 1]
        )
        if not jobs:
            self.problems.append("no tick of the periodic job ran")

    def _check_left(self) -> None:
        """After the last stop no lease is left. The damaged key is as it was (invariant 9)."""
        self._report("leases left by hosts that have stopped", self._left.leases)
        if self._left.damaged != b"string":
            self.problems.append(f"the damaged key is {self._left.damaged!r} now")

    def _check_masters(self) -> None:
        """Invariants 3 and 5: a master ends only if the harness has ended it."""
        for host in self._hosts:
            codes = Counter(host.exits())
            more = {code: n for code, n in codes.items() if n > host.ended.get(code, 0)}
            if more:
                self.problems.append(
                    f"{host.name}: masters ended by themselves, by exit code: {more}"
                )

    def _check_logs(self) -> None:
        """A child dies only of a job or of the harness. No error of forkq's own reaches the log."""
        for host in self._hosts:
            dead, raw, bad = [], [], []
            for line in host.log_text().splitlines():
                found = _decoded(line.encode())
                event = found.get("event", "")
                if event == "child died" and not self._is_explained(host, found):
                    dead.append(f"{found['child']} {found['pid']} {found['how']}")
                elif event in FORBIDDEN:
                    bad.append(line[:300])
                elif line.startswith("Traceback") or _is_own_error(found):
                    raw.append(line[:600])
            self._report(f"{host.name}: children died without a reason", dead)
            self._report(f"{host.name}: errors of its own", raw)
            self._report(f"{host.name}: must not be in the log", bad)

    def _is_explained(self, host: Host, found: dict[str, Any]) -> bool:
        place = f"{host.name}:{found['pid']}"
        return place in self._causes or place in self._killed_by_jobs or place in self._put_down

    @cached_property
    def _put_down(self) -> set[str]:
        """The children that the master has killed in their boot, and has said so."""
        return {
            f"{host.name}:{found['pid']}"
            for host in self._hosts
            for found in self._log_of(host)
            if str(found.get("event")).endswith("; killing it")
        }

    @cached_property
    def _killed_by_jobs(self) -> set[str]:
        killers = [n for n, kind in enumerate(self._plan.kinds) if kind in KILLERS]
        return {
            run.process.rpartition(":")[0]
            for number in killers
            for run in self._ledger.runs.get(str(number), ())
            if not run.outcome
        }
