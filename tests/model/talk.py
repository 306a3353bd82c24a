"""How forkq's own code is driven step by step: it runs until it needs something of the world, and
is run again from its beginning, with the answers that it got so far, when the world has an answer.

The code is that of the processes. Only what is under it is replaced: socket, clock, sleep.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from unittest import mock

import hiredis

from forkq.child import job_way, processor, time_limits
from forkq.child.failure import ends, retry, settle
from forkq.child.fetch import channel, fetcher, queues
from forkq.clock import cancelled_jobs, due_jobs, expired_jobs
from forkq.store.connection import RedisConnection
from forkq.store.redis_py import exceptions
from forkq.wire import times

from .commands import MOMENT, Mapped, Ok, Refused

_START: Final = 1e6  # of the steady clocks
# Seconds: after it a child compares its leases with Redis though nothing has failed.
_LONG: Final = 130.0
# Seconds after which all is due that a process has put off, and nothing has expired yet.
_SOON: Final = 300.0


class Send(NamedTuple):
    """Commands are written to the socket; ``tracked``: the keys of each are registered."""

    commands: tuple[tuple[tuple[bytes, ...], bool], ...]


class Take(NamedTuple):
    """The next reply or report is read. It waits for one."""


class Peek(NamedTuple):
    """What could be read now: "reply", "report" or ""."""


class Wait(NamedTuple):
    """It sleeps until something can be read; ``timed``: or until a moment has come."""

    timed: bool


class Connect(NamedTuple):
    """It opens a new connection."""


class Ask(NamedTuple):
    """Anything else: ``what``, and of which thing."""

    what: str
    of: str = ""


Request: TypeAlias = "Send | Take | Peek | Wait | Connect | Ask"
# A reply or a report as it comes from the socket; or LOST.
Item: TypeAlias = "tuple[str, Any]"
LOST: Final[Item] = ("lost", None)


class Suspended(BaseException):
    """The code needs an answer that there is not yet."""


class Clock:
    """The clocks of the process that runs. A sleep moves the steady one on. The time of day is
    that of the server; only in worlds in which jobs expire does it ever change, and there a process
    asks for it (``timed``) each time that it looks."""

    def __init__(self) -> None:
        self.now = _START
        self.timed: Talk | None = None

    def time(self) -> float:
        """Epoch seconds."""
        return float(self.timed.ask(Ask("time")) if self.timed else MOMENT) + 1e-6

    def time_for_due_jobs(self) -> float:
        """A time at which all that has a time is due: see docs/proof.md."""
        return self.time() + _SOON if self.timed else 2.0 * MOMENT + 0.5

    def sleep(self, seconds: float) -> None:
        """Time passes for this process alone."""
        self.now += max(seconds, 0.001)

    def monotonic(self) -> float:
        return self.now


CLOCK: Final = Clock()


class Talk:
    """The questions of one process, and the ``answers`` so far."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = answers
        self._given = 0
        self._is_suspended = False
        self.request: Request = Connect()
        self.head: object = None  # the state at the last checkpoint, if that is new

    def ask(self, request: Request) -> Any:
        """The answer to ``request``. Raises Suspended if there is none yet, and from then on: the
        code may catch whatever a job raises."""
        if self._is_suspended:
            raise Suspended
        if self._given == len(self._answers):
            self.request, self._is_suspended = request, True
            raise Suspended
        answer = self._answers[self._given]
        self._given += 1
        return answer

    def checkpoint(self, state: Callable[[], object]) -> None:
        """All that the process knows is ``state`` now: it does not matter how it came here."""
        if self._is_suspended:
            raise Suspended
        if self._given == len(self._answers):
            self.head = state()


