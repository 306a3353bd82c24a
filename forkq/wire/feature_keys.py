"""The names of the keys of the features: what marked jobs have in Redis beside their payloads."""

from __future__ import annotations

import msgspec


class FeatureKeys(msgspec.Struct, frozen=True):
    """The keys of locks, batches, flows, steps, results and cancels, under one prefix."""

    prefix: str = ""

    def unique(self, digest: str) -> str:
        """Hash, expiring: the lock of the unique jobs with that digest of class and arguments:
        which job holds it (``jid``, ``class``), since when (``at``), and until when that job is
        surely there (``sure``; both epoch milliseconds). Where at most one waits, also the newest
        job (store/scripts/ticket.lua)."""
        return f"{self.prefix}forkq:unique:{digest}"

    def window(self, digest: str) -> str:
        """List, expiring: when the jobs with that digest of class and arguments were pushed lately
        (``throttle``), epoch milliseconds, the newest first."""
        return f"{self.prefix}forkq:throttle:{digest}"

    def pushed(self, jid: str) -> str:
        """String, a day: the job ``jid`` was pushed (``once``). It has the jid of another job if
        that had the lock, and this one is to be pushed if that is gone."""
        return f"{self.prefix}forkq:pushed:{jid}"

    def iteration(self, jid: str) -> str:
        """Hash, expiring: how far that iterable job has come, in Sidekiq's form
        (features/iterable/parts.py)."""
        return f"{self.prefix}it-{jid}"

    def steps(self, jid: str) -> str:
        """Hash, expiring: what that job remembers of its steps (features/steps/parts.py)."""
        return f"{self.prefix}forkq:steps:{jid}"

    def event(self, name: str) -> str:
        """Hash, expiring: the signal that has come, and the jobs that wait for it (signal.lua)."""
        return f"{self.prefix}forkq:event:{name}"

    @property
    def signalled(self) -> str:
        """Set: the events whose waiting jobs the leader wakes (clock/signalled_jobs.py)."""
        return f"{self.prefix}forkq:signalled"

    def batch(self, bid: str) -> str:
        """Hash, expiring: a batch, its numbers and its callbacks (store/scripts/batch.lua)."""
        return f"{self.prefix}forkq:batch:{bid}"

    def batch_ends(self, bid: str) -> str:
        """Bitfield, expiring: how each member of that batch has ended, two bits by its index."""
        return f"{self.prefix}forkq:batch:{bid}:ends"

    @property
    def batches(self) -> str:
        """Sorted set by last change (epoch seconds): the hashes of all batches."""
        return f"{self.prefix}forkq:batches"

    @property
    def batch_counts(self) -> str:
        """Hash: how many batches the leader has counted in its last look, by what they wait for;
        and how many members it has found nowhere (clock/standing_batches.py)."""
        return f"{self.prefix}forkq:batches:counts"

    def of_members(self, bid: str) -> tuple[str, str]:
        """The two keys of a batch."""
        return self.batch(bid), self.batch_ends(bid)

    def flow_steps(self, bid: str) -> str:
        """Hash, expiring: the steps of a batch that is a flow (flow.lua)."""
        return f"{self.prefix}forkq:batch:{bid}:steps"

    @property
    def flows_unfinished(self) -> str:
        """Set: the hashes of flows that the clock goes on with (clock/unfinished_flows.py)."""
        return f"{self.prefix}forkq:flows:unfinished"

    @property
    def notes(self) -> str:
        """Stream, ``to`` and ``effect``: what must happen on the shard of that name ("": here)
        because of what has happened here (features/notes.py). The leader's clock carries it
        there."""
        return f"{self.prefix}forkq:notes"

    def carrier(self, shard: str) -> str:
        """String, expiring: which clock carries the notes of that shard here."""
        return f"{self.prefix}forkq:notes:from:{shard}"

    def result(self, jid: str) -> str:
        """String, expiring: how that job has ended, and what it has returned, or a placeholder
        until then, as JSON (features/results/parts.py)."""
        return f"{self.prefix}forkq:result:{jid}"

    @property
    def results_ended(self) -> str:
        """List: ``OUTCOME JID`` of each job with a result that a script has ended which could not
        know the key of that result. The leader writes it (clock/ended_results.py)."""
        return f"{self.prefix}forkq:results:ended"

    @property
    def doubted(self) -> str:
        """Hash, expiring: digest of a lock -> ``AT PAYLOAD``, the newest push that has met that
        lock after nothing had confirmed it for a minute (clock/doubted_locks.py). AT is the epoch
        second at which it is due ("" for now). Nothing: the lock is only to be freed."""
        return f"{self.prefix}forkq:unique:doubt"

    @property
    def tickets(self) -> str:
        """Sorted set by time (epoch milliseconds): the locks that hold a newest job, which waits
        behind the entry of another one (features/unique/tickets.py)."""
        return f"{self.prefix}forkq:tickets"

    @property
    def cancelled(self) -> str:
        """Hash: what is cancelled, and has not ended yet (features/cancel/parts.py)."""
        return f"{self.prefix}forkq:cancelled"

    @property
    def cancelled_lately(self) -> str:
        """Sorted set by time: the jids of the jobs that have ended as cancelled in the last day."""
        return f"{self.prefix}forkq:cancelled:ended"
