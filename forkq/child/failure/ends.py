"""How a job can end other than well, as values: which script, and what its reply means.

A job that is done, or dropped, needs none of these: the fetch script drops its lease. The others
travel before that script, in the pipeline of the next exchange (child/fetch/channel.py). Nothing
here talks to Redis but ``read_replies``, which reads what an exchange has sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ...store.connection import Call, RedisConnection, ResponseError, damaged_among
from ...store.dead_set import DeadSetLimits
from ...store.redis_py import exceptions
from ...store.scripts import ISOLATE, LEASE_RETURN, RETRY
from ...wire import lease
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from .retry import Bury, Postpone, Retry

# What isolate.lua says if the class is held no more: the job is in its queue again.
_RELEASED: Final = 2

# "moved": Redis has it, or has had it since an earlier try. "gone": the lease was given to another
# host, and the job runs elsewhere. "refused": Redis did nothing, and its lease stays.
Outcome: TypeAlias = Literal["moved", "gone", "refused"]


def _ignore(_: object) -> None:
    """The default of ``Ending.told``: no caller waits for the outcome."""


# Compared by identity: two of one unit are two.
@dataclass(slots=True, eq=False)
class Ending:
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
    is_queued: bool = False  # by Leases
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


@dataclass(frozen=True, slots=True)
class Ends:
    """Makes the endings of one child. ``held``: the classes that are held; a class that is found
    released is removed from them."""

    identity: str
    keys: Keys
    dead_set: DeadSetLimits
    held: set[str] = field(default_factory=set)

    def retry(self, unit: UnitOfWork, decision: Retry) -> Ending:
        """Drops the lease and schedules the retry."""
        is_unrun = isinstance(decision, Postpone)
        later = self.keys.schedule if is_unrun else self.keys.retry
        name = unit.queue_name
        freed = (self.keys.awaited(name), self.keys.bucket(name))
        keys = (self.keys.inflight(name), later, *freed)
        call = Call(RETRY, keys, (self._lease(unit), decision.at, decision.payload, int(is_unrun)))
        return Ending(unit, later, lambda: call, len(decision.payload))

    def bury(self, unit: UnitOfWork, decision: Bury) -> Ending:
        """Drops the lease and adds the job to the dead set, at the time of the call."""
        payload = decision.payload
        burial = lambda: self.dead_set.burial(unit.queue_name, self._lease(unit), payload)  # noqa: E731
        return Ending(unit, self.keys.dead, burial, len(payload))

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

    def return_to_queue(self, unit: UnitOfWork) -> Ending:
        """Returns the job to the head of its queue, or of its suspects."""
        solo = lease.is_solo(self.identity)
        keys = self.keys.of_suspects if solo else self.keys
        lists = keys.of_returns([unit.queue_name])
        arguments = (lease.owner(self.identity), 1, unit.sequence)
        call = Call(LEASE_RETURN, (keys.queues, *lists), arguments)
        return Ending(unit, lists[0], lambda: call)

    def _lease(self, unit: UnitOfWork) -> str:
        return lease.lease(self.identity, unit.sequence)


def read_replies(connection: RedisConnection, sent: Sequence[tuple[Ending, Call]]) -> None:
    """Reads the replies to these calls. Raises ConnectionLost."""
    for ending, _ in sent:
        try:
            ending.reply = connection.read()
        except ResponseError as error:
            ending.reply = error


def send_again(connection: RedisConnection, sent: Sequence[tuple[Ending, Call]]) -> None:
    """Sends a call again whose reply was an error, after all replies were read: a server that does
    not know the script gets its text, and one that met a damaged key says which. Raises
    ConnectionLost."""
    unknown = [each for each in sent if isinstance(each[0].reply, exceptions.NoScriptError)]
    for ending, _ in unknown:
        ending.reply = None
    if not connection.reusable:
        return
    if unknown:
        replies = connection.exchange([call for _, call in unknown])
        for (ending, _), reply in zip(unknown, replies, strict=True):
            ending.reply = reply
    for ending, call in sent:
        error = ending.reply
        if isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE"):
            types = connection.pipeline([("TYPE", key) for key in call.keys])
            ending.reply = damaged_among([str(key) for key in call.keys], types) or error
