"""Asks Redis for all figures, in a bounded number of short commands, within a bounded time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from ..errors import MalformedPayload, ServerUnavailable
from ..features.batch.parts import COUNTED, LOST
from ..limits.patterns import matches_any
from ..store.connection import Command, DamagedKey, RedisConnection, ResponseError
from ..store.process_info import UNREADABLE, ProcessInfo, process_info
from ..wire.histogram import BOUNDS, WAIT_BOUNDS
from ..wire.keys import Keys, keys_of
from ..wire.payload import loads_head
from ..wire.times import seconds
from .families import CRASHES, RESTARTS
from .samples import OTHER, Samples, label, number, rows

# Commands of one round trip: others get their turn between two of them.
_CHUNK: Final = 500
# A queue's next job is read whole, and may be large.
_JOBS_AT_ONCE: Final = 50
# Queues with series of their own, those with the most jobs; all others count together.
MOST_QUEUES: Final = 500
_RECORD: Final = ("info", "concurrency", "busy", "beat", "quiet", "rss", "rtt_us", "refused")
# Every second of Sidekiq's bounds: with all 26 buckets a class would have twice as many series.
_EVERY: Final = 2
RUN_BOUNDS: Final = BOUNDS[::_EVERY]


class _Row(msgspec.Struct, frozen=True):
    """The figures of one queue; ``age`` is that of its next job or its next suspect, in seconds."""

    name: bytes
    size: int
    suspects: int
    flight: int
    age: float


class Collector:
    """One scrape. ``deadline`` is monotonic."""

    def __init__(self, connection: RedisConnection, keys: Keys, deadline: float) -> None:
        self._connection = connection
        self._keys = keys
        self._deadline = deadline
        self._now = 0.0
        self._served: set[str] = set()
        self.samples = Samples()

    def collect(self) -> Samples:
        """Asks Redis for all figures. Raises ConnectionLost, RedisError, or ServerUnavailable if
        the time is over."""
        whole, micro = self._connection.call("TIME")  # raises what Redis says to all commands
        self._now = int(whole) + int(micro) / 1e6
        self._add_counts()
        self._add_totals()
        self._add_children()
        self._add_queues()
        self._add_redis_memory()
        return self.samples

    def _ask(self, commands: Iterable[Command], at_once: int = _CHUNK) -> list[Any]:
        """The replies; None for a key of another type. Raises any other error: a zero in place of
        what this user may not read would keep an alert from firing."""
        found: list[Any] = []
        remaining = iter(commands)
        while chunk := list(islice(remaining, at_once)):
            if time.monotonic() > self._deadline:
                raise ServerUnavailable("Redis took too long to answer all questions of a scrape")
            found += map(_checked, self._connection.pipeline(chunk))
        return found

    def _add_counts(self) -> None:
        keys = self._keys
        sets = {"scheduled": keys.schedule, "retry": keys.retry, "dead": keys.dead}
        counters = {name: keys.stat(name) for name in ("processed", "failed")}
        sizes = self._ask(("ZCARD", key) for key in sets.values())
        counts = self._ask(("GET", key) for key in counters.values())
        earliest = self._ask(
            ("ZRANGE", key, 0, 0, "WITHSCORES") for key in (keys.schedule, keys.retry)
        )
        for name, size in zip(sets, sizes, strict=True):
            self.samples.add(f"forkq_{name}_size", size or 0)
        for name, count in zip(counters, counts, strict=True):
            self.samples.add(f"forkq_jobs_{name}", number(count))
        late = max((self._now - score for score in map(_score, earliest) if score), default=0.0)
        self.samples.add("forkq_clock_lateness_seconds", max(0.0, late))
        self._add_leader()
        self._add_batches()

    def _add_leader(self) -> None:
        [holder] = self._ask([("GET", self._keys.leader)])
        self.samples.add("forkq_leaders", int(bool(holder)))
        if holder:
            host = holder.partition(b" ")[0].rsplit(b":", 2)[0]
            self.samples.add("forkq_leader_info", 1, label(host))

    def _add_batches(self) -> None:
        keys = self._keys
        found, notes = self._ask([("HGETALL", keys.batch_counts), ("XLEN", keys.notes)])
        counts = {name.decode("utf-8", "replace"): count for name, count in (found or {}).items()}
        for state in COUNTED:
            self.samples.add("forkq_batches", number(counts.get(state)), state)
        self.samples.add("forkq_batch_members_lost", number(counts.get(LOST)))
        self.samples.add("forkq_notes_size", notes or 0)

    def _add_totals(self) -> None:
        hashes = [self._keys.totals(what) for what in ("jobs", "queues", "children", "ends")]
        jobs, queues, children, ends = (rows(found or {}) for found in self._ask_hashes(hashes))
        for name, row in jobs.items():
            self._add_class(name, row)
        for name, row in queues.items():
            self._add_histogram("forkq_job_wait_seconds", WAIT_BOUNDS, name, row)
        for name, row in ends.items():
            for outcome, count in row.items():
                self.samples.add("forkq_jobs", count, name, outcome)
        self._add_ends("forkq_child_restarts", "restart", RESTARTS, children)
        self._add_ends("forkq_child_crashes", "crash", CRASHES, children)

    def _add_ends(
        self,
        metric: str,
        kind: str,
        known: Iterable[str],
        children: Mapping[str, Mapping[str, int]],
    ) -> None:
        for reason in known:
            self.samples.add(metric, 0, reason)
        for name, row in children.items():
            found, _, reason = name.partition("|")
            if found == kind:
                self.samples.add(metric, row.get("n", 0), reason)

    def _ask_hashes(self, names: Sequence[str]) -> list[Mapping[bytes, bytes] | None]:
        return self._ask(("HGETALL", name) for name in names)

    def _add_class(self, name: str, row: Mapping[str, int]) -> None:
        failed, dead, dropped = (row.get(field, 0) for field in ("failed", "dead", "dropped"))
        outcomes = {
            "done": max(0, row.get("n", 0) - failed),
            "retried": max(0, failed - dead - dropped),
            "dead": dead,
            "dropped": dropped,
        }
        for outcome, count in outcomes.items():
            self.samples.add("forkq_jobs", count, name, outcome)
        self.samples.add("forkq_jobs_ran_twice", row.get("twice", 0), name)
        self._add_histogram("forkq_job_run_seconds", RUN_BOUNDS, name, row, _EVERY)

    def _add_histogram(
        self,
        metric: str,
        bounds: Sequence[float],
        name: str,
        row: Mapping[str, int],
        every: int = 1,
    ) -> None:
        """Adds a histogram. ``row`` has ``every`` buckets for each bucket of the metric."""
        found = self.samples.histogram(metric, bounds, name)
        found.seconds += row.get("ms", 0) / 1000
        for field, count in row.items():
            if field.isdigit():
                found.counts[min((int(field) + every - 1) // every, len(bounds))] += count

    def _add_queues(self) -> None:
        names, paused, suspected = self._ask(
            ("SMEMBERS", key)
            for key in (self._keys.queues, self._keys.paused, self._keys.suspected)
        )
        known = sorted({*(names or ()), *(suspected or ())})
        self.samples.add("forkq_queues", len(known))
        # The index of suspects may be damaged: then each queue may have some.
        rows = self._rows(known, known if suspected is None else sorted(suspected))
        most = sorted(rows, key=lambda row: -(row.size + row.flight))
        for rank, row in enumerate(most):
            queue = label(row.name) if rank < MOST_QUEUES else OTHER
            self.samples.add("forkq_queue_size", row.size, queue)
            self.samples.add("forkq_queue_suspects", row.suspects, queue)
            self.samples.add("forkq_queue_in_flight", row.flight, queue)
            self.samples.raise_to("forkq_queue_latency_seconds", row.age, queue)
            self._add_served(queue, row.name)
            self.samples.raise_to("forkq_queue_paused", int(row.name in (paused or ())), queue)

    def _rows(self, names: Sequence[bytes], suspected: Sequence[bytes]) -> list[_Row]:
        """The figures of these queues; those in ``suspected`` have a list of suspects, too."""
        own, alone = keys_of(self._keys.queue, names), keys_of(self._keys.suspects, suspected)
        lists = [*own, *alone]
        lengths = self._ask(("LLEN", key) for key in lists)
        sizes = {key: size for key, size in zip(lists, lengths, strict=True) if size}
        flights = self._ask(("HLEN", key) for key in keys_of(self._keys.inflight, names))
        nexts = self._ask((("LINDEX", key, -1) for key in sizes), _JOBS_AT_ONCE)
        ages = dict(zip(sizes, map(self._age, nexts), strict=True))
        found = zip(names, own, keys_of(self._keys.suspects, names), flights, strict=True)
        return [
            _Row(
                name,
                size=sizes.get(queue, 0) + sizes.get(suspects, 0),
                suspects=sizes.get(suspects, 0),
                flight=flight or 0,
                age=max(ages.get(queue, 0.0), ages.get(suspects, 0.0)),
            )
            for name, queue, suspects, flight in found
        ]

    def _add_served(self, queue: str, name: bytes) -> None:
        served = matches_any(name.decode("utf-8", "surrogateescape"), self._served)
        self.samples.lower_to("forkq_queue_served", int(served), queue)

    def _age(self, payload: bytes | None) -> float:
        """For how long a queue's next job has been queued; 0 if it does not say."""
        try:
            stamp = loads_head(payload or b"").get("enqueued_at")
        except MalformedPayload:
            return 0.0
        return max(0.0, self._now - seconds(stamp)) if isinstance(stamp, int | float) else 0.0

    def _add_children(self) -> None:
        [names] = self._ask([("SMEMBERS", self._keys.processes)])
        prefix = self._keys.process("").encode()
        records = self._ask(("HMGET", prefix + name, *_RECORD) for name in sorted(names or ()))
        self.samples.add("forkq_sidekiq_processes", 0)
        for record in records:
            try:
                self._add_child(record)
            except UNREADABLE:
                continue  # it has expired, or another program has written it

    def _add_child(self, record: Sequence[bytes | None]) -> None:
        raw, concurrency, busy, beat, quiet, rss, rtt, refused = record
        info = process_info(raw)
        if quiet != b"true":
            self._served.update(info.all_queues)
        if not info.version.startswith("forkq "):
            self.samples.add("forkq_sidekiq_processes", 1)
            return
        where = (label(info.hostname), label(_capsule(info)))
        add, raise_to = self.samples.add, self.samples.raise_to
        add("forkq_children", 1, *where)
        add("forkq_children_quiet", int(quiet == b"true"), *where)
        add("forkq_children_refused", int(bool(refused)), *where)
        add("forkq_processors", number(concurrency), *where)
        add("forkq_processors_busy", number(busy), *where)
        add("forkq_children_memory_bytes", number(rss) * 1024, *where)
        raise_to("forkq_heartbeat_age_seconds", max(0.0, self._now - float(beat or 0)), *where)
        raise_to("forkq_redis_round_trip_seconds", number(rtt) / 1e6, *where)

    def _add_redis_memory(self) -> None:
        """Adds the memory of Redis; it is left out if the user may not read it."""
        try:
            reply = self._connection.call("INFO", "memory")
        except ResponseError:
            return
        text = bytes(reply or b"").decode("utf-8", "replace")
        info = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        most = int(info.get("maxmemory", 0)) or int(info.get("total_system_memory", 0))
        if most and "used_memory" in info:
            self.samples.add("forkq_redis_memory_used_bytes", int(info["used_memory"]))
            self.samples.add("forkq_redis_memory_max_bytes", most)


def _checked(reply: Any) -> Any:
    if isinstance(reply, DamagedKey):
        return None
    if isinstance(reply, Exception):
        raise reply
    return reply


def _score(found: Any) -> float:
    """The score of the first entry of a sorted set, as either protocol answers; 0 for none."""
    flat = list(found or ())
    while flat and isinstance(flat[0], list | tuple):
        flat = list(flat[0])
    return float(flat[1]) if len(flat) > 1 else 0.0


def _capsule(info: ProcessInfo) -> str:
    return next(iter(info.capsules), "default")
