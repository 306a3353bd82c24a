"""The names of everything forkq keeps in Redis. No other module spells a key.

Names without ``forkq`` in them are Sidekiq's, to the letter. Per-queue keys of our own carry the
queue in braces, so that in Redis Cluster they share a slot with the list they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """Key names under one prefix. An empty prefix is the data that Sidekiq shares."""

    prefix: str = ""

    @property
    def queues(self) -> str:
        """Set: names of all queues ever pushed to."""
        return f"{self.prefix}queues"

    @property
    def fetched(self) -> str:
        """Sorted set: names of all queues that children take from, by when they last said so. A
        queue that was deleted, in Sidekiq's UI say, is no longer in ``queues``, and what is in
        flight of it must be found all the same. Children write it before they lease anything
        (child/fetch/fetch_connection.py), and with each beat for what is in flight
        (child/heartbeat/record.py);
        the sweep forgets names after a day."""
        return f"{self.prefix}forkq:fetched"

    @property
    def schedule(self) -> str:
        """Sorted set by due time: jobs to run later."""
        return f"{self.prefix}schedule"

    @property
    def retry(self) -> str:
        """Sorted set by due time: failed jobs to run again."""
        return f"{self.prefix}retry"

    @property
    def dead(self) -> str:
        """Sorted set by time of death: jobs that forkq gave up on."""
        return f"{self.prefix}dead"

    @property
    def processes(self) -> str:
        """Set: identities, one per child."""
        return f"{self.prefix}processes"

    def shared(self) -> list[str]:
        """The keys that belong to no single queue, process or day."""
        sets = [self.queues, self.schedule, self.retry, self.dead, self.processes, self.paused]
        counts = [self.stat("processed"), self.stat("failed"), self.ran_twice]
        cron = [self.cron, self.cron_paused, self.cron_last, self.cron_pending]
        return [*sets, *counts, *cron, self.controlled, self.leader, self.leader_left]

    def queue(self, name: str) -> str:
        """List: LPUSH in, taken from the right."""
        return f"{self.prefix}queue:{name}"

    def inflight(self, name: str) -> str:
        """Hash lease -> payload: everything fetched from that queue and not yet acknowledged."""
        return self._beside(name, "inflight")

    @property
    def paused(self) -> str:
        """Set: names of the queues that nobody fetches from. Sidekiq Pro's."""
        return f"{self.prefix}paused"

    @property
    def controlled(self) -> str:
        """Hash: name -> a count, of the queues whose rules were changed at run time. Whoever
        changes one counts it up: that wakes the children which wait."""
        return f"{self.prefix}forkq:controlled"

    def control(self, name: str) -> str:
        """Hash: the rules of that queue that were changed at run time; they win over the config.

        ``limit`` and ``process_limit`` whole numbers, ``rate`` as ``COUNT/SECONDS``, ``burst``;
        ``none`` lifts what the config says."""
        return self._beside(name, "control")

    def bucket(self, name: str) -> str:
        """String, expiring once it is full: tokens left, and when they were counted (microseconds
        of the epoch)."""
        return self._beside(name, "bucket")

    def full(self, name: str) -> str:
        """String, expiring: children wait for a slot of that queue (fetch.lua)."""
        return self._beside(name, "full")

    def busy(self, name: str) -> str:
        """String, expiring: children wait for jobs of that blocking queue to end (fetch.lua)."""
        return self._beside(name, "busy")

    def _beside(self, name: str, what: str) -> str:
        return f"{self.prefix}{{queue:{name}}}:{what}"

    def concerns(self, key: str) -> str | None:
        """The queue that ``key`` belongs to; None if it is nobody's, or everybody's."""
        key = key.removeprefix(self.prefix)
        if key.startswith("queue:"):
            return key.removeprefix("queue:")
        if key.startswith("{queue:") and "}:" in key:
            return key.removeprefix("{queue:").rpartition("}:")[0]
        return None

    def lists_and_leases(self, queues: Iterable[str]) -> list[str]:
        """Each queue's list and in-flight hash in turn: the KEYS of every script that moves jobs
        between the two."""
        return [key for name in queues for key in (self.queue(name), self.inflight(name))]

    def process(self, identity: str) -> str:
        """Hash, expiring: one child's record."""
        return f"{self.prefix}{identity}"

    def place(self, identity: str) -> str:
        """String, expiring after a day: where that child lives (whereabouts.py). It outlasts the
        record, so that a child that cannot beat is not taken for dead by those who see it live."""
        return f"{self.prefix}forkq:place:{identity}"

    def work(self, identity: str) -> str:
        """Hash, expiring: thread id -> what that processor runs."""
        return f"{self.prefix}{identity}:work"

    def signals(self, identity: str) -> str:
        """List: orders that a web UI left for that child."""
        return f"{self.prefix}{identity}-signals"

    def stat(self, name: str) -> str:
        """Counter: ``processed`` or ``failed``, of all time."""
        return f"{self.prefix}stat:{name}"

    def stat_of_day(self, name: str, day: str) -> str:
        """Counter of one UTC day, ``YYYY-MM-DD``."""
        return f"{self.prefix}stat:{name}:{day}"

    @property
    def ran_twice(self) -> str:
        """Counter: jobs that ended here after another host had been given them."""
        return f"{self.prefix}forkq:stat:ran_twice"

    def flushed(self, identity: str) -> str:
        """Hash, expiring after a day: what of that child's counts has been added already."""
        return f"{self.prefix}forkq:flushed:{identity}"

    def lost(self, identity: str) -> str:
        """Hash, expiring after a day: sequence number -> class and jid of each lease that was taken
        from that child because its host seemed lost."""
        return f"{self.prefix}forkq:lost:{identity}"

    def host(self, view: str) -> str:
        """String, expiring: a clock watches over the processes of that host or container."""
        return f"{self.prefix}forkq:host:{view}"

    @property
    def leader(self) -> str:
        """String, expiring: the identity and the place of the clock that leads."""
        return f"{self.prefix}forkq:leader"

    @property
    def leader_left(self) -> str:
        """Counter, expiring: changes when a leader stops in good order, and so wakes the others."""
        return f"{self.prefix}forkq:leader:left"

    @property
    def cron(self) -> str:
        """Hash: name -> definition of a periodic job (cron.Entry as JSON)."""
        return f"{self.prefix}forkq:cron"

    @property
    def cron_paused(self) -> str:
        """Set: names of the periodic jobs that somebody has paused."""
        return f"{self.prefix}forkq:cron:paused"

    @property
    def cron_last(self) -> str:
        """Hash: name -> the last tick that was dealt with, whole epoch seconds."""
        return f"{self.prefix}forkq:cron:last"

    @property
    def cron_pending(self) -> str:
        """Hash: name -> jid of its latest job, until that has ended."""
        return f"{self.prefix}forkq:cron:pending"

    def cron_origin(self, service: str) -> str:
        """String, expiring after a minute: a tree of that service runs (cron/service.py)."""
        return f"{self.prefix}forkq:cron:origin:{service}"

    def cron_claim(self, service: str) -> str:
        """String, expiring after a day: which child of that service publishes its periodic jobs
        (child/cron/claim.py)."""
        return f"{self.prefix}forkq:cron:claim:{service}"

    def cron_runs(self, name: str) -> str:
        """List, newest first, expiring: what became of that periodic job's last ticks."""
        return f"{self.prefix}forkq:cron:runs:{name}"

    def metrics(self, minute: str) -> str:
        """Hash: ``CLASS|p``, ``CLASS|f``, ``CLASS|ms`` of a minute, ``YYMMDD|H:MM``, or without its
        last digit of ten minutes. Sidekiq 8's."""
        return f"{self.prefix}j|{minute}"

    def histogram(self, job: str, minute: str) -> str:
        """Bitfield: run times of one job class in a minute, ``D-H:M``. Sidekiq 8's."""
        return f"{self.prefix}h|{job}-{minute}"

    def marks(self, day: str) -> str:
        """Hash: minute, ISO 8601 -> label of a deploy on that UTC day, ``YYYYMMDD``."""
        return f"{self.prefix}{day}-marks"

    def deploy_lock(self, label: str) -> str:
        """String, expiring: this deploy has just been marked, by another host perhaps."""
        return f"{self.prefix}deploylock-{label}"
