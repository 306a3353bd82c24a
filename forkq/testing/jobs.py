"""The jobs that were pushed in a test, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

from .. import registry
from ..client import transactions
from ..units import plural
from ..wire import times
from ..wire.printable import with_message
from ..wire.times import Moment, due, now, steady
from .expectation import ANY, Expectation, named
from .kills import Kills
from .loops import in_loop_of_test, one_loop
from .recorded_job import RecordedJob
from .recorder import Recorder
from .stack import within

_ENDLESS: Final = 10_000


class RecordedJobs(Recorder):
    """What ``fake`` and ``inline`` record. Thread-safe.

    ``performed`` has the jobs that have run without an error, ``dead`` those that the dead set
    would have, ``cancelled`` those that were cancelled while they waited. As a sequence it has the
    jobs that wait, in the order in which ``drain`` runs them.
    """

    def __iter__(self) -> Iterator[RecordedJob]:
        with self._lock:
            return iter(list(self._waiting))

    def __len__(self) -> int:
        return len(self._waiting)

    def __getitem__(self, place: int) -> RecordedJob:
        return self._waiting[place]

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'job')} recorded by forkq.testing>"

    # What a test asks

    def enqueued(
        self,
        job: object = ANY,
        *,
        args: Any = ANY,
        at: Any = ANY,
        queue: Any = ANY,
        times: int | None = None,
        **keys: Any,
    ) -> list[RecordedJob]:
        """Asserts that such a job waits, and returns all that match.

        ``job`` is a job class, a job function or a registered name. ``at``: seconds or a timedelta
        from the push on, epoch seconds or an aware datetime, each to the second; None is a job that
        waits in its queue. ``times``: exactly so many match. ``keys`` are other keys of the
        payload, such as ``retry=5``. Values are compared by ``==``, so unittest.mock.ANY fits.
        """
        expected = Expectation.of(job, args=args, at=at, queue=queue, **keys)
        found = [one for one in self if not expected.differences(one)]
        if len(found) != times if times is not None else not found:
            held = transactions.held() if transactions.held is not None else ""
            text = expected.complaint(list(self), self.performed, found, times, held)
            raise AssertionError(text)
        return found

    def not_enqueued(self, job: object = ANY, **expected: Any) -> None:
        """Asserts that no such job waits; the parameters are those of ``enqueued``."""
        self.enqueued(job, times=0, **expected)

    # What a test does

    def drain(self, what: object = ANY, *, until: Moment | None = None, check: bool = True) -> int:
        """Runs the waiting jobs as a child does, and those that they push, until none is left.
        Returns the number of runs.

        A scheduled job and a retry run in the order of their times, without waiting for them: the
        time that forkq tells (not ``time.time()``) moves on to theirs. ``what``: only the jobs of
        this job class, job function, registered name or queue. ``until``: only what is due until
        then (seconds from now, a timedelta, epoch seconds or an aware datetime); in the block of
        ``freeze_time`` only what is due. A job that this process has not defined stays, unless
        ``what`` names it: another app runs it.

        With ``check`` it raises AssertionError at the end if a job was given up for its errors.
        """
        limit = now() if times.is_frozen() else float("inf")
        limit = limit if until is None else due(until)
        runs = self._run_all(_filter(what), limit)
        if check:
            self.check()
        return runs

    async def adrain(
        self, what: object = ANY, *, until: Moment | None = None, check: bool = True
    ) -> int:
        """Does what ``drain`` does, in an ``async`` test: an ``async def`` job runs in the loop of
        the test, with the sessions and pools of its fixtures. The rest runs in a thread."""
        with in_loop_of_test():
            return await asyncio.to_thread(self.drain, what, until=until, check=check)

    def perform_one(self, what: object = ANY, *, check: bool = True) -> RecordedJob | None:
        """Runs the next waiting job, once, and returns it; None if none waits. ``what`` and
        ``check`` are those of ``drain``; a job that failed and will be retried is no error."""
        with within(self), times.kept():
            job = self._take(_filter(what), float("inf"))
            if job is not None:
                self._perform_due(job)
        if check:
            self.check()
        return job

    def clear(self) -> None:
        """Forgets all jobs, those that have run, too."""
        with self._lock:
            for each in (self._waiting, self.performed, self.dead, self.cancelled, self._given_up):
                each.clear()
            self.results.clear()

    def check(self) -> None:
        """Raises AssertionError if a job was given up for its errors since the last check."""
        given_up, self._given_up = self._given_up, []
        if given_up:
            lines = [
                f"  {job}: {with_message(type(error).__name__, str(error))}"
                for job, error in given_up
            ]
            text = f"{plural(len(lines), 'job')} failed and will not be retried any more:"
            raise AssertionError("\n".join((text, *lines))) from given_up[-1][1]

    def _run_all(self, fits: Callable[[RecordedJob], bool], until: float) -> int:
        runs = 0
        with within(self), times.kept(), one_loop():
            while (job := self._take(fits, until)) is not None:
                if runs == _ENDLESS:
                    raise AssertionError(_endless(job))
                self._perform_due(job)
                runs += 1
        return runs

    def _perform_due(self, job: RecordedJob) -> None:
        if job.at is None:
            self._perform(job)
            return
        if job.at > now():
            times.follow(job.at, steady())
        self._perform(job.stamped(now()))


class JobsRunTwice(RecordedJobs):
    """Recorded jobs each of whose runs is done twice, unless it fails: as after a kill of its
    process, before its end is written."""

    def _kills_of_run(self) -> Kills | None:
        """Each run is killed at its end."""
        return Kills()


def _filter(what: object) -> Callable[[RecordedJob], bool]:
    if what is ANY:
        return lambda job: registry.find(job.name) is not None
    if isinstance(what, str):
        return lambda job: what in (job.queue, job.name)
    name = named(what)
    return lambda job: job.name == name


def _endless(job: RecordedJob) -> str:
    return (
        f"drain has run {_ENDLESS:,} jobs, and {job} still waits: if a job pushes itself again, "
        "or snoozes, pass until=, the time that the test is about"
    )
