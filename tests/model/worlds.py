"""The worlds that are looked at in full: those of ``make test``, and the larger ones of ``make
explore``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from forkq.api.job_sets import DeadSet, RetrySet
from forkq.api.queue import Queue
from forkq.cancelling import note_cancelled
from forkq.features.cancel.parts import field_of_jid
from forkq.limits.rules import Rate, Rules
from forkq.servers import Server

from .commands import MOMENT
from .programs import KEYS, Action
from .world import Fault, Job, Nature, World

USUAL_FAULTS: Final[tuple[Fault, ...]] = (
    *("kill", "late kill", "lose", "late loss"),
    *("OOM", "READONLY"),
)
# One crash alone ends a job with this option: the usual number of them only makes the ways longer.
ONE_CRASH: Final = {"crashes": 1}
SUSPECT: Final = {"forkq": {"suspect": True}}
LIMIT_1: Final = Rules(limit=1)
ONE_IN_TWO_SECONDS: Final = Rules(rate=Rate(1, 2))


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


def _cancel(jid: str) -> Callable[[Server], object]:
    return lambda server: note_cancelled([server], [(field_of_jid(jid), jid)], None)


CANCEL: Final[Action] = ("cancels job 1", _cancel("1"))
CANCEL_SECOND: Final[Action] = ("cancels job 2", _cancel("2"))
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
EACH_FAULT = World(
    "each usual fault",
    [GOOD],
    solo=True,
    sweep=True,
    clock=True,
    faults=USUAL_FAULTS,
    most_faults=1,
)

RATE = World("a rate", [GOOD, SECOND], (2, 1), rules={"a": ONE_IN_TWO_SECONDS})
RATE_AND_LOSS = World(
    "a rate and a loss",
    [GOOD, SECOND],
    rules={"a": ONE_IN_TWO_SECONDS},
    faults=("lose",),
    most_faults=1,
)
RATE_ALONE = World(
    "a rate and a suspect",
    [Job("1", pushed=False), SECOND],
    rules={"a": ONE_IN_TWO_SECONDS},
    solo=True,
    stored=SUSPECTED,
)

SUSPECT_AT_LIMIT = World(
    "a suspect at a limit",
    [Job("1", pushed=False), SECOND],
    rules={"a": LIMIT_1},
    solo=True,
    stored=SUSPECTED,
)
BLOCKS_AND_FAILS = World(
    "a failure that blocks",
    [FATAL, Job("2", "b")],
    (1, 1),
    ("a", "b"),
    {"a": Rules(blocking=True)},
)
TWO_FAILURES = World(
    "two failures at a limit",
    [FATAL, Job("2", nature="fails"), Job("3")],
    (1, 1),
    rules={"a": LIMIT_1},
)


# A job of which the world lets the moment come at which it expires.
EXPIRING: Final = Job("1", expires_in=600)
RETRIED: Final = Job("1", nature="fails", retries=1, expires_in=600)
# A plain job with the same text in another place of its payload.
LOOKALIKE: Final = Job("2", more={"meta": {"needs": {"expires_at": 1}}})
EXPIRY = World("an expiry", [EXPIRING, LOOKALIKE], leader=True)
EXPIRY_AND_LOSS = World(
    "an expiry and a loss", [EXPIRING], leader=True, faults=("lose",), most_faults=1
)
EXPIRY_PAUSED = World("an expiry in a paused queue", [EXPIRING], leader=True, person=[PAUSE])
PAUSE_AND_LOSS = World(
    "an expiry in a paused queue, and a loss",
    [EXPIRING],
    leader=True,
    person=[PAUSE],
    faults=("lose",),
    most_faults=1,
)
TWO_EXPIRE = World("two that expire", [EXPIRING, Job("2", expires_in=600)], leader=True)
TOO_LATE = World(
    "a retry that would come too late",
    [Job("1", nature="fails", retries=1, expires_in=10)],
    rules={"a": ONE_IN_TWO_SECONDS},
    faults=("lose",),
    most_faults=1,
)
RETRY_EXPIRES = World("a retry that expires", [RETRIED], clock=True, leader=True)
SCHEDULED = World(
    "a scheduled job that expires",
    [Job("1", expires_in=600, at=MOMENT + 100.0)],
    clock=True,
    leader=True,
)
EXPIRY_AT_LIMIT = World("an expiry at a limit", [EXPIRING, SECOND], (1, 1), rules={"a": LIMIT_1})
EXPIRY_AT_RATE = World("an expiry and a rate", [EXPIRING, SECOND], rules={"a": ONE_IN_TWO_SECONDS})
EXPIRY_AND_DEATH = World(
    "an expiry and a death", [EXPIRING], solo=True, leader=True, faults=("kill",), most_faults=1
)
SNOOZING: Final = Job("1", nature="snoozes")
DISCARDED: Final = Job("1", nature="discards")
SNOOZE = World("a snooze", [SNOOZING], clock=True, faults=("lose",), most_faults=1)
DISCARD = World(
    "a discard", [DISCARDED], rules={"a": ONE_IN_TWO_SECONDS}, faults=("lose",), most_faults=1
)

NAMELESS = World("a name refused", [GOOD, SECOND], faults=("NOPERM",), most_faults=1)
DAMAGED_NAMES = World(
    "damaged names", [GOOD, SECOND], clock=True, stored=[("SET", KEYS.queues, "?")]
)

ONCE = World("a push that is sent again", [Job("1", once=True)], faults=("lose",), most_faults=2)
ONCE_LATE = World(
    "a push that is sent again, and a late one",
    [Job("1", once=True), Job("2", once=True, doc="7")],
    faults=USUAL_FAULTS,
    most_faults=2,
    solo=True,
    sweep=True,
)

FIRST, NEWER = Job("1", doc="7"), Job("2", doc="7")
UNIQUE = World("unique jobs", [FIRST, NEWER], (1, 1))
UNIQUE_AND_LOSS = World(
    "unique jobs and a loss", [FIRST, NEWER], faults=("lose", "OOM", "READONLY"), most_faults=1
)
UNIQUE_AND_DEATH = World(
    "unique jobs and a death", [FIRST, NEWER], solo=True, faults=("kill",), most_faults=1
)
UNIQUE_RETRIED = World(
    "a unique job that fails", [Job("1", nature="fails", retries=1, doc="7"), NEWER], clock=True
)
# They came to the queue a moment ago, so they need not take their locks again at their start.
JUST_PUSHED: Final = {"enqueued_at": MOMENT + 0.5}
UNIQUE_EXPIRES = World(
    "a unique job that expires",
    [Job(jid, doc="7", expires_in=600, more=JUST_PUSHED) for jid in "12"],
    leader=True,
)
UNIQUE_SCHEDULED = World(
    "a unique job that is scheduled", [Job("1", doc="7", at=MOMENT + 100.0), NEWER], clock=True
)
UNIQUE_SNOOZES = World(
    "a unique job that snoozes", [Job("1", nature="snoozes", doc="7"), NEWER], clock=True
)


def _latest(jid: str, nature: Nature = "good", retries: int = 0, **more: Any) -> Job:
    return Job(jid, nature=nature, retries=retries, doc="7", how="latest", **more)


LATEST = World("the newest one", [_latest("1"), _latest("2")], (1, 1))
LATEST_OF_THREE = World("the newest of three", [_latest(jid) for jid in "123"], (1, 1))
LATEST_AND_LOSS = World(
    "the newest one, and a loss",
    [_latest("1"), _latest("2")],
    faults=("lose", "OOM"),
    most_faults=1,
)
LATEST_AND_DEATH = World(
    "the newest one, and a death",
    [_latest("1"), _latest("2")],
    solo=True,
    faults=("kill",),
    most_faults=1,
)
LATEST_RETRIED = World(
    "the newest one, and a failure", [_latest("1", "fails", 1), _latest("2")], (1, 1), clock=True
)
LATEST_ELSEWHERE = World(
    "the newest one, in another queue",
    [_latest("1"), _latest("2", queue="b")],
    (1, 1),
    ("a", "b"),
    clock=True,
)
LATEST_SCHEDULED = World(
    "the newest one, and a schedule",
    [_latest("1", at=MOMENT + 100.0), _latest("2")],
    (1, 1),
    clock=True,
)
REPLACE = World(
    "one in the place of another",
    [Job(jid, doc="7", how="replace") for jid in "12"],
    (1, 1),
)


def _debounced(jid: str, nature: Nature = "good", retries: int = 0) -> Job:
    return Job(jid, nature=nature, retries=retries, doc="7", how="debounce")


DEBOUNCED = World("debounced jobs", [_debounced("1"), _debounced("2")], clock=True)
DEBOUNCED_AND_LOSS = World(
    "debounced jobs, and a loss",
    [_debounced("1"), _debounced("2")],
    clock=True,
    faults=("lose", "late loss", "OOM", "READONLY"),
    most_faults=1,
)
DEBOUNCED_RETRIED = World(
    "a debounced job that fails", [_debounced("1", "fails", 1), _debounced("2")], clock=True
)
DEBOUNCED_CANCELLED = World(
    "a cancelled debounced job",
    [_debounced("1"), _debounced("2")],
    clock=True,
    person=[CANCEL],
    canceller=True,
)
UNIQUE_LATE = World(
    "a unique job, and a late command", [FIRST], faults=("late loss",), most_faults=1
)
LATEST_LATE = World(
    "the newest one, and a late command",
    [_latest("1"), _latest("2")],
    solo=True,
    sweep=True,
    faults=("late kill",),
    most_faults=1,
)
ITERATES: Final = Job("1", nature="iterates")
CURSOR = World("a cursor", [ITERATES])
CURSOR_AND_LOSS = World(
    "a cursor, and a loss", [ITERATES], faults=("lose", "OOM", "READONLY"), most_faults=1
)
CURSOR_AND_DEATH = World(
    "a cursor, and a death", [ITERATES], solo=True, sweep=True, faults=("kill",), most_faults=1
)
CURSOR_LATE = World(
    "a cursor, and late commands",
    [ITERATES],
    solo=True,
    sweep=True,
    faults=("late kill", "late loss"),
    most_faults=1,
)
CURSOR_CANCELLED = World("a cursor, and a cancel", [ITERATES], person=[CANCEL], canceller=True)
CANCELS = World("a cancel", [GOOD], person=[CANCEL], canceller=True)
CANCELS_RETRY = World("a cancelled retry", [FAILING], clock=True, person=[CANCEL], canceller=True)
CANCELS_UNIQUE = World("a cancelled unique job", [FIRST, NEWER], person=[CANCEL], canceller=True)
CANCELS_NEWEST = World(
    "a cancelled newest job", [_latest("1"), _latest("2")], person=[CANCEL_SECOND], canceller=True
)
CANCEL_AND_LOSS = World(
    "a cancel, and a loss",
    [GOOD],
    person=[CANCEL],
    canceller=True,
    faults=("lose", "kill"),
    most_faults=1,
    solo=True,
)


def _all_together(name: str, second: Job, person: Sequence[Action], *more: Job) -> World:
    """Two children, a solo child, a clock, a pusher and a person; two queues with limit 1."""
    jobs = [POISON, second, *more]
    rules = {"a": LIMIT_1, "b": LIMIT_1}
    return World(name, jobs, (1, 1), ("a", "b"), rules, solo=True, clock=True, person=person)


# Complete in ``make test``: each within a second or two, and the last one.
SMALL: Final = (
    *(PLAIN, LOST_REPLIES, LIMIT, BLOCKING, RETRIES, FAILS_AT_LIMIT, DAMAGED, BURIAL, DEATH, LATE),
    *(ALONE, SUSPECTS, TWO_SUSPECTS, PAUSES, LIMITS, SECOND_LIFE, DELETED, MOVED, CLEARED, RUBY),
    *(EACH_FAULT, RATE, RATE_AND_LOSS, RATE_ALONE, SUSPECT_AT_LIMIT, BLOCKS_AND_FAILS),
    *(TWO_FAILURES, PERMITS, DEATHS_IN_TWO, NAMELESS, DAMAGED_NAMES),
    *(EXPIRY, EXPIRY_AND_LOSS, EXPIRY_PAUSED, TWO_EXPIRE, TOO_LATE, RETRY_EXPIRES, SCHEDULED),
    *(EXPIRY_AT_LIMIT, EXPIRY_AT_RATE, EXPIRY_AND_DEATH, SNOOZE, DISCARD),
    *(UNIQUE, UNIQUE_AND_LOSS, UNIQUE_AND_DEATH, UNIQUE_RETRIED, UNIQUE_EXPIRES, UNIQUE_SCHEDULED),
    *(UNIQUE_SNOOZES, LATEST, LATEST_AND_LOSS, LATEST_AND_DEATH, LATEST_SCHEDULED, REPLACE),
    *(ONCE, DEBOUNCED, UNIQUE_LATE, LATEST_LATE),
    *(CANCELS, CURSOR, CURSOR_AND_LOSS, CURSOR_AND_DEATH, CURSOR_LATE),
)
ALL_TOGETHER: Final = _all_together("all together", Job("2", "b"), [RETRY_DEAD])

# Complete in ``make explore``, or nearly so.
LARGE: Final = (
    RETRY_AT_LIMIT,
    LIMIT_AND_LOSS,
    LOSS_IN_TWO,
    World(
        "each usual fault, two jobs",
        *([GOOD, SECOND], (1,)),
        solo=True, sweep=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    World(
        "each usual fault, twice",
        *([GOOD], (1,)),
        solo=True, sweep=True, faults=USUAL_FAULTS, most_faults=2,
    ),
    PAUSE_AND_LOSS,
    World(
        "an expiry at a rate, and a loss",
        *([EXPIRING, SECOND], (1,)),
        rules={"a": ONE_IN_TWO_SECONDS}, faults=("lose", "late loss"), most_faults=1,
    ),
    World(
        "an expiry at a limit, and a loss",
        *([EXPIRING, SECOND], (1, 1)),
        rules={"a": LIMIT_1}, leader=True, faults=("lose",), most_faults=1,
    ),
    World(
        "an expiry, a death and a pause",
        *([EXPIRING], (1,)),
        solo=True, leader=True, person=[PAUSE], faults=("kill",), most_faults=1,
    ),
    World(
        "a poison job that expires",
        *([Job("1", nature="poison", more=ONE_CRASH, expires_in=600), SECOND], (2,)),
        solo=True, leader=True,
    ),
    World(
        "moved jobs that expire",
        *([EXPIRING, SECOND], (1,), ("a", "b")),
        leader=True, person=[MOVE],
    ),
    World(
        "a snooze that expires",
        *([Job("1", nature="snoozes", expires_in=600)], (1,)),
        clock=True, leader=True, faults=("lose",), most_faults=1,
    ),
    World(
        "each usual fault, an expiry",
        *([EXPIRING], (1,)),
        solo=True, sweep=True, leader=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    World(
        "each usual fault, a retry that expires",
        *([RETRIED], (1,)),
        solo=True, sweep=True, clock=True, leader=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    World(
        "each usual fault, a snooze",
        *([SNOOZING], (1,)),
        solo=True, sweep=True, clock=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    World(
        "each usual fault, a discard",
        *([DISCARDED], (1,)),
        solo=True, sweep=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    *(LATEST_OF_THREE, LATEST_RETRIED, LATEST_ELSEWHERE),
    *(CANCELS_RETRY, CANCELS_UNIQUE, CANCELS_NEWEST, CANCEL_AND_LOSS, CURSOR_CANCELLED),
    World(
        "each usual fault, unique jobs",
        *([Job("1", nature="fails", retries=1, doc="7"), NEWER, Job("3", doc="7")], (1, 1)),
        solo=True, sweep=True, clock=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    World(
        "each usual fault, the newest of three",
        *([_latest("1"), _latest("2", "fails", 1), _latest("3")], (1,)),
        solo=True, sweep=True, clock=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    World(
        "each usual fault, one in the place of another",
        *([Job(jid, doc="7", how="replace") for jid in "123"], (1,)),
        solo=True, sweep=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    World(
        "each usual fault, a cancelled newest job",
        *([_latest("1"), _latest("2")], (1,)),
        solo=True, canceller=True, sweep=True, person=[CANCEL_SECOND],
        faults=("kill", "late kill", "lose", "late loss"), most_faults=1,
    ),
    World(
        "each usual fault, debounced jobs",
        *([_debounced("1"), _debounced("2", "fails", 1), _debounced("3")], (1,)),
        solo=True, sweep=True, clock=True, faults=USUAL_FAULTS, most_faults=1,
    ),
    ONCE_LATE,
    *(DEBOUNCED_AND_LOSS, DEBOUNCED_RETRIED, DEBOUNCED_CANCELLED),
    World(
        "each usual fault, twice, a cursor",
        *([ITERATES, SECOND], (1, 1)),
        solo=True, sweep=True, faults=USUAL_FAULTS, most_faults=2,
    ),
    World(
        "each usual fault, a cursor and a cancel",
        *([ITERATES], (1,)),
        solo=True, sweep=True, canceller=True, person=[CANCEL],
        faults=USUAL_FAULTS, most_faults=1,
    ),
    _all_together("all together, one fails", Job("2", "b", "fails", 1), [RETRY_DEAD]),
    _all_together("all together, paused", Job("2", "b"), [PAUSE, RESUME]),
    _all_together(
        "all together, three jobs", Job("2", "b", "fails", 1), [RETRY_DEAD], Job("3", "b")
    ),
)  # fmt: skip

# Too large to be looked at in full: ``make explore`` walks through it at random.
WIDE: Final = World(
    "wide",
    [
        *(Job("1"), Job("2", nature="poison", more=ONE_CRASH), Job("3", "b", "fails", 1)),
        *(Job("4", "b", expires_in=600), Job("5", nature="snoozes"), Job("6", nature="discards")),
    ],
    (1, 2),
    ("a", "b"),
    {"a": LIMIT_1, "b": LIMIT_1},
    solo=True,
    clock=True,
    leader=True,
    sweep=True,
    person=[PAUSE, RESUME, RETRY_DEAD],
    faults=USUAL_FAULTS,
    most_faults=4,
)
