"""What a run does, from its seed alone: the jobs with their order, and the faults with theirs."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

# Kind -> its share of the jobs. `value` means what the job of that kind in jobs.py takes.
SHARES = {
    "fast": 905,
    "slow": 25,
    "scheduled": 25,
    "failing": 20,
    "limited": 15,
    "leak": 6,
    "malformed": 2,
    "unknown": 2,
}
KILLERS = ("poison", "greedy")
# Kinds that end in the dead set, without or after runs. All others must succeed.
BURIED = (*KILLERS, "malformed", "unknown")
BATCH = 50

# Kind of a fault -> how often it comes, compared with the others.
HOST_FAULTS = {
    "kill child": 10,
    "kill clock": 2,
    "kill master": 3,
    "kill tree": 2,
    "pause child": 4,
    "pause clock": 2,
    "pause master": 2,
    "stop child": 3,
    "stop master": 3,
    "rolling restart": 3,
    "cut connections": 6,
    "partition": 3,
    "half replies": 3,
    "lost replies": 4,
    "latency": 4,
}
SERVER_FAULTS = {
    "server restart": 1,
    "server killed": 1,
    "server paused": 2,
    "failover": 2,
    "server full": 2,
    "scripts forgotten": 1,
    "clients killed": 2,
}
LOST_HOST = "lose host"  # its jobs run elsewhere after a minute and more: for long runs
LONG = 240.0  # seconds from which a run is long


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` is between 0 and 1: of the time, or of the jobs. `strength` and `choice` are as well:
    how long it lasts or how hard it is, and which process it hits."""

    at: float
    kind: str
    host: int
    strength: float
    choice: float


@dataclass(frozen=True)
class Plan:
    """Job number n is of the kind `kinds[n]`; jobs are pushed in batches, in order."""

    seed: int
    seconds: float  # 0: until all jobs have run
    kinds: list[str] = field(repr=False)
    values: list[float] = field(repr=False)
    faults: list[Fault] = field(repr=False)
    hosts: int = 3

    @property
    def batches(self) -> Iterator[range]:
        """The numbers of the jobs that are pushed together."""
        for first in range(0, len(self.kinds), BATCH):
            yield range(first, min(first + BATCH, len(self.kinds)))

    def loses_hosts(self) -> bool:
        """Whether whole hosts are lost."""
        return any(fault.kind == LOST_HOST for fault in self.faults)

    def digest(self) -> str:
        """Differs for different plans."""
        text = repr((self.kinds, self.values, self.faults, self.hosts))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def make_plan(
    seed: int,
    *,
    seconds: float = 0,
    jobs: int = 0,
    faults: int = 0,
    hosts: int = 3,
    rate: int = 150,
) -> Plan:
    """A run of so many seconds, or of so many jobs."""
    count = jobs or int(seconds * rate)
    faults = faults or max(4, int((seconds or jobs / 1000) * 0.8))
    kinds, values = _jobs(random.Random(f"{seed} jobs"), count)
    schedule = _faults(
        random.Random(f"{seed} faults"), faults, hosts, long=bool(jobs > 100_000) or seconds >= LONG
    )
    return Plan(seed, 0 if jobs else seconds, kinds, values, schedule, hosts)


def _jobs(rng: random.Random, count: int) -> tuple[list[str], list[float]]:
    kinds = rng.choices(list(SHARES), list(SHARES.values()), k=count)
    killers = ["poison"] * min(40, max(2, count // 1500)) + ["greedy"] * min(
        8, max(1, count // 5000)
    )
    # Not among the last ones: a job that ends four processes takes its time.
    for place, kind in zip(rng.sample(range(count * 3 // 4), len(killers)), killers, strict=True):
        kinds[place] = kind
    return kinds, [_value(rng, kind) for kind in kinds]


def _value(rng: random.Random, kind: str) -> float:
    low, high = {
        "fast": (0, 0.002),
        "slow": (0.05, 0.8),
        "scheduled": (0.2, 3),
        "failing": (1, 1.6),  # how many runs fail, as a whole number
        "limited": (0.005, 0.05),
    }.get(kind, (0, 1))
    return round(rng.uniform(low, high), 4)


def _faults(rng: random.Random, count: int, hosts: int, *, long: bool) -> list[Fault]:
    """Each kind once before one comes a second time; then by their weights."""
    weights = HOST_FAULTS | SERVER_FAULTS
    kinds = list(weights)
    rng.shuffle(kinds)
    kinds = kinds[:count] + rng.choices(
        list(weights), list(weights.values()), k=max(0, count - len(kinds))
    )
    if long:
        for place in rng.sample(range(count), max(1, count // 100)):
            kinds[place] = LOST_HOST
    rng.shuffle(kinds)
    times = sorted(rng.uniform(0.03, 0.97) for _ in kinds)
    return [
        Fault(
            round(at, 5), kind, rng.randrange(hosts), round(rng.random(), 4), round(rng.random(), 4)
        )
        for at, kind in zip(times, kinds, strict=True)
    ]
