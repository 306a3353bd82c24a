"""The child's record in Redis: that it lives, where, and what it runs.

It expires by itself. Sidekiq's API and web UI read it. A clock that finds leases of an owner
without a record may return them (clock/sweep.py).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import psutil

from ...config.capsule import Capsule
from ...config.config import Config
from ...errors import MalformedPayload
from ...runtime.assignment import master_pid
from ...runtime.liveness import process_ref
from ...store.connection import Call, Command, OutOfMemory, RedisConnection, RedisError
from ...store.scripts import PROCESS_RECORD, QUEUES_IN_FLIGHT, SET_ADD
from ...store.steps import checked
from ...version import __version__
from ...wire.keys import Keys
from ...wire.lease import RECORD_TTL, Blocking, Progress, UnitOfWork
from ...wire.marks import VERSION
from ...wire.payload import bounded
from ...wire.times import now

_PROCESS_REF_TTL: Final = 86_400
# Of a larger payload, only the short fields are sent with each beat. In bytes.
_LARGEST_SHOWN: Final = 64 << 10
_LARGEST_FIELD: Final = 1024
_STRONGEST_FIRST: Final = ("TERM", "TSTP", "TTIN")
_MOST_ORDERS: Final = 10_000
# Of an async child, which may run thousands of jobs, so many payloads are sent with each beat.
_MOST_SHOWN: Final = 100
# The script that adds the names that were not found.
_ADDING: Final = {"SMISMEMBER": SET_ADD, "ZMSCORE": QUEUES_IN_FLIGHT}
# Sidekiq's Busy page shows each version that is not its own, so the name of forkq is part of it.
_VERSION: Final = f"forkq {__version__}"
# Seconds between two looks at the processor time: beats on news come faster, and would say more or
# less at random.
_SHORTEST_SHARE: Final = 1.0
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Written(NamedTuple):
    """The result of a write. ``fresh``: there was no record before; ``refused``: the first refusal
    of anything else that was sent."""

    fresh: bool
    refused: RedisError | None


class Record:
    """Written and removed by the heartbeat's thread. ``info`` is what ``describe`` says. Of a
    ``crowded`` child only the jobs that run for longest are shown; the count is that of all.
    ``blocking`` says what blocks the event loop."""

    def __init__(
        self,
        identity: str,
        keys: Keys,
        info: dict[str, Any],
        *,
        crowded: bool = False,
        blocking: Callable[[], Blocking | None] = lambda: None,
    ) -> None:
        self._blocking = blocking
        self._most = _MOST_SHOWN if crowded else None
        self._identity = identity
        self._keys = keys
        self._info = info
        self._process_ref = _with_master(process_ref(), info["master"])
        self._cpu = CpuMeter()
        self._had_work = False
        self._told_progress: dict[int, Progress] = {}  # by sequence number
        self._digests: dict[int, str] = {}  # digests of large payloads, by sequence number

    def write(
        self,
        connection: RedisConnection,
        units: list[UnitOfWork],
        round_trip: int,
        *,
        quiet: bool,
        refused: str = "",
    ) -> Written:
        """Writes the record, and adds what Redis has lost besides. Raises ConnectionLost, or
        RedisError if Redis refuses even the record."""
        state, looks = self._state(units, round_trip, quiet, refused), self._looks(units)
        replies = connection.pipeline([*state, *self._work(units), *looks])
        seen = [replies.pop() for _ in looks][::-1]
        if isinstance(replies[0], OutOfMemory):  # a sweep must not take a living process for dead
            replies[: len(state)] = [self._write_on_full(connection, state[0])]
        if isinstance(replies[0], RedisError):
            raise replies[0]
        missing = [
            Call(_ADDING[look], (key,), names)
            for (look, key, *names), found in zip(looks, seen, strict=True)
            if isinstance(found, RedisError) or not all(found)
        ]
        replies += connection.exchange(missing) if missing else ()
        refusals = (reply for reply in replies if isinstance(reply, RedisError))
        return Written(bool(replies[0]), next(refusals, None))  # fields were added

    def write_progress(self, connection: RedisConnection, units: list[UnitOfWork]) -> bool:
        """Writes what these jobs have reported since it was last written. Returns whether anything
        was: else Redis is not asked. Raises ConnectionLost or RedisError."""
        fresh = [unit for unit in units if self._is_news(unit)][: self._most]
        told = {unit.sequence: unit.progress for unit in fresh if unit.progress}
        running = {unit.sequence for unit in units}
        known = {n: told for n, told in self._told_progress.items() if n in running}
        self._told_progress = known | told
        if not fresh:
            return False
        flat = [part for unit in fresh for part in (_thread_name(unit), self._work_of(unit))]
        works = self._keys.works(self._identity)
        self._had_work = True
        writes = ((("HSET", key, *flat), ("EXPIRE", key, RECORD_TTL)) for key in works)
        checked(connection.pipeline([*chain.from_iterable(writes)]))
        return True

    def _is_news(self, unit: UnitOfWork) -> bool:
        found = unit.progress
        return (
            bool(unit.thread)
            and found is not None
            and (self._told_progress.get(unit.sequence) is not found)
        )

    def take_orders(self, connection: RedisConnection) -> list[str]:
        """Takes the orders that web UIs and commands have pushed: each kind once, the strongest
        first, since it may be urgent. Of others, which any program may push, one."""
        found = connection.call("RPOP", self._keys.signals(self._identity), _MOST_ORDERS) or ()
        names = {str(order, "utf-8", "replace") for order in found}
        unknown = sorted(names.difference(_STRONGEST_FIRST))
        return [*filter(names.__contains__, _STRONGEST_FIRST), *unknown[:1]]

    def remove(self, connection: RedisConnection) -> None:
        """Removes the record: this child is gone."""
        commands: list[Command] = [
            ("SREM", self._keys.processes, self._identity),
            ("DEL", self._keys.process(self._identity), *self._keys.works(self._identity)),
            ("DEL", self._keys.process_ref(self._identity)),
        ]
        checked(connection.pipeline(commands))

    def _looks(self, units: list[UnitOfWork]) -> list[Command]:
        """Asks whether names are in their sets: this child in the list of processes, from which any
        process removes a child without a record; the queues in flight in the note of queues."""
        looks: list[Command] = [("SMISMEMBER", self._keys.processes, self._identity)]
        if queues := sorted({unit.queue_name for unit in units}):
            looks.append(("ZMSCORE", self._keys.fetched, *queues))
        return looks

    def _write_on_full(self, connection: RedisConnection, record: Command) -> Any:
        _, key, *fields = record
        keys = (key, self._keys.process_ref(self._identity))
        return connection.script(
            PROCESS_RECORD, keys, (RECORD_TTL, _PROCESS_REF_TTL, self._process_ref, *fields)
        )

    def _state(
        self, units: list[UnitOfWork], round_trip: int, quiet: bool, refused: str
    ) -> list[Command]:
        key = self._keys.process(self._identity)
        fields = {
            "info": msgspec.json.encode(self._info),
            "concurrency": self._info["concurrency"],
            "busy": sum(1 for unit in units if unit.thread),
            "beat": now(),
            "rtt_us": round_trip,
            "quiet": "true" if quiet else "false",
            "rss": resident(),
            "cpu": self._cpu.percent(),
            "refused": refused,
            "blocking": _of_blocking(self._blocking()),
        }
        # Redis may have lost it. Without it, a clock takes a child that cannot beat for dead.
        reference = (
            "SET",
            self._keys.process_ref(self._identity),
            self._process_ref,
            "EX",
            _PROCESS_REF_TTL,
        )
        return [
            ("HSET", key, *chain.from_iterable(fields.items())),
            ("EXPIRE", key, RECORD_TTL),
            reference,
        ]

    def _work(self, units: list[UnitOfWork]) -> list[Command]:
        keys = self._keys.works(self._identity)
        shown = [unit for unit in units if unit.thread]
        if self._most is not None:
            shown = sorted(shown, key=lambda unit: unit.taken)[: self._most]
        running = {_thread_name(unit): self._work_of(unit) for unit in shown}
        numbers = {unit.sequence for unit in units}
        self._digests = {n: text for n, text in self._digests.items() if n in numbers}
        commands: list[Command] = [("DEL", *keys)] if self._had_work or running else []
        self._had_work = bool(running)
        if running:
            flat = [part for pair in running.items() for part in pair]
            commands += [("HSET", key, *flat) for key in keys]
            commands += [("EXPIRE", key, RECORD_TTL) for key in keys]
        return commands

    def _work_of(self, unit: UnitOfWork) -> bytes:
        """What a processor runs, in Sidekiq's format; Sidekiq ignores forkq's ``lease``,
        ``progress`` and ``blocks``."""
        running: dict[str, object] = {
            "queue": unit.queue_name,
            "payload": self._payload(unit),
            "run_at": int(unit.started),
            "lease": unit.sequence,
        }
        if unit.progress is not None:
            running["progress"] = unit.progress
        if place := self._blocked_by(unit):
            running["blocks"] = place
        return msgspec.json.encode(running)

    def _blocked_by(self, unit: UnitOfWork) -> str:
        """The place at which this job blocks the event loop; "" if it does not."""
        blocking = self._blocking()
        is_it = blocking is not None and blocking.sequence == unit.sequence
        return blocking.place if blocking is not None and is_it else ""

    def _payload(self, unit: UnitOfWork) -> str:
        if len(unit.payload) <= _LARGEST_SHOWN:
            return unit.payload.decode("utf-8", "replace")
        if unit.sequence not in self._digests:
            self._digests[unit.sequence] = _digest(unit.payload)
        return self._digests[unit.sequence]


def describe(identity: str, config: Config, capsule: Capsule) -> dict[str, Any]:
    """The ``info`` of a process record, in Sidekiq's format."""
    weights = dict(capsule.queues)
    return {
        "hostname": socket.gethostname(),
        "started_at": now(),
        "pid": os.getpid(),
        "tag": config.tag,
        "concurrency": capsule.concurrency,
        "capsules": {
            capsule.name: {
                "concurrency": capsule.concurrency,
                "mode": capsule.mode,
                "weights": weights,
            }
        },
        "queues": list(capsule.queue_names),
        "weights": [weights],
        "labels": list(config.labels),
        "identity": identity,
        "version": _VERSION,
        "embedded": False,
        "master": master_pid(config),
        "knows": VERSION,
        **({"threads": capsule.job_threads} if capsule.is_async else {}),
    }


