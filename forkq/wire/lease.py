"""The unit of work: a payload that this child has leased."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from .payload import Payload

# Seconds for which a child's record lasts after a heartbeat: without one, its leases may be taken.
RECORD_TTL: Final = 60
# Seconds without a heartbeat, of which there is one every ten, after which a process is silent.
SILENT: Final = 30.0
# How the nonce of a solo child begins, instead of with four of its hex digits.
_SOLO: Final = "solo"
# Seconds of work from which no rate is read.
_SAYS_LITTLE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """What a job reports of itself: ``done`` of ``total`` (None: unknown), at the epoch second
    ``at``. Of an iterable job: how many ``items`` it has done, in earlier runs, too, and for how
    many seconds it ran ``before`` this run."""

    done: float
    total: float | None
    note: str
    at: float
    items: int | None = None
    before: float = 0.0


def seconds_left(done: float | None, total: float | None, spent: float) -> float | None:
    """In how many seconds the rest of ``total`` is done, if ``done`` of it took ``spent`` seconds;
    None if that cannot be said yet."""
    if done is None or total is None or not 0 < done <= total or spent < _SAYS_LITTLE:
        return None
    return spent / done * (total - done)


class Blocking(msgspec.Struct, frozen=True):
    """A job that blocks the event loop of its child: the ``sequence`` number of its lease, its
    class and ``jid``, the ``place`` in the app's code, and ``since`` when (epoch seconds). A
    callback of no job has the number 0, no class and no ``jid``."""

    sequence: int
    job: str
    jid: str
    place: str
    since: float


class UnitOfWork(msgspec.Struct, eq=False):
    """A fetched job. Its payload stays in the in-flight hash until the unit is settled.

    ``queue`` is the number of its queue in the fetch, from 1 as the scripts count. The owner and
    ``sequence`` make the lease. ``asked`` is when the child asked for it (times.steady). ``taken``
    (monotonic) is the moment at which the fetch was sent, until a processor takes the unit; then it
    is that moment. ``thread`` and ``started`` (epoch seconds) are set for the processor that
    performs the unit, and unset before that; an event loop has ``sequence`` in the place of a
    thread. ``lost``: another host took the lease, and gave the job back to its queue, because this
    host seemed lost. ``progress`` is the latest report of the job. A large payload is left in
    Redis: ``payload`` is empty until the processor has read it, and ``left_bytes`` is its size.
    ``marked``: class, jid, ``forkq`` of a marked job, and this queue, for what its features ask at
    its end.
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
    left_bytes: int = 0
    asked: float = inf
    marked: Payload | None = None

    def start(self, thread: int, started: float) -> None:
        """Notes the thread that performs this unit, and since when."""
        self.thread = thread
        self.started = started


def identity(host: str, pid: int, nonce: str) -> str:
    """The identity of a child. The master chooses ``nonce`` (12 hex digits) before the fork, so it
    can rescue the leases of a child that dies before its first message."""
    return f"{host}:{pid}:{nonce}"


def solo_nonce(nonce: str) -> str:
    """The nonce of a solo child. Leases name it, so any host can tell that a job ran alone."""
    return _SOLO + nonce[len(_SOLO) :]


def solo_identity(identity: str) -> str:
    """The identity under which an ordinary child runs suspects, where no solo child can boot."""
    place, _, nonce = identity.rpartition(":")
    return f"{place}:{solo_nonce(nonce)}"


def is_solo(identity: str) -> bool:
    """Whether that process is a solo child: it runs one suspect at a time, and nothing else."""
    return identity.rpartition(":")[2].startswith(_SOLO)


def owner(identity: str) -> str:
    """The part of a lease that names its owner."""
    return f"{identity}/"


def lease(identity: str, sequence: int) -> str:
    """The lease of one unit: its field in the in-flight hash."""
    return f"{identity}/{sequence}"
