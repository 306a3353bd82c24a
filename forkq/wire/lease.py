"""The unit of work: one payload that this child holds the lease of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Seconds for which a child's record lasts after a heartbeat: without one, its leases may be taken.
RECORD_TTL: Final = 60


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job says it is: ``done`` of ``total`` (None: it does not know), ``at`` epoch
    seconds."""

    done: float
    total: float | None
    note: str
    at: float


@dataclass(slots=True, eq=False)
class UnitOfWork:
    """A fetched job. Its payload stays in the in-flight hash until the unit is settled.

    ``queue`` is the queue's number in the capsule, from 1 as the scripts count; ``sequence`` and
    the owner make the lease. ``taken`` (monotonic), ``thread`` and ``started`` (epoch seconds) are
    set for the processor that performs it; a unit still waiting for one has none of them.
    ``lost``: the lease was taken from us, and the job given to others, because this host seemed
    lost; ``progress`` is what the job last said of itself.
    """

    queue: int
    queue_name: str
    sequence: int
    payload: bytes
    taken: float = 0.0
    thread: int = 0
    started: float = 0.0
    lost: bool = False
    progress: Progress | None = None

    def begin(self, thread: int, started: float) -> None:
        """Notes who performs this unit, since when."""
        self.thread = thread
        self.started = started


def identity(host: str, pid: int, nonce: str) -> str:
    """Who a child is. The master chooses ``nonce`` (12 hex digits) before the fork, so that it
    knows whose leases to rescue even if the child never says a word."""
    return f"{host}:{pid}:{nonce}"


def owner(identity: str) -> str:
    """The part of a lease that says whose it is."""
    return f"{identity}/"


def lease(identity: str, sequence: int) -> str:
    """The in-flight id of one unit."""
    return f"{identity}/{sequence}"
