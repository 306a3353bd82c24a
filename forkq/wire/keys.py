"""The names of all keys that forkq has in Redis; the features' are in feature_keys.py. No other
module spells a key.

Names without ``forkq`` in them are Sidekiq's, to the letter. forkq's own keys of a queue have the
queue in braces, so that in Redis Cluster they share a slot with the list of that queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from .feature_keys import FeatureKeys


def new_secret() -> bytes:
    """A random value for ``Keys.secret``."""
    return os.urandom(32).hex().encode()


def keys_of(make: Callable[[str], str], names: Iterable[bytes]) -> list[bytes]:
    """The key of each queue, as ``make`` (``Keys.queue``, for example) names it; a name may be no
    UTF-8."""
    before, after = make("\0").encode().split(b"\0")
    return [before + name + after for name in names]


class Keys(FeatureKeys, frozen=True):
    """Key names under one prefix. Sidekiq shares the data under the empty prefix."""

    @property
    def queues(self) -> str:
        """Set: names of all queues that a job was ever pushed to."""
        return f"{self.prefix}queues"

    @property
    def fetched(self) -> str:
        """Sorted set by time: names of the queues that children fetch from.

        A deleted queue is no longer in ``queues``, but the sweep must find its in-flight jobs. A
        child writes the names before it leases, and with each beat; the sweep removes old ones."""
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
    def dead_bounds(self) -> str:
        """Sorted set by time, a day: ``SIZE DAYS``, by which each tree trims the dead set."""
        return f"{self.prefix}forkq:dead:bounds"

    @property
    def processes(self) -> str:
        """Set: identities, one per child."""
        return f"{self.prefix}processes"

    def shared(self) -> list[str]:
        """The keys that do not belong to one queue, process or day."""
        sets = [self.queues, self.schedule, self.retry, self.dead, self.processes, self.paused]
        sets += [self.suspected, self.marked, self.tickets, self.batches, self.results_ended]
        sets += [self.notes, self.doubted, self.cancelled, self.cancelled_lately, self.signalled]
        sets.append(self.flows_unfinished)
        counts = [self.stat("processed"), self.stat("failed"), self.ran_twice]
        cron = [self.cron, self.cron_paused, self.cron_last, self.cron_pending]
        rest = [self.dead_bounds, self.secret, self.controlled, self.parameters, self.paused_by]
        classes = [self.held_classes, self.released_classes]
        moves = [self.moves, self.arrived]
        return [*sets, *counts, *cron, *rest, *classes, *moves, self.leader, self.leader_left]

    def queue(self, name: str) -> str:
        """List: jobs enter on the left and are fetched from the right."""
        return f"{self.prefix}queue:{name}"

    def inflight(self, name: str) -> str:
        """Hash lease -> payload: the jobs of that queue that are fetched and not acknowledged."""
        return self._key_of_queue(name, "inflight")

    def suspects(self, name: str) -> str:
        """List, in the order of the queue's own: the jobs of that queue that must run alone. Only
        solo children fetch from it."""
        return self._key_of_queue(name, "suspects")

    @property
    def suspected(self) -> str:
        """Set: names of the queues that have a list of suspects."""
        return f"{self.prefix}forkq:suspects"

    def turn(self, name: str) -> str:
        """Hash: identity of a solo child -> epoch second. A limit or a rate of that queue has
        refused it a job since then; ordinary children leave it a permit and a token."""
        return self._key_of_queue(name, "turn")

    @property
    def held_classes(self) -> str:
        """Hash: class -> ``SINCE DEATHS``, the classes whose jobs have killed too many processes
        (store/held_classes.py): since when they run alone (epoch seconds), and how many processes
        have died of them."""
        return f"{self.prefix}forkq:classes:held"

    @property
    def released_classes(self) -> str:
        """Set: the classes that are not held any more, while the leader's clock returns their jobs
        from the lists of suspects."""
        return f"{self.prefix}forkq:classes:released"

    def deaths_of_class(self, job: str) -> str:
        """Sorted set, expiring after a minute: identity of a process that died of a job of that
        class -> epoch second."""
        return f"{self.prefix}forkq:classes:deaths:{job}"

    @property
    def marked(self) -> str:
        """Sorted set: queue -> epoch second of the first job there that expires (``+inf``: none
        does), of all queues that may have marked jobs (features/)."""
        return f"{self.prefix}forkq:marked"

    def of_flow(self, bid: str, above: Iterable[str]) -> list[str]:
        """The keys of a batch that is a flow, as ``of_batch``, and those of its steps."""
        return [*self.of_batch(bid, above), self.flow_steps(bid), self.flows_unfinished]

    def of_batch(self, bid: str, above: Iterable[str]) -> list[str]:
        """The keys of a batch, and of those ``above`` it, which it is a member of; and all that
        changes with them."""
        keys = [key for each in (bid, *above) for key in self.of_members(each)]
        return [*keys, self.schedule, self.batches, self.notes]

    def of_ticket(self, digest: str, queue: str) -> list[str]:
        """The lock of a job of which at most one waits, and all that changes with it."""
        sets = [self.tickets, self.schedule, self.retry, self.totals("ends"), self.queues]
        rest = [self.marked, self.queue(queue), self.results_ended]
        return [self.unique(digest), *sets, *rest]

    @property
    def paused(self) -> str:
        """Set: names of the paused queues; children do not fetch from them. Sidekiq Pro has the
        same set."""
        return f"{self.prefix}paused"

    @property
    def paused_by(self) -> str:
        """Hash: queue -> ``EPOCH WHO``: who paused the queue, if a call of forkq did."""
        return f"{self.prefix}forkq:paused:by"

    @property
    def controlled(self) -> str:
        """Hash: queue -> how often its rules were changed; that wakes the waiting children."""
        return f"{self.prefix}forkq:controlled"

    def control(self, name: str) -> str:
        """Hash: the rules of that queue that were changed at run time: ``limit``,
        ``process_limit``, ``rate`` as ``COUNT/SECONDS``, ``burst``; ``none`` lifts the config's."""
        return self._key_of_queue(name, "control")

    def bucket(self, name: str) -> str:
        """String, expiring once it is full: tokens left, and when that was (epoch us)."""
        return self._key_of_queue(name, "bucket")

    def awaited(self, name: str) -> str:
        """String, expiring: children wait for a job of that queue to end (fetch.lua)."""
        return f"{self.prefix}{{queue:{name}}}:awaited"  # each fetch makes some

    def of_rules(self, name: str) -> tuple[str, ...]:
        """The keys that fetch.lua needs of a queue with rules, in its order."""
        rules = (self.awaited(name), self.control(name), self.bucket(name))
        return (*rules, self.turn(name), self.suspects(name))

    @property
    def moves(self) -> str:
        """Hash: queue -> ``ID NUMBER KIND`` of its move from here to another shard: the name of the
        move, the number of its last page, and what is in that; no KIND: it has arrived
        (api/sharding/queue_move.py). It does not expire: a call that comes late must find it."""
        return f"{self.prefix}forkq:moves"

    def moving(self, name: str) -> str:
        """List: the page of that queue's move that is not yet known to be on the other shard."""
        return self._key_of_queue(name, "moving")

    @property
    def arrived(self) -> str:
        """Hash, as ``moves``: ``QUEUE ID`` -> ``NUMBER SHA1`` of the last page that has arrived."""
        return f"{self.prefix}forkq:arrived"

    def _key_of_queue(self, name: str, what: str) -> str:
        return f"{self.prefix}{{queue:{name}}}:{what}"

    def queue_of(self, key: str) -> str | None:
        """The queue that ``key`` belongs to; None if it belongs to no single queue."""
        key = key.removeprefix(self.prefix)
        if key.startswith("queue:"):
            return key.removeprefix("queue:")
        if key.startswith("{queue:") and "}:" in key:
            return key.removeprefix("{queue:").rpartition("}:")[0]
        return None

    def lists_and_leases(self, queues: Iterable[str]) -> list[str]:
        """List and in-flight hash of each queue in turn, for fetch.lua, of queues without rules."""
        return [key for name in queues for key in (self.queue(name), self.inflight(name))]

    def of_returns(self, queues: Iterable[str]) -> list[str]:
        """List, in-flight hash and mark of each queue in turn, for scripts that return jobs."""
        each = ((self.queue(n), self.inflight(n), self.awaited(n)) for n in queues)
        return [key for three in each for key in three]

    def of_moves(self, source: str | bytes, kept: tuple[str, int] = ("none", 0)) -> list[Any]:
        """The keys of jobs_move.lua for jobs that leave ``source``, but for those of their new
        queues. ``kept``: the token, and the number of the list, under which what is deleted is
        kept, if it is."""
        undo = (self.undo_list(*kept), self.undo(kept[0]))
        places = (self.queues, self.dead, *undo, self.suspected)
        return [source, *places, self.marked, self.totals("ends")]

    @property
    def of_suspects(self) -> Keys:
        """The keys for a solo child's leases, which come from the lists of suspects and go back to
        them."""
        return _SuspectKeys(self.prefix)

    def process(self, identity: str) -> str:
        """Hash, expiring: one child's record."""
        return f"{self.prefix}{identity}"

    def process_ref(self, identity: str) -> str:
        """String, expiring after a day: boot, pid namespace, pid and start time of that child, and
        after a space the same of its master (runtime/liveness.py). It outlasts the record: so a
        clock on the child's host sees that a child lives which cannot beat."""
        return f"{self.prefix}forkq:place:{identity}"

    def work(self, identity: str) -> str:
        """Hash, expiring: thread id -> the job that this processor runs."""
        return f"{self.prefix}{identity}:work"

    def work_of_sidekiq_6(self, identity: str) -> str:
        """Hash, expiring: what ``work`` has, where Sidekiq 6 writes it and looks for it."""
        return f"{self.prefix}{identity}:workers"

    def works(self, identity: str) -> tuple[str, str]:
        """The hashes with the jobs that one process runs: Sidekiq 7's and Sidekiq 6's."""
        return self.work(identity), self.work_of_sidekiq_6(identity)

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
        """Counter: jobs that ended on their host after they had been given to another host."""
        return f"{self.prefix}forkq:stat:ran_twice"

    def ran_twice_of(self, jid: str) -> str:
        """String, a day: IDENTITY and epoch seconds of the end on a host that had lost the job."""
        return f"{self.prefix}forkq:ran_twice:{jid}"

    def totals(self, what: str) -> str:
        """Hash: what children have counted since the first one, as ``NAME|FIELD``: by class
        (``jobs``), by queue (``queues``), by the ends of children (``children``)."""
        return f"{self.prefix}forkq:totals:{what}"

    def flushed(self, identity: str) -> str:
        """Hash, a day: the counts of that child that the counters include, and its beats."""
        return f"{self.prefix}forkq:flushed:{identity}"

    def lost(self, identity: str) -> str:
        """Hash, a day: sequence number -> class and jid of each lease that was taken from that
        child because its host seemed lost."""
        return f"{self.prefix}forkq:lost:{identity}"

    @property
    def parameters(self) -> str:
        """Hash: job -> the names of its parameters, and whether all arguments are secret, as JSON
        (wire/parameters.py). A child writes those of its app once it has booted, and again when
        Redis has lost data. It does not expire: dead jobs are shown long after the last boot."""
        return f"{self.prefix}forkq:parameters"

    def went_back(self, tree: str) -> str:
        """String, expiring after five minutes: a child of that tree (host and pid of its master)
        has logged that Redis went back in time (child/heartbeat/beat_count.py)."""
        return f"{self.prefix}forkq:went_back:{tree}"

    def host(self, view: str) -> str:
        """String, expiring: it exists while a clock watches the processes of that host or
        container."""
        return f"{self.prefix}forkq:host:{view}"

    def task(self, jid: str) -> str:
        """String, expiring: what became of a task of Django's (contrib/django/task_store.py)."""
        return f"{self.prefix}forkq:task:{jid}"

    def undo(self, token: str) -> str:
        """Hash, expiring: where the jobs that were deleted under that token come from."""
        return f"{self.prefix}forkq:undo:{token}"

    def undo_list(self, token: str, number: int) -> str:
        """List, expiring: score and member in turn of deleted jobs."""
        return f"{self.prefix}forkq:undo:{token}:{number}"

    def web_message(self, name: str) -> str:
        """String, expiring after a minute: what an action did, for the next page (web/flash.py)."""
        return f"{self.prefix}forkq:web:message:{name}"

    @property
    def secret(self) -> str:
        """String, 64 hexadecimal digits: the random secret with which the names of jobs are made
        (``JobEntry.key``). Without it what is masked in a job could be found out by trying."""
        return f"{self.prefix}forkq:secret"

    @property
    def leader(self) -> str:
        """String, expiring: the identity and the process of the leader."""
        return f"{self.prefix}forkq:leader"

    @property
    def leader_left(self) -> str:
        """Counter, expiring: a leader that stops counts it up, which wakes the other clocks."""
        return f"{self.prefix}forkq:leader:left"

    @property
    def cron(self) -> str:
        """Hash: name -> definition of a periodic job (cron/entry.py, as JSON)."""
        return f"{self.prefix}forkq:cron"

    @property
    def cron_paused(self) -> str:
        """Set: names of the paused periodic jobs."""
        return f"{self.prefix}forkq:cron:paused"

    @property
    def cron_last(self) -> str:
        """Hash: name -> the last tick that was handled, whole epoch seconds."""
        return f"{self.prefix}forkq:cron:last"

    @property
    def cron_pending(self) -> str:
        """Hash: name -> jid of its latest job, until that job has ended."""
        return f"{self.prefix}forkq:cron:pending"

    def cron_origin(self, service: str) -> str:
        """String, expiring after a minute: a tree of that service runs (cron/service.py)."""
        return f"{self.prefix}forkq:cron:origin:{service}"

    def cron_claim(self, service: str) -> str:
        """String, a day: which child of that service publishes its entries (cron/publish.py)."""
        return f"{self.prefix}forkq:cron:claim:{service}"

    def cron_runs(self, name: str) -> str:
        """List, newest first, expiring: the results of the last ticks of that periodic job."""
        return f"{self.prefix}forkq:cron:runs:{name}"

    def metrics(self, minute: str) -> str:
        """Hash: ``CLASS|p``, ``CLASS|f``, ``CLASS|ms`` of a minute, ``YYMMDD|H:MM``, or of ten."""
        return f"{self.prefix}j|{minute}"

    def histogram(self, job: str, minute: str) -> str:
        """Bitfield: run times of one job class in a minute, ``D-H:M``. Sidekiq 8's."""
        return f"{self.prefix}h|{job}-{minute}"

    def marks(self, day: str) -> str:
        """Hash: minute, ISO 8601 -> label of a deploy on that UTC day, ``YYYYMMDD``."""
        return f"{self.prefix}{day}-marks"

    def deploy_lock(self, label: str) -> str:
        """String, expiring: this deploy has just been marked, perhaps by another host."""
        return f"{self.prefix}deploylock-{label}"


class _SuspectKeys(Keys, frozen=True):
    """Key names for a solo child: each queue's list is its list of suspects, and the names of all
    queues are those that have suspects."""

    @property
    def queues(self) -> str:
        """Set: names of the queues that have suspects."""
        return self.suspected

    def queue(self, name: str) -> str:
        """List: the suspects of that queue."""
        return self.suspects(name)
