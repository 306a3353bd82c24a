"""What may be wrong with a running service: one list for the line on top of every page, for
`forkq doctor` and for the alerts of deploy/prometheus-rules.yaml.

Values only: ``problems.py`` looks for each of them in the facts, and a test compares the alerts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..wire.lease import SILENT


class Alert(msgspec.Struct, frozen=True):
    """A rule of Prometheus for a check, and the limit in its query."""

    name: str
    limit: float
    critical: bool = False


class Check(msgspec.Struct, frozen=True):
    """``name`` is that of `forkq doctor`. ``measures`` is compared with ``limit``: what is greater
    is a problem. ``words`` are in its sentence, and in the summary of each alert. The doctor and
    the alerts say ``why`` it matters, and the ``remedy``. ``critical``: a person must act now; else
    it may come to that. ``well`` is what the doctor says if all is well."""

    name: str
    measures: str
    limit: float
    words: str
    why: str
    remedy: str
    well: str
    critical: bool = False
    alerts: tuple[Alert, ...] = ()


REDIS_MEMORY: Final = Check(
    name="redis-memory",
    measures="the share of its memory that Redis uses; at 95% it is critical",
    limit=0.75,
    words="full",
    why="a full Redis refuses every push",
    remedy="raise maxmemory, let jobs run, or delete dead ones",
    well="Redis has room",
    alerts=(
        Alert("ForkqRedisIsNearlyFull", 0.75), Alert("ForkqRedisIsFull", 0.95, critical=True)
    ),
)  # fmt: skip
NO_ROOM: Final = 0.95

REPLICA: Final = Check(
    name="replica",
    measures="whether this Redis is a replica",
    limit=0,
    words="Redis is a replica",
    why="a replica takes no writes",
    remedy="give the address of the master",
    well="Redis is no replica",
    critical=True,
)
DAMAGED: Final = Check(
    name="damaged",
    measures="keys that hold another type than forkq stores there",
    limit=0,
    words="damaged",
    why="the queue or set of such a key does not work",
    remedy="move the key away, as `forkq stats` says it",
    well="no key of forkq holds another type",
    critical=True,
)
FLEET: Final = Check(
    name="fleet",
    measures="processes with a heartbeat, of forkq or Sidekiq; none is critical while jobs wait",
    limit=0,
    words="no process runs jobs",
    why="no job runs",
    remedy="start forkq; if it runs, see its log and `forkq status`",
    well="processes run jobs",
    critical=True,
    alerts=(Alert("ForkqHasNoChildren", 0, critical=True),),
)
SILENT_PROCESSES: Final = Check(
    name="silent",
    measures="seconds since the last heartbeat of a process",
    limit=SILENT,
    words="silent",
    why="its jobs may hang; forkq's master replaces such a child after a minute",
    remedy="see its log and its host; `forkq processes` lists them",
    well="every process has a recent heartbeat",
    alerts=(Alert("ForkqChildIsSilent", SILENT),),
)
REFUSED: Final = Check(
    name="refused",
    measures="processes to which Redis refuses something",
    limit=0,
    words="Redis refuses",
    why="such a process takes no jobs, or cannot settle them",
    remedy="`forkq status` on its host says what, and the remedy",
    well="Redis refuses nothing to any process",
    critical=True,
    alerts=(Alert("ForkqRedisRefuses", 0, critical=True),),
)
BLOCKED: Final = Check(
    name="loop",
    measures="seconds for which a job, or a callback of none, has blocked an event loop",
    limit=5,
    words="blocks the event loop",
    why="no other coroutine of that process goes on",
    remedy="mend the place, or run it in a thread: `await asyncio.to_thread(...)`",
    well="no event loop is blocked",
)
LEADER: Final = Check(
    name="leader",
    measures="clocks that hold the leader's lease; processes of Sidekiq need none",
    limit=0,
    words="no clock leads",
    why="without a leader no scheduled or periodic job and no retry is enqueued",
    remedy="start forkq; if it runs, the log of its clock says why Redis refuses the lease",
    well="a clock leads, or none is missed",
    critical=True,
    alerts=(Alert("ForkqHasNoLeader", 0, critical=True),),
)
DUE: Final = Check(
    name="due",
    measures="seconds for which scheduled jobs and retries have been due",
    limit=60,
    words="not been moved to",
    why="scheduled jobs and retries wait",
    remedy="see the log of the clock on the leader's host",
    well="no scheduled job or retry is late",
    alerts=(Alert("ForkqClockIsLate", 60),),
)
UNSERVED: Final = Check(
    name="queues",
    measures="queues with waiting jobs from which no living process fetches",
    limit=0,
    words="no process serves",
    why="their jobs wait for ever",
    remedy="add them to a capsule, start the service that has them, or delete them",
    well="all queues with waiting jobs are served",
    critical=True,
    alerts=(Alert("ForkqQueueIsNotServed", 0, critical=True),),
)
IDLE: Final = Check(
    name="idle",
    measures="seconds in which free threads took no job of a queue that nothing holds",
    limit=30,
    words="but take none",
    why="the jobs wait beside threads that could run them",
    remedy="see the logs of the processes that serve it, and what they last said of Redis",
    well="no free thread stands beside a job that waits",
    critical=True,
)
BEHIND: Final = Check(
    name="behind",
    measures="seconds for which the next job of a queue has waited",
    limit=300,
    words="behind",
    why="jobs come faster than they run, or are held by a limit or a rate",
    remedy="see `forkq stats` and `forkq limits`; add children, or raise the limit",
    well="no queue is late",
    alerts=(Alert("ForkqQueueIsLate", 300),),
)
PAUSED: Final = Check(
    name="paused",
    measures="paused queues with jobs",
    limit=0,
    words="paused",
    why="none of their jobs starts",
    remedy="`forkq resume QUEUE`",
    well="no queue with jobs is paused",
)
SUSPECTS: Final = Check(
    name="suspects",
    measures="queues with suspects that no process of forkq serves; Sidekiq's run none",
    limit=0,
    words="no process of forkq runs",
    why="suspects wait until one serves their queue; after an hour the clock returns them to it",
    remedy="start a process of forkq for these queues",
    well="no suspect waits for a process of forkq",
)
HELD: Final = Check(
    name="held",
    measures="classes whose jobs run alone because they killed process after process",
    limit=0,
    words="alone",
    why="each has killed 5 processes within 60 s",
    remedy="mend the class; `forkq classes release NAME` runs its jobs beside others again",
    well="no class is held",
    critical=True,
)
SURGE: Final = Check(
    name="surge",
    measures="failed runs of a class in 10 minutes, if they are 5 times as many as before",
    limit=20,
    words="failed in 10 min",
    why="something has changed for this class",
    remedy="the lines `failed` in the log name the errors",
    well="no class fails much more often than before",
    critical=True,
)
FAILING: Final = Check(
    name="failing",
    measures="the share of failed runs of a class, for half an hour",
    limit=0.5,
    words="of the runs of",
    why="after its last retry a job is dead",
    remedy="the lines `failed` in the log name the errors",
    well="of no class do most runs fail",
    alerts=(Alert("ForkqJobsFail", 0.5),),
)
DEAD: Final = Check(
    name="dead",
    measures="jobs that died in the last hour",
    limit=0,
    words="died",
    why="nothing runs them again by itself",
    remedy="look at the dead set, mend the reason, and retry them",
    well="no job died in the last hour",
    alerts=(Alert("ForkqJobsDie", 0),),
)
CRASHES: Final = Check(
    name="crashes",
    measures="children that died of the same reason in 15 minutes",
    limit=3,
    words="children die",
    why="each crash runs the jobs again that were in progress",
    remedy="the line `child died` in the log names the jobs; `forkq find JID` shows their crashes",
    well="no child crashes again and again",
    critical=True,
    alerts=(Alert("ForkqChildrenCrash", 3, critical=True),),
)
# In one host a round trip takes 0.1 ms, in one data centre about 1 ms.
LATENCY: Final = Check(
    name="latency",
    measures="seconds of a process's last round trip to Redis, for a minute",
    limit=0.005,
    words="a round trip takes",
    why="each fetch waits for one, and short jobs wait for fetches",
    remedy="run forkq closer to Redis, or see its SLOWLOG",
    well="round trips are short",
    alerts=(Alert("ForkqRoundTripIsSlow", 0.005),),
)
PERIODIC: Final = Check(
    name="periodic",
    measures="seconds for which a tick of a periodic job has been due",
    limit=60,
    words="not been enqueued",
    why="the job does not run at its times",
    remedy="see the log of the clock on the leader's host",
    well="no periodic job is late",
)
ASLEEP: Final = Check(
    name="asleep",
    measures="periodic jobs whose app no process runs",
    limit=0,
    words="asleep",
    why="their ticks are not enqueued",
    remedy="start the app that defines them, or `forkq cron remove NAME`",
    well="the apps of all periodic jobs run",
)

# In the order in which the doctor tells them.
CHECKS: Final = (
    REDIS_MEMORY, REPLICA, DAMAGED, FLEET, SILENT_PROCESSES, REFUSED, BLOCKED, LEADER, DUE,
    UNSERVED, IDLE, BEHIND, PAUSED, SUSPECTS, HELD, SURGE, FAILING, DEAD, CRASHES, LATENCY,
    PERIODIC, ASLEEP,
)  # fmt: skip
