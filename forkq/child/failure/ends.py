"""How a job can end other than well, as values: which script, and what its reply means.

A job that is done, or dropped, needs none of these: the fetch script drops its lease. The others
travel before that script, in the pipeline of the next exchange (child/fetch/channel.py). Nothing
here talks to Redis but ``read_replies``, which reads what an exchange has sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from ...features.cancel import parts as cancel
from ...features.effects import NONE, Effect, name_of, packed
from ...features.iterable.parts import KEPT_FOR, Iteration
from ...features.marked import at_start, effects, start_call, ticket_in, while_running
from ...features.steps import parts as steps
from ...runtime.log import LogOnce
from ...store.connection import Call, RedisConnection, ResponseError, damaged_among
from ...store.damage import DAMAGED_FEATURE, about
from ...store.dead_set import DeadSetLimits
from ...store.outage import Backoff, Outage
from ...store.redis_py import exceptions
from ...store.scripts import (
    CURSOR_RETURN,
    CURSOR_SAVE,
    EFFECTS_ALONE,
    END,
    ISOLATE,
    LEASE_RETURN,
    RETRY,
    TICKET_START,
    Script,
)
from ...wire import lease
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from ...wire.times import now
from .retry import Bury, End, GoOn, Postpone, PutOff, Retry, Sleeps, Snoozed

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How many jobs may wait for Redis's reply to what was decided of them, or are parked.
_MOST_MOVING: Final = 1000
# How many jobs move elsewhere in one exchange, and about how many bytes of payloads.
_MOST_ENDINGS: Final = 100
_MOST_BYTES: Final = 524_288
# How many jobs one call of end.lua ends: what it costs to begin a script is little beside them
# then, and no other client waits for long.
_MOST_IN_CALL: Final = 25
# The keys that the jobs of such a call share.
_SHARED_KEYS: Final = 4
# What each of them tells that has effects, before the number of its keys.
_OF_EACH: Final = 5
# The kind of the endings of jobs that were performed, or dropped.
DONE: Final = "done"
# What isolate.lua says if the class is held no more: the job is in its queue again.
_RELEASED: Final = 2

# "moved": Redis has it, or has had it since an earlier try. "gone": the lease was given to another
# host, and the job runs elsewhere. "refused": Redis did nothing, and its lease stays.
Outcome: TypeAlias = Literal["moved", "gone", "refused"]


def _ignore(_: object) -> None:
    """The default of ``Ending.told``: no caller waits for the outcome."""


# Compared by identity: two of one unit are two.
class Ending(msgspec.Struct, eq=False):
    """What is to become of a unit. ``make`` makes the call that moves it; what makes Redis refuse
    one, makes it refuse all of its ``kind``. ``told`` gets the first outcome, in the thread that
    drives the fetcher: it must not block. ``released`` is called if the job's class is held no
    more."""

    unit: UnitOfWork
    kind: str
    make: Callable[[], Call]
    size: int = 0
    told: Callable[[Outcome], None] = _ignore
    released: Callable[[], None] = lambda: None
    reply: Any = None  # None: none has come
    damaged: Sequence[bytes] = ()  # the keys of the job's features that hold another type
    is_queued: bool = False  # by OpenEndings
    _sends: int = 0

    def call(self) -> Call:
        """The call to send now. A call whose reply is lost may have moved the job."""
        self._sends += 1
        self.reply = None
        return self.make()

    def judge(self) -> Outcome:
        """Notes what the reply means, and returns it. A lease that is gone, though this child has
        not sent the call before, was taken by another process."""
        if isinstance(self.reply, ResponseError):
            self._sends -= 1
            return "refused"
        if isinstance(self.reply, list):
            self.reply, *self.damaged = self.reply
        if self.reply == _RELEASED:
            self.released()
        if not self.reply and self._sends == 1:
            return "gone"
        return "moved"

    @property
    def is_told(self) -> bool:
        """Whether the first outcome was told: no caller waits for it any more."""
        return self.told is _ignore

    def tell(self, outcome: Outcome) -> None:
        """Gives the first outcome to the caller that waits for it."""
        told, self.told = self.told, _ignore
        told(outcome)


class Sending(msgspec.Struct, gc=False):
    """What is sent for these ``endings``: one ``call``."""

    endings: list[Ending]
    call: Call

    def answered(self, reply: Any) -> None:
        """Notes the reply of the call, or why there is none."""
        if len(self.endings) == 1 or not isinstance(reply, list):
            for ending in self.endings:
                ending.reply = reply
            return
        for ending, each in zip(self.endings, reply, strict=True):
            ending.reply = each


class SentEndings(NamedTuple):
    """All ``endings`` that one exchange carries, and by which ``calls``."""

    endings: Sequence[Ending] = ()
    calls: Sequence[Sending] = ()


def sendings(endings: Sequence[Ending]) -> SentEndings:
    """What is to be sent now for these: jobs of a queue that go nowhere end in one call."""
    made: list[Sending] = []
    open_calls: dict[str, list[tuple[Ending, Call]]] = {}
    for ending in endings:
        call = ending.call()
        if call.script is not END:
            made.append(Sending([ending], call))
            continue
        together = open_calls.setdefault(call.keys[0], [])
        together.append((ending, call))
        if len(together) == _MOST_IN_CALL:
            made.append(_together(open_calls.pop(call.keys[0])))
    return SentEndings(endings, [*made, *map(_together, open_calls.values())])


def _together(several: Sequence[tuple[Ending, Call]]) -> Sending:
    """What ends these jobs of one queue."""
    (first, call), *others = several
    if not others:
        return Sending([first], call)
    keys, arguments = [*call.keys[:_SHARED_KEYS]], list[Any]()
    for _, each in several:
        own, given = each.keys[_SHARED_KEYS:], each.arguments
        keys += own
        arguments += given if len(given) == _OF_EACH else (*given, "")
        arguments.append(len(own))
    return Sending([ending for ending, _ in several], Call(END, keys, arguments))


class Ends(msgspec.Struct, frozen=True):
    """Makes the endings of one child. ``held``: the classes that are held; a class that is found
    released is removed from them."""

    identity: str
    keys: Keys
    dead_set: DeadSetLimits
    held: set[str] = msgspec.field(default_factory=set)

    def retry(self, unit: UnitOfWork, decision: Retry) -> Ending:
        """Drops the lease and schedules the retry."""
        has_failed = not isinstance(decision, Postpone | Snoozed)
        later = self.keys.retry if has_failed else self.keys.schedule
        name, keys = unit.queue_name, self.keys
        names = [keys.inflight(name), later, keys.awaited(name), keys.bucket(name)]
        unrun = int(isinstance(decision, Postpone))
        arguments: list[Any] = [self._lease(unit), decision.at, decision.payload, unrun]
        asked = self._effects(unit, way_of(decision), decision.at)
        if isinstance(decision, Sleeps):
            lasts = decision.at - now()
            asked = (*asked, *steps.pause_effects(keys, decision.jid, decision.pause, lasts))
        if isinstance(decision, Snoozed) or asked:
            names.append(keys.totals("ends"))
            arguments += _counted_as(decision, unit)
        call = self._call(RETRY, names, arguments, asked)
        return Ending(unit, later, lambda: call, len(decision.payload))

    def bury(self, unit: UnitOfWork, decision: Bury) -> Ending:
        """Drops the lease and adds the job to the dead set, at the time of the call."""
        payload, asked = decision.payload, self._effects(unit, "dead")

        def burial() -> Call:
            return self.dead_set.burial(unit.queue_name, self._lease(unit), payload, asked)

        return Ending(unit, self.keys.dead, burial, len(payload))

    def done(self, unit: UnitOfWork, way: Literal["done", "dropped"]) -> Ending | None:
        """Drops the lease, and does what the features of the job ask; None if they ask nothing:
        then the fetch drops the lease."""
        asked = self._effects(unit, way)
        return self._end(unit, ("", "", 0), asked, DONE) if asked else None

    def isolate(self, unit: UnitOfWork, held: str = "", *, last: bool = False) -> Ending:
        """Moves the job to its queue's list of suspects: it is one, or its class is ``held``.
        ``last``: a suspect goes to the tail."""
        keys, queue = self.keys, unit.queue_name
        lists = (keys.inflight(queue), keys.suspects(queue), keys.suspected, keys.queue(queue))
        arguments = (self._lease(unit), queue, held, int(last))
        freed = (keys.awaited(queue), keys.bucket(queue))
        call = Call(ISOLATE, (*lists, keys.held_classes, *freed), arguments)
        ending = Ending(unit, keys.suspects(queue), lambda: call)
        ending.released = lambda: self.held.discard(held)
        return ending

    def end(self, unit: UnitOfWork, decision: End) -> Ending:
        """Drops the lease, and counts the outcome. A job that was not run gives back what it cost
        the rate of its queue; the note of one that was cancelled is removed."""
        outcome, asked = decision.outcome, self._effects(unit, decision.outcome)
        counts_as = "" if decision.is_counted else outcome
        if outcome == "cancelled":
            asked = (*asked, *cancel.effects(self.keys, decision.jid))
        return self._end(unit, (counts_as, decision.name, int(decision.unrun)), asked, "end")

    def return_to_queue(self, unit: UnitOfWork) -> Ending:
        """Returns the job to the head of its queue, or of its suspects."""
        keys, lists = self._returns(unit)
        arguments = (lease.owner(self.identity), 1, unit.sequence)
        call = Call(LEASE_RETURN, (keys.queues, *lists), arguments)
        return Ending(unit, lists[0], lambda: call)

    def go_on(self, unit: UnitOfWork, decision: GoOn) -> Ending:
        """Returns an iterable job to its queue, or to its suspects, together with its cursor. It
        holds its lock as at a beat: the job is there, and waits now."""
        keys, lists = self._returns(unit)
        end, reached = "tail" if decision.at_tail else "head", decision.reached
        fields = () if reached is None else reached.fields()
        names = [keys.queues, *lists, keys.iteration(decision.jid), keys.marked]
        asked = NONE if unit.marked is None else while_running(self.keys, unit.marked)
        text = packed(asked, names, self.keys.totals("ends"))
        arguments = (self._lease(unit), decision.payload, end, KEPT_FOR, text, *fields)
        call = Call(CURSOR_RETURN, names, arguments)
        return Ending(unit, lists[0], lambda: call, len(decision.payload))

    def save(
        self, unit: UnitOfWork, jid: str, payload: bytes, before: int, reached: Iteration
    ) -> Call:
        """The call that saves how far an iterable job has come while it runs. ``payload``: that of
        its lease from now on, which has had ``before`` bytes; empty: it stays."""
        queue, keys = unit.queue_name, self.keys
        names = (keys.inflight(queue), keys.iteration(jid), keys.marked)
        arguments = (self._lease(unit), queue, payload, before, KEPT_FOR, *reached.fields())
        return Call(CURSOR_SAVE, names, arguments)

    def start(self, unit: UnitOfWork, waited: float) -> Call | None:
        """The call that does what the features of the job ask when it starts, ``waited`` seconds
        after it came to its queue; None if they ask nothing."""
        asked = NONE if unit.marked is None else at_start(self.keys, unit.marked, waited)
        if not asked:
            return None
        inflight = self.keys.inflight(unit.queue_name)
        asked = (Effect("leased", inflight, (self._lease(unit),)), *asked)
        return self._call(EFFECTS_ALONE, [], (), asked)

    def ticket_start(self, unit: UnitOfWork) -> Call | None:
        """The call that asks which job is to be run by this unit; None if it is its own, as most
        are."""
        marked = unit.marked
        lock = None if marked is None else ticket_in(marked)
        if marked is None or lock is None:
            return None
        keys, arguments = start_call(self.keys, marked, lock, self._lease(unit))
        return Call(TICKET_START, keys, arguments)

    def _end(
        self, unit: UnitOfWork, how: Sequence[object], asked: Sequence[Effect], kind: str
    ) -> Ending:
        names = [*_shared_keys(self.keys, unit.queue_name)]
        call = self._call(END, names, (self._lease(unit), *how), asked)
        size = len(str(call.arguments[-1])) if asked else 0  # a result may be large
        return Ending(unit, kind, lambda: call, size)

    def _returns(self, unit: UnitOfWork) -> tuple[Keys, list[str]]:
        """The keys of this child's lists, and those by which the job goes back to one."""
        keys = self.keys.of_suspects if lease.is_solo(self.identity) else self.keys
        return keys, keys.of_returns([unit.queue_name])

    def _effects(self, unit: UnitOfWork, way: str, at: float | None = None) -> Sequence[Effect]:
        """What the features of the job ask when it takes this ``way``. ``at``: when it is due."""
        if unit.marked is None:
            return NONE
        return effects(self.keys, unit.marked, way, 0.0 if at is None else at - now())

    def _call(
        self, script: Script, keys: list[str], arguments: Sequence[object], asked: Sequence[Effect]
    ) -> Call:
        text = packed(asked, keys, self.keys.totals("ends"))
        return Call(script, keys, (*arguments, text) if text else arguments)

    def _lease(self, unit: UnitOfWork) -> str:
        return lease.lease(self.identity, unit.sequence)


