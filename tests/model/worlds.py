"""The worlds that are looked at in full: those of ``make test``, and the larger ones of ``make
explore``."""

from __future__ import annotations

from typing import Final

from forkq.api.job_sets import DeadSet, RetrySet
from forkq.api.queue import Queue
from forkq.limits.rules import Rules
from forkq.servers import Server

from .programs import KEYS, Action
from .world import Fault, Job, World

ALL_FAULTS: Final[tuple[Fault, ...]] = (
    *("kill", "late kill", "lose", "late loss"),
    *("OOM", "READONLY"),
)
# One crash alone ends a job with this option: the usual number of them only makes the ways longer.
ONE_CRASH: Final = {"crashes": 1}
SUSPECT: Final = {"forkq": {"suspect": True}}
LIMIT_1: Final = Rules(limit=1)


def _pause(server: Server) -> object:
    return Queue("a", server).pause()


def _resume(server: Server) -> object:
    return Queue("a", server).resume()


def _close(server: Server) -> object:
    Queue("a", server).limit = 0
    return None


def _open(server: Server) -> object:
    Queue("a", server).limit = 1
    return None


def _retry_dead(server: Server) -> object:
    return DeadSet(server).retry_all()


def _delete_retries(server: Server) -> object:
    return RetrySet(server).delete_all()


def _move(server: Server) -> object:
    return Queue("a", server).move_all("b")


def _clear(server: Server) -> object:
    return Queue("a", server).delete_all()


def _mend_retries(server: Server) -> object:
    return server.ask(("DEL", KEYS.retry))


PAUSE: Final[Action] = ("pauses queue a", _pause)
RESUME: Final[Action] = ("resumes queue a", _resume)
CLOSE: Final[Action] = ("sets the limit of queue a to 0", _close)
OPEN: Final[Action] = ("sets the limit of queue a to 1", _open)
RETRY_DEAD: Final[Action] = ("retries all dead jobs", _retry_dead)
DELETE_RETRIES: Final[Action] = ("deletes all retries", _delete_retries)
MOVE: Final[Action] = ("moves all jobs of queue a to queue b", _move)
CLEAR: Final[Action] = ("deletes all jobs of queue a", _clear)
MEND: Final[Action] = ("deletes the damaged set of retries", _mend_retries)

GOOD, SECOND = Job("1"), Job("2")
FAILING: Final = Job("1", nature="fails", retries=1)
FATAL: Final = Job("1", nature="fails")
POISON: Final = Job("1", nature="poison", more=ONE_CRASH)
SUSPECTED: Final = (
    ("SADD", KEYS.queues, "a"),
    ("LPUSH", KEYS.queue("a"), Job("1", more=SUSPECT).encoded.payload),
)

