"""Is anything wrong? What the checks find in the facts, in words, for the line on top of every page
and for `forkq doctor`. Things of one kind are one sentence, however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from .. import api
from ..store.damage import about
from ..store.held_classes import DEADLY_DEATHS
from ..units import format_duration, format_share, plural
from ..values import replace
from ..wire.printable import printable
from . import checks
from .checks import Check
from .facts import Facts, OverdueJobs
from .processes import blocks_the_loop
from .queue_acts import path_of
from .texts import name

MOST: Final = 3
BEHIND: Final = checks.BEHIND.limit  # seconds that a job may wait
_LATELY: Final = 10  # minutes
_SURGE: Final = 5  # times as many as before
_WINDOW: Final = 15  # minutes: two of them are half an hour
_SHOWN: Final = 3  # names in one sentence


class Problem(msgspec.Struct, frozen=True):
    """``says`` is a sentence; ``path`` is the page of the web UI that shows more. ``urgent``: a
    person must act now; else it may come to that. ``shard``: where, if it is another one than that
    of the page. It concerns ``jobs`` jobs, which are ``late`` seconds late. ``key`` is the same as
    long as it is the same problem, also with other figures. ``count``: how many problems it tells
    of."""

    says: str
    path: str = "/"
    urgent: bool = True
    shard: str = ""
    jobs: float = 0
    late: float = 0.0
    key: str = ""
    count: int = 1

    @property
    def weight(self) -> float:
        """How bad the problem is: of two that are urgent alike, the one with the greater weight is
        worse."""
        return self.jobs * self.late


def problems(facts: Facts, most: int = MOST) -> list[Problem]:
    """The worst problems: the urgent ones first, and then by jobs and lateness."""
    found = worst_first(found_by(facts).values())
    rest = len(found) - most
    says = f"and {plural(rest, 'problem')} more"
    more = Problem(says, "/", urgent=False, key="more", count=rest)
    return [*found[:most], more] if rest > 0 else found


def worst_first(found: Iterable[Problem]) -> list[Problem]:
    return sorted(found, key=lambda one: (not one.urgent, -one.weight))


def found_by(facts: Facts, patience: float = checks.IDLE.limit) -> dict[Check, Problem]:
    """The problem that each check finds. ``patience``: for how many seconds free threads may take
    no job."""
    found = {check: find(facts) for check, find in _FINDERS.items()}
    found[checks.IDLE] = _idle(facts, patience)
    return {
        check: replace(one, key=f"{check.name} {one.key}".strip())
        for check in checks.CHECKS
        if (one := found[check]) is not None
    }


def well(facts: Facts) -> str:
    """The sentence about a service of which nothing is wrong."""
    known = [_processes(len(facts.processes)), plural(len(facts.states), "queue")]
    if facts.leader:
        known.append(f"clock on {name(facts.leader)}")
    return f"All well: {', '.join(known)}."


# Redis


def _memory(facts: Facts) -> Problem | None:
    memory = facts.memory
    if memory.share < checks.REDIS_MEMORY.limit:
        return None
    says = f"Redis is {format_share(memory.share)} full ({memory.policy})"
    return _of_all_jobs(says, urgent=memory.share >= checks.NO_ROOM)


def _replica(facts: Facts) -> Problem | None:
    if not facts.replica_of:
        return None
    says = f"Redis is a replica of {facts.replica_of}, which takes no writes"
    return _of_all_jobs(f"{says}: give the address of the master", urgent=True)


def _of_all_jobs(says: str, *, urgent: bool) -> Problem:
    return Problem(says, urgent=urgent, jobs=1, late=float("inf"))


def _damaged(facts: Facts) -> Problem | None:
    if not (damaged := facts.slow.damaged):
        return None
    if len(damaged) == 1:
        [key] = damaged
        return Problem(f"{name(key)} is damaged: {about(key)['remedy']}", key=key)
    return Problem(f"{len(damaged)} keys are damaged ({_names(damaged)}): `forkq stats` names them")


# Processes and the clock


def _fleet(facts: Facts) -> Problem | None:
    if facts.processes:
        return None
    overdue = facts.overdue or OverdueJobs()
    jobs, late = facts.stats.enqueued + overdue.jobs, max(_longest_wait(facts), overdue.seconds)
    waiting = f"{plural(jobs, 'job')} waiting, " if jobs else ""
    says = f"no process runs jobs: {waiting}start forkq"
    return Problem(says, "/busy", urgent=jobs > 0, jobs=jobs, late=late)


def _longest_wait(facts: Facts) -> float:
    return max((queue.latency for queue in facts.stats.queues if queue.size), default=0.0)


def _silent(facts: Facts) -> Problem | None:
    limit = checks.SILENT_PROCESSES.limit
    silent = [one for one in facts.processes if one.silent_for > limit]
    if not silent:
        return None
    longest = max(one.silent_for for one in silent)
    verb = "is silent" if len(silent) == 1 else "are silent, the longest"
    return Problem(
        f"{_who(silent)} {verb} for {format_duration(longest)}",
        "/busy",
        urgent=len(silent) == len(facts.processes),
        jobs=sum(one.busy for one in silent),
        late=longest,
        key=silent[0].identity if len(silent) == 1 else "many",
    )


def _refused(facts: Facts) -> Problem | None:
    reasons = Counter(one.refused for one in facts.processes if one.refused)
    if not reasons:
        return None
    [(why, count)] = reasons.most_common(1)
    others = reasons.total() - count
    more = f"; and other things ({_processes(others)})" if others else ""
    says = f"Redis refuses something: {printable(why)} ({_processes(count)}){more}"
    jobs = facts.stats.enqueued
    return Problem(says, "/busy", jobs=jobs, late=_longest_wait(facts), key=why)


def _blocked(facts: Facts) -> Problem | None:
    """The problem that event loops are blocked, the one first for which it lasts longest."""
    blocking = [(one.blocking, one) for one in facts.processes if one.blocking is not None]
    late = [each for each in blocking if facts.at - each[0].since > checks.BLOCKED.limit]
    if not late:
        return None
    job, process = min(late, key=lambda each: each[0].since)
    more = f", and {_processes(len(late) - 1)} more" if len(late) > 1 else ""
    seconds, busy = facts.at - job.since, sum(one.busy for _, one in late)
    where = f"for {format_duration(seconds)}, in {printable(job.place)}"
    says = f"{blocks_the_loop(job)} of {_who([process])}{more}, {where}"
    return Problem(says, "/busy", urgent=False, jobs=busy, late=seconds, key=process.identity)


def _leader(facts: Facts) -> Problem | None:
    """The problem that no clock leads. Without any process of forkq, a clock is missed only by what
    is scheduled or retried."""
    of_forkq = any(process.master for process in facts.processes)
    missed = not facts.processes and facts.stats.scheduled + facts.stats.retry > 0
    if facts.leader or not (of_forkq or missed):
        return None
    overdue = facts.overdue or OverdueJobs()
    says = "no clock leads: nothing scheduled or retried becomes due"
    return Problem(says, "/busy", jobs=overdue.jobs, late=overdue.seconds)


def _due(facts: Facts) -> Problem | None:
    late = facts.overdue or OverdueJobs()
    kinds = [
        *([plural(late.retries, "retry", "retries")] if late.retries else ()),
        *([plural(late.scheduled, "scheduled job")] if late.scheduled else ()),
    ]
    if not kinds:
        return None
    verb, where = ("has", "its queue") if late.jobs == 1 else ("have", "their queues")
    says = f"{' and '.join(kinds)}, due for up to {format_duration(late.seconds)}"
    says += f", {verb} not been moved to {where}"
    path = "/retries" if late.retries else "/scheduled"
    return Problem(says, path, urgent=False, jobs=late.jobs, late=late.seconds)


def _latency(facts: Facts) -> Problem | None:
    slow = [one for one in facts.processes if one.identity in facts.slow_trips]
    if not slow:
        return None
    longest = format_duration(max(one.rtt_us for one in slow) / 1e6)
    says = f"a round trip takes {'' if len(slow) == 1 else 'up to '}{longest} from {_who(slow)}"
    return Problem(says, "/busy", urgent=False)


def _who(found: Sequence[api.Process]) -> str:
    if len(found) == 1:
        return f"process {found[0].pid} on {name(found[0].hostname)}"
    hosts = sorted({one.hostname for one in found})
    where = f"on {name(hosts[0])}" if len(hosts) == 1 else f"of {len(hosts)} hosts"
    return f"{_processes(len(found))} {where}"


def _processes(count: int) -> str:
    return plural(count, "process", "processes")


# Queues


def unserved(facts: Facts) -> Problem | None:
    """The queues with jobs from which no process fetches, also while there is no process at all."""
    found = [state for state in _waiting(facts) if not _is_served(facts, state)]
    return _of_queues(facts, found, _say_unserved, urgent=True)


def _unserved(facts: Facts) -> Problem | None:
    return unserved(facts) if facts.processes else None


def _say_unserved(of: _Queues) -> str:
    return f"no process serves {of.which}: {of.jobs} waiting, the next for {of.wait}"


def _paused(facts: Facts) -> Problem | None:
    found = [state for state in _waiting(facts) if state.paused and _is_served(facts, state)]
    return _of_queues(facts, found, _say_paused)


def _say_paused(of: _Queues) -> str:
    verb = "is" if of.count == 1 else "are"
    return f"{of.which} {verb} paused: {of.jobs} waiting, the next for {of.wait}"


def _idle(facts: Facts, patience: float) -> Problem | None:
    found = [state for state in _waiting(facts) if _stands_still(facts, state, patience)]
    if not found:
        return None
    still = format_duration(min(facts.flows[state.name].still for state in found))
    free = plural(max(facts.fleet.crew(one.name).free for one in found), "thread")

    def say(of: _Queues) -> str:
        its = "its" if of.count == 1 else "their"
        return f"{free} free for {of.which}, but take none of {its} {of.jobs} for {still}"

    return _of_queues(facts, found, say, urgent=True)


def _stands_still(facts: Facts, state: api.QueueState, patience: float) -> bool:
    flow = facts.flows.get(state.name)
    limit = checks.IDLE.limit
    return flow is not None and flow.still >= patience and facts.latency(state.name) > limit


def _behind(facts: Facts) -> Problem | None:
    """The late queues that a worse check does not name."""
    found = [
        state
        for state in _waiting(facts)
        if facts.latency(state.name) > BEHIND
        and not state.paused
        and _is_served(facts, state)
        and not _stands_still(facts, state, checks.IDLE.limit)
    ]
    why = [hold.text for one in found if len(found) == 1 for hold in facts.fleet.holds(one)[:1]]

    def say(of: _Queues) -> str:
        verb = "is" if of.count == 1 else "are up to"
        return "; ".join((f"{of.which} {verb} {of.wait} behind: {of.jobs} waiting", *why))

    return _of_queues(facts, found, say)


def _suspects(facts: Facts) -> Problem | None:
    found = [
        replace(state, size=state.suspects)
        for state in facts.states
        if state.suspects and _is_served(facts, state) and not facts.fleet.crew(state.name).of_forkq
    ]
    return _of_queues(facts, found, _say_suspects)


def _say_suspects(of: _Queues) -> str:
    return f"no process of forkq runs the suspects of {of.which}: {of.jobs} waiting"


def _waiting(facts: Facts) -> list[api.QueueState]:
    return [state for state in facts.states if state.size]


def _is_served(facts: Facts, state: api.QueueState) -> bool:
    """Whether a process that fetches serves the queue."""
    crew = facts.fleet.crew(state.name)
    return crew.size > crew.quiet


class _Queues(msgspec.Struct, frozen=True):
    """Some queues in words: ``which`` they are, their ``jobs``, and the longest ``wait``."""

    count: int
    which: str
    jobs: str
    wait: str


def _of_queues(
    facts: Facts,
    found: Sequence[api.QueueState],
    say: Callable[[_Queues], str],
    *,
    urgent: bool = False,
) -> Problem | None:
    """One sentence about these queues; None if there are none. It leads to the page of the only
    queue, or to the page of all queues."""
    if not found:
        return None
    worst = sorted(found, key=lambda one: -one.size * facts.latency(one.name))
    names = [one.name for one in worst]
    jobs, wait = sum(one.size for one in found), max(map(facts.latency, names))
    only = names[0] if len(names) == 1 else ""
    which = f"queue {name(only)}" if only else f"{len(names):,} queues ({_names(names)})"
    says = say(_Queues(len(names), which, plural(jobs, "job"), format_duration(wait)))
    path = path_of(only) if only else "/queues"
    return Problem(says, path, urgent, jobs=jobs, late=wait, key=only or "many")


# Classes, and what has failed


def _held(facts: Facts) -> Problem | None:
    if not (names := [one.name for one in facts.held]):
        return None
    deaths = f"killed {DEADLY_DEATHS} processes within a minute"
    if len(names) == 1:
        says = f"class {name(names[0])} has {deaths}; its jobs run alone"
        return Problem(says, "/dead", key=names[0])
    says = f"each of {len(names)} classes ({_names(names)}) has {deaths}; their jobs run alone"
    return Problem(says, "/dead", key="many")


def _surge(facts: Facts) -> Problem | None:
    """The problem that classes fail much more often than they did."""
    found: list[tuple[int, int, int, str]] = []
    for one in facts.slow.hour.classes:
        before = [point.failed for point in one.points[:-_LATELY]]
        failed, earlier = sum(point.failed for point in one.points[-_LATELY:]), sum(before)
        usual = earlier / max(1, len(before)) * _LATELY
        if failed >= checks.SURGE.limit and failed > _SURGE * usual:
            found.append((failed, earlier, len(before), one.job))
    if not found:
        return None
    failed, earlier, minutes, job = max(found)
    says = f"{plural(failed, 'run')} of {name(job)} failed in {_LATELY} min"
    says += f", {earlier:,} in the {minutes} min before{_and_classes(len(found) - 1)}"
    return Problem(says, "/failures", jobs=failed, late=_LATELY * 60, key=job)


def _failing(facts: Facts) -> Problem | None:
    """The problem that most runs of a class failed, in each half of half an hour."""
    found = [
        (_share(one.points[-_WINDOW:]), one.failed, one.job)
        for one in facts.slow.hour.classes
        if min(_share(one.points[-_WINDOW:]), _share(one.points[-2 * _WINDOW : -_WINDOW]))
        > checks.FAILING.limit
    ]
    if not found:
        return None
    share, failed, job = max(found)
    says = f"{format_share(share)} of the runs of {name(job)} fail{_and_classes(len(found) - 1)}"
    late = 2 * _WINDOW * 60
    return Problem(says, "/failures", urgent=False, jobs=failed, late=late, key=job)


def _share(points: Sequence[api.Point]) -> float:
    runs = sum(point.processed for point in points)
    return sum(point.failed for point in points) / runs if runs else 0.0


def _and_classes(more: int) -> str:
    return f"; {plural(more, 'class', 'classes')} more like it" if more else ""


def _dead(facts: Facts) -> Problem | None:
    if not facts.died:
        return None
    says = f"{plural(facts.died, 'job')} died in the last hour"
    return Problem(says, "/dead", urgent=False, jobs=facts.died)


def _crashes(facts: Facts) -> Problem | None:
    found = {why: count for why, count in facts.crashes.items() if count > checks.CRASHES.limit}
    if not found:
        return None
    told = ", ".join(f"{name(why)}: {count:,}" for why, count in sorted(found.items()))
    return Problem(f"children die ({told} in 15 min)", "/busy", key=" ".join(sorted(found)))


# Periodic jobs


def _periodic(facts: Facts) -> Problem | None:
    limit = checks.PERIODIC.limit
    late = {one: seconds for one, seconds in facts.slow.late_ticks.items() if seconds > limit}
    if not late:
        return None
    has = "has" if len(late) == 1 else "have"
    says = f"{_periodic_jobs(sorted(late))} {has} not been enqueued"
    says += f", due for {format_duration(max(late.values()))}"
    return Problem(says, "/cron", urgent=False, jobs=len(late), late=max(late.values()))


def _asleep(facts: Facts) -> Problem | None:
    names = facts.slow.asleep
    if not names or not facts.processes:
        return None
    verb = "is" if len(names) == 1 else "are"
    says = f"{_periodic_jobs(names)} {verb} asleep: no process runs the app"
    return Problem(says, "/cron", urgent=False)


def _periodic_jobs(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"periodic job {name(names[0])}"
    return f"{len(names):,} periodic jobs ({_names(names)})"


def _names(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(map(name, names[:_SHOWN])) + more


_FINDERS: Final[dict[Check, Callable[[Facts], Problem | None]]] = {
    checks.REDIS_MEMORY: _memory,
    checks.REPLICA: _replica,
    checks.DAMAGED: _damaged,
    checks.FLEET: _fleet,
    checks.SILENT_PROCESSES: _silent,
    checks.REFUSED: _refused,
    checks.BLOCKED: _blocked,
    checks.LEADER: _leader,
    checks.DUE: _due,
    checks.UNSERVED: _unserved,
    checks.BEHIND: _behind,
    checks.PAUSED: _paused,
    checks.SUSPECTS: _suspects,
    checks.HELD: _held,
    checks.SURGE: _surge,
    checks.FAILING: _failing,
    checks.DEAD: _dead,
    checks.CRASHES: _crashes,
    checks.LATENCY: _latency,
    checks.PERIODIC: _periodic,
    checks.ASLEEP: _asleep,
}