@lru_cache(maxsize=1000)
def _shared_keys(keys: Keys, queue: str) -> tuple[str, ...]:
    """The keys that end.lua needs of each job of a queue."""
    return keys.inflight(queue), keys.awaited(queue), keys.bucket(queue), keys.totals("ends")


def _counted_as(decision: Retry, unit: UnitOfWork) -> tuple[str, str]:
    """The outcome that the statistics note of a job that runs again, "" if none; and its class."""
    if isinstance(decision, Snoozed):
        return "snoozed", decision.name
    return "", name_of(unit.marked or {})


def way_of(decision: Retry) -> str:
    """The way of ways.py that a job takes which is to run again."""
    if isinstance(decision, Snoozed | PutOff):
        return "snoozed"
    return "left to a newer forkq" if isinstance(decision, Postpone) else "retried"


class OpenEndings:
    """The endings of one child that Redis has not confirmed: each is in ``moving`` until then.
    Beyond ``most`` of them nothing more is fetched. ``queued`` are those that go with the next
    exchange, ``parked`` those that Redis has refused. After a growing pause one parked ending of
    each kind is sent again; once Redis takes it, the others follow."""

    def __init__(self, log: FilteringBoundLogger, outage: Outage) -> None:
        self.most = _MOST_MOVING
        self.queued: deque[Ending] = deque()
        self.moving: dict[int, Ending] = {}  # by the sequence numbers of their units
        self.parked: dict[int, Ending] = {}
        self._backoff = Backoff()  # until the parked are sent again
        self._refusal = outage.add_refusal(
            "redis does not take failed jobs; they are kept and tried again",
            "redis takes failed jobs again",
        )
        self._log = log
        self._log_once = LogOnce(log)

    @property
    def is_due(self) -> bool:
        """Whether parked endings are sent again now."""
        return self._backoff.over

    def hurry(self) -> None:
        """Makes parked endings due now, without the rest of the pause."""
        self._backoff.due = 0.0

    def add(self, ending: Ending) -> None:
        """Has the next exchange send it. A second one of the same unit changes nothing."""
        if self.moving.setdefault(ending.unit.sequence, ending) is not ending:
            ending.tell("moved")  # what was decided first is on its way
            return
        self._queue(ending)

    def take(self) -> list[Ending]:
        """Takes those that one exchange sends: a bounded number. The others follow in the next."""
        if self.parked and self._backoff.over:
            self._try_parked()
        taken: list[Ending] = []
        size = 0
        while self.queued and len(taken) < _MOST_ENDINGS and size < _MOST_BYTES:
            ending = self.queued.popleft()
            ending.is_queued = False
            taken.append(ending)
            size += ending.size
        return taken

    def park(self, ending: Ending) -> None:
        """Notes that Redis has refused it."""
        self.parked.pop(ending.unit.sequence, None)  # to the end: another one comes first then
        self.parked[ending.unit.sequence] = ending
        self._refusal.begin(ending.reply)
        if self._backoff.over:
            self._backoff.pause()

    def close(self, ending: Ending) -> None:
        """Forgets it: its unit has ended. Logs once each key of a feature that is damaged."""
        for key in ending.damaged:
            shown = key.decode("utf-8", "replace")
            self._log_once.error(shown, DAMAGED_FEATURE, **about(shown))
        self.parked.pop(ending.unit.sequence, None)
        self.moving.pop(ending.unit.sequence, None)

    def clear(self) -> None:
        """Forgets all: none of these jobs has a lease any more."""
        self.queued.clear()
        self.moving.clear()
        self.parked.clear()

    def answered(self, confirmed: Set[str], capacity: int) -> None:
        """Notes that Redis has replied, and has ``confirmed`` endings of these kinds: what is
        parked of a kind is sent again. Tells the log when Redis refuses nothing any more; also when
        too many parked jobs leave no room for others in a child with this ``capacity``."""
        parked = len(self.parked)
        if not parked:
            self._backoff.reset()
            self._refusal.end()
        elif confirmed:
            for other in self.parked.values():
                if other.kind in confirmed:
                    self._queue(other)
        if parked - self.most >= capacity:
            self._log_once.error(
                "parked",
                "fetching no more jobs: too many keep their leases without a processor",
                kept=parked,
                remedy="redis does not take failed jobs: make room there, or mend its retry and "
                "dead sets",
            )
        elif parked <= self.most and self._log_once.over("parked"):
            self._log.info("fetching jobs again", kept=parked)

    def _try_parked(self) -> None:
        """One of each kind is sent again: what refuses it, refuses the others, too."""
        for ending in {ending.kind: ending for ending in reversed(self.parked.values())}.values():
            self._queue(ending)

    def _queue(self, ending: Ending) -> None:
        if not ending.is_queued:
            ending.is_queued = True
            self.queued.append(ending)