def _of_blocking(found: Blocking | None) -> bytes:
    return b"" if found is None else msgspec.json.encode(found)


def _with_master(own: str, master: int) -> str:
    """The reference of this process, and that of its master: while that lives, it rescues the jobs
    of this process by itself."""
    with suppress(OSError):
        return f"{own} {process_ref(master)}".strip()
    return own


def _thread_name(unit: UnitOfWork) -> str:
    """A thread's id in base 36, as Sidekiq writes it. A coroutine has the sequence number of its
    lease in the place of a thread."""
    digits, number = "", unit.thread
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def _digest(payload: bytes) -> str:
    """A large job in the form in which a web UI can show it: without its long fields."""
    size = f"({len(payload):,} bytes: too large to show)"
    try:
        fields = msgspec.json.decode(bounded(payload), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MalformedPayload):
        fields = {}
    shown = {name: raw for name, raw in fields.items() if memoryview(raw).nbytes <= _LARGEST_FIELD}
    shown["args"] = msgspec.Raw(msgspec.json.encode([size]))
    return msgspec.json.encode(shown).decode("utf-8", "replace")


class CpuMeter:
    """How much processor time this process uses. Neither clock is a system call that gives up the
    interpreter's lock, as ``resident`` must avoid."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._used = time.process_time()
        self._percent = 0.0

    def percent(self) -> float:
        """The processor time used since about the last beat; 100 stands for one processor."""
        at, used = time.monotonic(), time.process_time()
        if at - self._at >= _SHORTEST_SHARE:
            self._percent = round((used - self._used) / (at - self._at) * 100, 1)
            self._at, self._used = at, used
        return self._percent


def resident() -> int:
    """Resident memory in KiB, read with one system call; 0 if the system does not tell, or a job
    has closed the descriptor.

    Each system call releases the interpreter's lock. While 25 jobs compute it takes an eighth of a
    second or more to get it back: the dozen calls of psutil made a heartbeat three seconds late.
    """
    if sys.platform != "linux":
        return psutil.Process().memory_info().rss // 1024
    try:
        return int(os.pread(_statm(os.getpid()), 256, 0).split()[1]) * _PAGE // 1024
    except (OSError, ValueError, IndexError):
        return 0


@cache
def _statm(pid: int) -> int:
    """A descriptor that gives the memory of process ``pid`` with each read."""
    return os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
