"""What can be done with jobs of a set: with those that are selected, or all of a filter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from .. import api
from ..api.changes import MOST_UNDONE, UNDO_TIME
from ..api.filters import EVERY
from ..api.find import find_among
from ..api.job_holder import JobHolder
from ..cancelling import too_many
from ..errors import ForkqError
from ..features.cancel.parts import MOST
from ..store.find_job import Location
from ..units import format_count, format_duration, plural
from ..values import replace
from .features.locks import without_locks
from .plans import ActionDone, Plan
from .texts import name as shown

PATHS: Final[dict[Location, str]] = {
    "dead": "/dead", "retrying": "/retries", "scheduled": "/scheduled",
}  # fmt: skip
WORDS: Final[dict[Location, str]] = {
    "dead": "the dead set", "retrying": "the retries", "scheduled": "the schedule",
}  # fmt: skip
_SECONDS: Final = 1.5  # for counting before the question
_MOST_JIDS: Final = 1000  # for the audit log
_NO_LEADER: Final = "No tree runs, so none is removed until one does"
_NONE_LEFT: Final = "Nothing was done: none of these jobs is there any more."


class ChosenJobs(msgspec.Struct, frozen=True):
    """The jobs that an action means: ``count`` of them, ``counted`` if that is all of them.
    ``by_filter``: all that a filter names, and not those that a person has selected. ``queue`` has
    them, if they are not those of a set."""

    server: api.Server
    location: Location
    where: api.Filter
    count: int
    jids: tuple[str, ...]
    counted: bool = True
    by_filter: bool = False
    queue: str = ""

    @property
    def jobs(self) -> JobHolder:
        if self.queue:
            return api.Queue(self.queue, self.server)
        return api.job_set(self.location, self.server)

    @property
    def source(self) -> str:
        """The place of the jobs, in words."""
        return f"the queue {shown(self.queue)}" if self.queue else WORDS[self.location]

    @property
    def text(self) -> str:
        """How many jobs there are, in words."""
        return ("" if self.counted else "at least ") + plural(self.count, "job")


def selected(server: api.Server, location: Location, keys: Sequence[str]) -> ChosenJobs:
    """The jobs of a set with these ``JobEntry.key`` that are still there."""
    jobs = api.job_set(location, server)
    found = [entry for key in keys if (entry := jobs.get(key)) is not None]
    where = api.Filter(keys=[entry.key for entry in found])
    return ChosenJobs(server, location, where, len(found), tuple(entry.jid for entry in found))


def one(entry: api.JobEntry) -> ChosenJobs:
    """This job alone, which waits in a queue or in a set."""
    where = api.Filter(keys=[entry.key])
    queue = entry.queue if entry.location == "queued" else ""
    return ChosenJobs(entry.server, entry.location, where, 1, (entry.jid,), queue=queue)


def filtered(server: api.Server, location: Location, where: api.Filter) -> ChosenJobs:
    """All jobs of a filter, counted for a moment."""
    jobs, everything = api.job_set(location, server), where == api.Filter()
    end, count, jids = time.monotonic() + _SECONDS, 0, list[str]()
    for entry in jobs.scan(where):
        count += 1
        if len(jids) < _MOST_JIDS:
            jids.append(entry.jid)
        elif everything:
            break
        if time.monotonic() > end:
            return ChosenJobs(server, location, where, count, tuple(jids), False, True)
    return ChosenJobs(
        server, location, where, jobs.size if everything else count, tuple(jids), True, True
    )


def retry(chosen: ChosenJobs) -> Plan:
    details = ("They go to their queues now.",)
    jobs = api.job_set(chosen.location, chosen.server)
    return _plan(chosen, "Retry", "Retried", lambda: jobs.retry_all(chosen.where), details)


def delete(chosen: ChosenJobs) -> Plan:
    keeps = not chosen.by_filter or chosen.jobs.size <= MOST_UNDONE
    details = (f"They can be put back for {UNDO_TIME}.",) if keeps else ()

    def do() -> api.Outcome:
        return chosen.jobs.delete_all(chosen.where, undo=keeps)

    return _plan(chosen, "Delete", "Deleted", do, details, danger=not keeps)


def kill(chosen: ChosenJobs) -> Plan:
    loss = loss_of_dead_jobs(chosen.server, chosen.count)
    details = ("They go to the dead set, and are not tried again.", *filter(None, [loss]))

    def do() -> api.Outcome:
        return chosen.jobs.kill_all(chosen.where)

    plan = _plan(chosen, "Kill", "Killed", do, details)
    return replace(plan, ask=True) if loss and chosen.count else plan


def cancel(chosen: ChosenJobs) -> Plan:
    """Cancels jobs that wait. Those that were selected are cancelled wherever they are by then."""
    if chosen.count > MOST:
        raise too_many()

    def do() -> api.Outcome:
        if chosen.by_filter:
            return chosen.jobs.cancel_all(chosen.where)
        jids = [jid for jid in chosen.jids if jid]
        api.cancel_jobs(jids, where=chosen.server)
        return api.Outcome(done=len(jids), refused=len(chosen.jids) - len(jids))

    return _plan(chosen, "Cancel", "Cancelled", do, _what_becomes(chosen), danger=True)


def _what_becomes(chosen: ChosenJobs) -> tuple[str, ...]:
    """What a person should know before jobs are cancelled."""
    which = (f"It is the job {shown(chosen.jids[0])}.",) if len(chosen.jids) == 1 else ()
    leads = api.cron.has_leader(chosen.server)
    removed = "The leader removes them within seconds" if leads else _NO_LEADER
    return (*which, f"{removed}; one that runs by then gets forkq.Cancelled.")


def cancel_running(server: api.Server, jid: str) -> Plan:
    """Cancels a job that runs. Raises ForkqError if it does not, or if Sidekiq runs it."""
    job = api.WorkSet(server).find(jid)
    if job is None:
        raise ForkqError("The job has ended meanwhile, or no heartbeat has told of it yet.")
    process = api.ProcessSet(server).get(job.identity)
    if process is not None and not process.master:
        raise ForkqError("It runs in a process of Sidekiq, which does not hear of it.")

    def do() -> ActionDone:
        api.cancel(jid, where=server)
        text = f"Cancelled {shown(job.job)}: it is told within a second."
        return ActionDone(text, [jid], count=1)

    details = (
        f"It is the job {shown(jid)}. It gets forkq.Cancelled, and ends for good: no retry.",
        f"A call that blocks ends first: `forkq cancel {shown(jid)} --force` ends its child.",
    )
    says = f"Cancel {shown(job.job)}, which runs for {format_duration(job.elapsed)}?"
    return Plan(says, do, "Cancel 1 job", "/busy", danger=True, details=details)


def loss_of_dead_jobs(server: api.Server, more: int = 0) -> str:
    """What a person should know before ``more`` jobs go to the dead set, or after they went: which
    jobs the next burial deletes. Empty if it deletes none for them."""
    dead = api.DeadSet(server)
    bounds, size = dead.bounds, dead.size + more
    if bounds is None or size <= bounds.size:
        return ""
    return (
        f"The dead set keeps {plural(bounds.size, 'job')}: of {format_count(size)}, forkq deletes "
        f"the oldest {format_count(size - bounds.size)} for good when the next job dies."
    )


def move(chosen: ChosenJobs, to: str) -> Plan:
    queue = api.Queue(to, chosen.server).name
    warning = unserved(chosen.server, queue)
    details = (f"They go to the queue {shown(queue)}.", *warning)

    def do() -> api.Outcome:
        return chosen.jobs.move_all(queue, chosen.where)

    plan = _plan(chosen, "Move", "Moved", do, details)
    return replace(plan, ask=True) if warning else plan


def unserved(server: api.Server, queue: str) -> tuple[str, ...]:
    """What a person should know of a queue before jobs go there; empty if a process serves it."""
    if any(process.serves(queue) for process in api.processes(server)):
        return ()
    new = () if queue in api.queue_names(server) else ("There is no queue of this name yet.",)
    return (*new, "No process serves it: the jobs wait there until one does.")


def undo(server: api.Server, token: str) -> Plan:
    """Restores what was deleted under ``token``."""

    def do() -> ActionDone:
        outcome = api.undo(token, where=server)
        text = f"Put {plural(outcome.done, 'job')} back.{_remainder(outcome)}"
        return ActionDone(text, count=outcome.done)

    return Plan("Put the deleted jobs back?", do, ask=False)


def _plan(
    chosen: ChosenJobs, verb: str, past: str, do: Callable[[], api.Outcome],
    details: tuple[str, ...], *, danger: bool = False,
) -> Plan:  # fmt: skip
    of = f"of {chosen.source}"

    def act() -> ActionDone:
        outcome = do()
        undo = ("/undo", {"token": outcome.undo}) if outcome.undo else None
        text = f"{past} {plural(outcome.done, 'job')} {of}.{_remainder(outcome)}"
        return ActionDone(text, chosen.jids, undo, outcome.done)

    back = PATHS.get(chosen.location, "/queues")
    if chosen.count == 0 and chosen.counted:
        return Plan(f"No job {of} is left.", lambda: ActionDone(_NONE_LEFT), back=back, ask=False)
    ask = chosen.by_filter or chosen.count != 1 or danger
    says, button = f"{verb} {chosen.text} {of}?", f"{verb} {chosen.text}"
    return Plan(says, act, button, back, ask, danger, details)


def _remainder(outcome: api.Outcome) -> str:
    gone = f" {plural(outcome.gone, 'job')} had already left." if outcome.gone else ""
    refused = (
        f" {plural(outcome.refused, 'payload')} cannot run: no job." if outcome.refused else ""
    )
    lacking = without_locks(outcome.unlocked)
    return gone + refused + (f" {lacking[0].upper()}{lacking[1:]}." if lacking else "")


def selected_in_queue(server: api.Server, queue: str, keys: Sequence[str], at: int) -> ChosenJobs:
    """The jobs of a queue with these ``JobEntry.key`` that are still there. The last of them had
    about the number ``at``; 0 is the next job."""
    found = find_in_queue(server, queue, keys, at)
    where = api.Filter(keys=[entry.key for entry in found], near=at)
    jids = tuple(entry.jid for entry in found)
    return ChosenJobs(server, "queued", where, len(found), jids, queue=queue)


def all_in_queue(server: api.Server, queue: str) -> ChosenJobs:
    """All jobs of the queue."""
    size = api.Queue(queue, server).size
    return ChosenJobs(server, "queued", EVERY, size, (), by_filter=True, queue=queue)


def find_in_queue(
    server: api.Server, queue: str, keys: Sequence[str], at: int
) -> list[api.JobEntry]:
    """The jobs with these keys: first those around the number ``at``, then nearer to the head."""
    return list(api.Queue(queue, server).scan(api.Filter(keys=keys, near=at)))


def find_jid(server: api.Server, queue: str, jid: str) -> api.JobEntry | None:
    """The job of that id, if it runs or waits in the queue, or runs in a process of Sidekiq. Reads
    no other queue."""
    return find_among(server, jid, ("running", "queued"), (queue,))