class Socket:
    """Stands where a RawConnection stands."""

    look_every = float("inf")

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._on_change: Callable[[list[bytes] | None], None] | None = None
        self._local: list[Any] = []  # replies to what the server need not be asked
        self._tracked = False
        self._awaited: list[bool] = []  # for each reply to come: whether the server gives it
        talk.ask(Connect())

    def write(self, data: bytes) -> None:
        reader = hiredis.Reader()
        reader.feed(data)
        sent = []
        while (command := reader.gets()) is not False:
            local = self._answered_here(command)
            self._awaited.append(local is None)
            if local is None:
                names = sorted(command[1:]) if self._tracked else command[1:]  # of a set: any order
                sent.append(((command[0], *names), self._tracked))
                self._tracked = False
            else:
                self._local.append(local)
        if sent:
            self._talk.ask(Send(tuple(sent)))

    def _answered_here(self, command: Sequence[bytes]) -> Any:
        """The reply to what changes nothing in Redis; None if the server is asked."""
        name = command[0].upper()
        if name == b"CLIENT":
            self._tracked = command[1] == b"CACHING"
            return b"OK"
        if name == b"TIME":
            return [b"%d" % MOMENT, b"0"]
        return {b"SCRIPT": b"-", b"PING": b"PONG"}.get(name)

    def read_replies(self, count: int) -> list[Any]:
        replies: list[Any] = []
        while len(replies) < count:
            if not self._awaited.pop(0):
                replies.append(self._local.pop(0))
                continue
            while (item := self._take())[0] == "report":
                pass
            replies.append(_as_read(item[1]))
        return replies

    def _take(self) -> Item:
        item: Item = self._talk.ask(Take())
        if item == LOST:
            raise exceptions.ConnectionError("the model cut this connection")
        if item[0] == "report" and self._on_change is not None:
            self._on_change(list(item[1]))
        return item

    def read_push(self) -> None:
        self._take()

    def can_read(self) -> bool:
        return bool(self._talk.ask(Peek()))

    def next_is_push(self) -> bool:
        return bool(self._talk.ask(Peek()) == "report")

    def wait(self, timed: float | None) -> bool:
        """Whether there is something to read before the moment comes in so many seconds."""
        answer = self._talk.ask(Wait(timed is not None))
        if answer != "report":
            CLOCK.sleep(_LONG if timed is None else timed)
        return bool(answer == "report")

    def on_invalidation(self, call: Callable[[list[bytes] | None], None]) -> None:
        self._on_change = call

    def set_timeout(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class ModelConnection(RedisConnection):
    """forkq's connection over such a socket."""

    def __init__(self, talk: Talk) -> None:
        super().__init__("redis://model")
        self._connector: Any = _ModelConnector(talk)

    def wait(self, timeout: float, *wakes: int) -> bool:
        socket: Any = self._open()
        if timeout <= 0:
            return bool(socket.can_read())
        return bool(socket.wait(timeout if timeout < _SHORTEST_USUAL else None))


_SHORTEST_USUAL: Final = 4.0  # seconds: a shorter wait is for a token of a rate


@dataclass
class _ModelConnector:
    talk: Talk

    def connect(self) -> Socket:
        return Socket(self.talk)

    def set_timeout(self, seconds: float) -> None:
        pass


def _as_read(value: Any) -> Any:
    """A reply as hiredis and redis-py make it."""
    if isinstance(value, Refused):
        text = str(value)
        if text.startswith("OOM"):
            return exceptions.OutOfMemoryError(text.partition(" ")[2])
        if text.startswith("READONLY"):
            return exceptions.ReadOnlyError(text.partition(" ")[2])
        if text.startswith("NOPERM"):
            return exceptions.NoPermissionError(text)
        return exceptions.ResponseError(text)
    if isinstance(value, Ok):
        return value.text
    if isinstance(value, Mapped):
        return dict(value.pairs)
    return [_as_read(each) for each in value] if isinstance(value, tuple) else value


class Program:
    """The code of one process. ``run`` never returns. What it must not share with another run, it
    makes in ``run``."""

    name = ""
    # Whether it looks at a time of day that changes.
    is_timed = False

    def run(self, talk: Talk) -> None:
        raise NotImplementedError

    def note(self) -> Any:
        """What the world may see of the process although it does not ask."""
        return None


class Node:
    """A state of a process: what it asks, and how it comes to the next ones. ``head`` and ``since``
    tell two states apart: what it knew at its last checkpoint, and the answers since."""

    def __init__(
        self, answers: tuple[Any, ...], request: Request, head: object, since: tuple[Any, ...]
    ) -> None:
        self.answers = answers
        self.request = request
        self.head = head
        self.since = since
        self.note: Any = None
        self.next: dict[Any, int] = {}
        self.number = 0


class Process:
    """All states of the processes that run one program. A state is known by its number."""

    def __init__(self, make: Callable[[], Program]) -> None:
        self._make = make
        self.nodes: list[Node] = []
        self._numbers: dict[Any, int] = {}
        self.runs = 0
        self.first = self._find((), None)

    def after(self, number: int, answer: Any) -> int:
        """The state to which this answer leads."""
        node = self.nodes[number]
        found = node.next.get(answer)
        if found is None:
            found = node.next[answer] = self._find((*node.answers, answer), node)
        return found

    def _find(self, answers: tuple[Any, ...], before: Node | None) -> int:
        self.runs += 1
        program, talk = self._make(), Talk(answers)
        CLOCK.now, CLOCK.timed = _START, talk if program.is_timed else None
        random.seed(1)
        try:
            program.run(talk)
        except Suspended:
            pass
        else:
            raise AssertionError(f"the program {program.name} has ended")
        head, since = talk.head, ()
        if head is None and before is None:
            head = "start"
        elif head is None and before is not None:
            head, since = before.head, (*before.since, answers[-1])
        key = (talk.request, head, since)
        if key not in self._numbers:
            node = Node(answers, talk.request, head, since)
            node.note = program.note()
            node.number = self._numbers[key] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[key]


class _SilentWaker:
    """Nobody else runs in the process."""

    fd = -1

    def wake(self) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        CLOCK.sleep(seconds)

    def clear(self, *, seen: bool = True) -> None:
        pass


@contextmanager
def model_time() -> Iterator[None]:
    """Within it forkq's code lives in the time of the model. The clocks that decide what is due see
    all that has a time as due: see docs/proof.md."""
    replaced: list[tuple[Any, str, Any]] = [
        *((module, "monotonic", CLOCK.monotonic) for module in (channel, fetcher, queues, job_way)),
        *((module, "steady", CLOCK.monotonic) for module in (channel, fetcher, times)),
        *((module, "Waker", _SilentWaker) for module in (fetcher, time_limits)),
        (time, "monotonic", CLOCK.monotonic),
        (time, "sleep", CLOCK.sleep),
        (time, "time", lambda: float(MOMENT)),
        (times, "follow", lambda stamp, at: None),
        *((module, "now", CLOCK.time) for module in (job_way, processor, retry, expired_jobs)),
        *((module, "now", CLOCK.time) for module in (ends, settle)),
        (due_jobs, "now", CLOCK.time_for_due_jobs),
        (expired_jobs, "monotonic", CLOCK.monotonic),
        (cancelled_jobs, "monotonic", CLOCK.monotonic),
        (cancelled_jobs, "now", CLOCK.time),
        (random, "uniform", lambda least, most: (least + most) / 2),
        (secrets, "token_hex", lambda size: "0" * 2 * size),
        (os, "urandom", bytes),
    ]
    with ExitStack() as patches:
        for place, name, value in replaced:
            patches.enter_context(mock.patch.object(place, name, value))
        yield