PLAIN = World("plain", [GOOD, SECOND])
LOST_REPLIES = World("lost replies", [GOOD, SECOND], faults=("lose",), most_faults=1)
LIMIT = World("limit", [GOOD, SECOND], (1, 1), rules={"a": LIMIT_1})
BLOCKING = World("blocking", [GOOD, Job("2", "b")], (1, 1), ("a", "b"), {"a": Rules(blocking=True)})
RETRIES = World("retries", [FAILING], clock=True, faults=("lose", "OOM"), most_faults=1)
LIMIT_AND_LOSS = World(
    "a limit and a loss",
    [GOOD, SECOND],
    (1, 1),
    rules={"a": LIMIT_1},
    faults=("lose",),
    most_faults=1,
)
FAILS_AT_LIMIT = World("a failure at a limit", [FATAL, SECOND], (1, 1), rules={"a": LIMIT_1})
RETRY_AT_LIMIT = World(
    "a retry at a limit", [FAILING, SECOND], (1, 1), rules={"a": LIMIT_1}, clock=True
)
PERMITS = World("permits", [GOOD, SECOND, Job("3", "b")], (1, 1), ("b", "a"), {"a": LIMIT_1})
DAMAGED = World(
    "a damaged set", [FAILING], clock=True, person=[MEND], stored=[("SET", KEYS.retry, "?")]
)
BURIAL = World("burial", [FATAL])
DEATH = World("death", [GOOD, SECOND], (2,), solo=True, faults=("kill",), most_faults=1)
LATE = World(
    "late commands", [GOOD], solo=True, sweep=True, faults=("late kill", "late loss"), most_faults=1
)
DEATHS_IN_TWO = World(
    "death in one of two", [GOOD, SECOND], (1, 1), solo=True, faults=("kill",), most_faults=1
)
LOSS_IN_TWO = World("loss in one of two", [GOOD, SECOND], (1, 2), faults=("lose",), most_faults=1)
ALONE = World("poison", [POISON, SECOND], (2,), solo=True)
SUSPECTS = World("suspects", [Job("1", pushed=False), SECOND], solo=True, stored=SUSPECTED)
TWO_SUSPECTS = World("two suspects", [Job("1", more=SUSPECT), Job("2", more=SUSPECT)], solo=True)
POISONS = World(
    "two that kill",
    [POISON, Job("2", nature="poison", more=ONE_CRASH)],
    (2,),
    solo=True,
)
PAUSES = World("pause", [GOOD], person=[PAUSE, RESUME])
LIMITS = World("limits", [GOOD], person=[CLOSE, OPEN])
SECOND_LIFE = World("retry of the dead", [FATAL], person=[RETRY_DEAD])
DELETED = World("deleted retries", [FAILING], clock=True, person=[DELETE_RETRIES])
MOVED = World("moved jobs", [GOOD], queues=("a", "b"), person=[MOVE])
CLEARED = World("cleared queue", [GOOD, SECOND], person=[CLEAR])
RUBY = World("beside Sidekiq", [GOOD, Job("2", nature="fails", retries=1)], ruby=True, clock=True)
ALL_FAULTS_ONCE = World(
    "each fault", [GOOD], solo=True, sweep=True, clock=True, faults=ALL_FAULTS, most_faults=1
)

# Complete in ``make test``.
SMALL: Final = (
    *(PLAIN, LOST_REPLIES, LIMIT, BLOCKING, RETRIES, FAILS_AT_LIMIT, DAMAGED, BURIAL, DEATH, LATE),
    *(ALONE, SUSPECTS, TWO_SUSPECTS, PAUSES, LIMITS, SECOND_LIFE, DELETED, MOVED, CLEARED, RUBY),
    ALL_FAULTS_ONCE,
)

# Complete in ``make explore``.
LARGE: Final = (
    PERMITS,
    LIMIT_AND_LOSS,
    RETRY_AT_LIMIT,
    DEATHS_IN_TWO,
    LOSS_IN_TWO,
    World("all together", [POISON, SECOND], (1, 1), rules={"a": LIMIT_1}, solo=True, clock=True),
    World(
        "each fault, two jobs",
        *([GOOD, SECOND], (1,)),
        solo=True, sweep=True, faults=ALL_FAULTS, most_faults=1,
    ),
    World(
        "everything",
        [POISON, Job("2", "b")],
        (1, 1),
        ("a", "b"),
        {"a": LIMIT_1, "b": LIMIT_1},
        solo=True, clock=True, person=[PAUSE, RESUME],
    ),
    World("each fault, twice", [GOOD], solo=True, sweep=True, faults=ALL_FAULTS, most_faults=2),
)  # fmt: skip

# Too large to be looked at in full: ``make explore`` walks through it at random.
WIDE: Final = World(
    "wide",
    [Job("1"), Job("2", nature="poison", more=ONE_CRASH), Job("3", "b", "fails", 1)],
    (1, 2),
    ("a", "b"),
    {"a": LIMIT_1, "b": LIMIT_1},
    solo=True,
    clock=True,
    sweep=True,
    person=[PAUSE, RESUME, RETRY_DEAD],
    faults=ALL_FAULTS,
    most_faults=4,
)