def read_replies(connection: RedisConnection, sent: Sequence[Sending]) -> None:
    """Reads the replies to these calls. Raises ConnectionLost."""
    for each in sent:
        try:
            reply = connection.read()
        except ResponseError as error:
            reply = error
        each.answered(reply)


def send_again(connection: RedisConnection, sent: Sequence[Sending]) -> bool:
    """Sends a call again whose reply was an error, after all replies were read: a server that does
    not know the script gets its text, and one that met a damaged key says which. Returns whether a
    call was done only now. Raises ConnectionLost."""
    unknown = [each for each in sent if isinstance(each.endings[0].reply, exceptions.NoScriptError)]
    for each in unknown:
        each.answered(None)
    if not connection.reusable:
        return False
    if unknown:
        replies = connection.exchange([each.call for each in unknown])
        for each, reply in zip(unknown, replies, strict=True):
            each.answered(reply)
    _name_damaged(connection, [each for each in sent if any(map(_met_damage, each.endings))])
    return bool(unknown)


def _met_damage(ending: Ending) -> bool:
    return isinstance(ending.reply, ResponseError) and str(ending.reply).startswith("WRONGTYPE")


def _name_damaged(connection: RedisConnection, sent: Sequence[Sending]) -> None:
    """Looks in one round trip which keys are damaged, and has the replies name them."""
    keys = list(dict.fromkeys(str(key) for each in sent for key in each.call.keys))
    found = connection.pipeline([("TYPE", key) for key in keys]) if keys else []
    types = dict(zip(keys, found, strict=True))
    for each in sent:
        named = [str(key) for key in each.call.keys]
        damaged = damaged_among(named, [types[key] for key in named])
        for ending in filter(_met_damage, each.endings):
            ending.reply = damaged or ending.reply
