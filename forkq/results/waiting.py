"""Waiting for the results of jobs, by threads and by event loops. Any process.

A waiter is woken by what the script of the end writes (store/watch/key_watch.py). Where there are
several shards, each is asked, and one of them knows. No push needs this module.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, NamedTuple

from .. import process_state, registry
from ..current_job import running_job
from ..default_client import adefault, default
from ..errors import (
    ForkqError,
    InvalidJob,
    JobCancelled,
    JobExpired,
    JobFailed,
    ResultNotKept,
    ResultTooLarge,
    ResultUnknown,
    ServerUnavailable,
    shown,
)
from ..features.results.parts import TOO_LARGE, Result, has_ended, read
from ..limits.patterns import matches_any
from ..store.loop.rung import rung
from ..store.route import Channel, Route
from ..wire.printable import shown_name, with_message
from ..wire.times import LONGEST_SECONDS

# Seconds. A job that waits for another one looks so often whether it is to end: Python raises
# nothing in a thread that waits for a lock.
INTERRUPTIBLE: Final = 0.25
# Seconds that a server has for its first answer, also where ``timeout`` is shorter. A wait without
# a time of its own ends with the time-out of the connection.
_FIRST_ANSWER: Final = 0.25
# Seconds that Python can wait at a time.
LONGEST_WAIT: Final = 1e6
_KINDS: Final[Mapping[str, type[JobFailed]]] = {"cancelled": JobCancelled, "expired": JobExpired}


class _HeardFrom(NamedTuple):
    """What the server with that number has said: what stands in the key, or why it is silent."""

    number: int
    said: bytes | Exception | None


class _Waiter:
    """Waits for the result on one server. ``heard`` takes what that says, in another thread."""

    def __init__(
        self, channel: Channel, key: str, number: int, heard: Callable[[_HeardFrom], object]
    ) -> None:
        self.channel = channel
        self.key = key
        self.is_over = False
        self._number = number
        self._heard = heard
        self._was_told = False

    def tell(self, found: bytes | Exception | None) -> bool:
        """Passes on what the server has said. An outage ends only the wait that begins with it: one
        that has begun goes on."""
        if isinstance(found, Exception):
            self.is_over = not self._was_told
        else:
            self._was_told = True
            self.is_over = found is None or has_ended(found)
        try:
            self._heard(_HeardFrom(self._number, found))
        except RuntimeError:  # the loop of the waiter is closed
            self.is_over = True
        return self.is_over


class _ServerAnswers:
    """What the servers have said so far of the job ``jid``. ``found``: its result, once there is
    one."""

    def __init__(self, jid: str, routes: Sequence[Route], channels: Sequence[Channel]) -> None:
        self.found: Result | None = None
        self._jid = jid
        self._channels = channels
        self._keys = [route.keys.result(jid) for route in routes]
        self._last: dict[int, bytes | Exception | None] = {}
        self._waits: set[int] = set()  # the servers on which the job waits or runs
        self._began = monotonic()

    def waiters(self, heard: Callable[[_HeardFrom], object]) -> list[_Waiter]:
        """One waiter for each server."""
        places = enumerate(zip(self._channels, self._keys, strict=True))
        return [_Waiter(channel, key, number, heard) for number, (channel, key) in places]

    def add(self, heard: _HeardFrom) -> None:
        """Notes what one server has said. Raises ForkqError in a job that would wait for one of its
        own capsule."""
        number, said = heard
        self._last[number] = said
        if isinstance(said, Exception):  # a job that has waited before the outage waits on
            return
        found = None if said is None else read(said)
        self._waits.discard(number)
        if found is not None and found.outcome:
            self.found = found
        elif found is not None:
            self._waits.add(number)
            _refuse_deadlock(self._jid, found)

    @property
    def are_over(self) -> bool:
        """Whether there is a result, or none will come."""
        are_all = len(self._last) == len(self._channels)
        return self.found is not None or (are_all and not self._waits)

    def left(self, deadline: float, longest: float) -> float:
        """For how many seconds to wait for the next answer; below 0: no more. Each server gets the
        time for its first answer: a look that waits for nothing (``timeout=0``) that of the
        connection, and what waits a moment at least."""
        if len(self._last) < len(self._channels):
            if deadline <= self._began:
                return longest
            deadline = max(deadline, self._began + _FIRST_ANSWER)
        return min(longest, deadline - monotonic())

    def value(self, timeout: float | None) -> Any:
        """What the job has returned. Raises what ``result`` raises."""
        if self.found is not None:
            return value_of(self._jid, self.found)
        problems = {at: said for at, said in self._last.items() if isinstance(said, Exception)}
        if problems and self._waits <= problems.keys():  # else the job is known to wait elsewhere
            raise next(iter(problems.values()))
        if self.are_over:
            raise ResultUnknown(
                f"the result of job {shown_name(self._jid)} is unknown, or has expired: "
                "`result_ttl` keeps it (docs/results.md)"
            )
        jid = shown_name(self._jid)
        if not self._waits:
            raise ServerUnavailable(
                f"Redis has not answered within {timeout:g} s, so it is not known whether job "
                f"{jid} has ended: look at its host and log"
            )
        raise TimeoutError(f"job {jid} has not ended within {timeout:g} s: it waits or runs")


def result(jid: str, timeout: float | None = None) -> Any:
    """What the job ``jid`` has returned, as JSON has it, once it is done. Waits up to ``timeout``
    seconds for that, by default for as long as it takes.

    Raises JobFailed if the job has ended otherwise, ResultNotKept if it is done and its value could
    not be kept, ResultUnknown at once if there is no result of it to come, TimeoutError, and
    ServerUnavailable. A job cannot wait for one that its own capsule is to run.
    """
    deadline, routes = deadline_of(jid, timeout), default().routes
    answers = _ServerAnswers(jid, routes, [route.channel() for route in routes])
    heard: SimpleQueue[_HeardFrom] = SimpleQueue()
    longest = LONGEST_WAIT if running_job() is None else INTERRUPTIBLE
    waiters = answers.waiters(heard.put)
    try:
        for waiter in waiters:
            waiter.channel.watch(waiter)
        while not answers.are_over and (left := answers.left(deadline, longest)) > 0:
            with suppress(Empty):
                answers.add(heard.get(timeout=left))
    finally:
        _leave(waiters)
    return answers.value(timeout)


async def aresult(jid: str, timeout: float | None = None) -> Any:
    """``result``, awaited by an event loop of asyncio, which it never holds up."""
    deadline, routes = deadline_of(jid, timeout), (await adefault()).routes
    answers = _ServerAnswers(jid, routes, [await route.achannel() for route in routes])
    loop, bell, heard = asyncio.get_running_loop(), asyncio.Event(), deque[_HeardFrom]()

    def pass_on(one: _HeardFrom) -> None:
        heard.append(one)
        loop.call_soon_threadsafe(bell.set)

    waiters = answers.waiters(pass_on)
    try:
        for waiter in waiters:
            waiter.channel.watch(waiter)
        while not answers.are_over and (left := answers.left(deadline, LONGEST_WAIT)) > 0:
            await rung(bell, left)
            while heard:
                answers.add(heard.popleft())
    finally:
        _leave(waiters)
    return answers.value(timeout)


def _leave(waiters: Iterable[_Waiter]) -> None:
    """Ends these waits. It takes no lock: Python's garbage collector may call it anywhere."""
    for waiter in waiters:
        if not waiter.is_over:
            waiter.channel.unwatch(waiter)


def deadline_of(jid: object, timeout: object) -> float:
    """Until when to wait, in monotonic seconds. Raises InvalidJob for what is no jid, and
    ForkqError for what is no time."""
    if type(jid) is not str or not jid:
        raise InvalidJob(f"{shown(jid)} is no jid: pass what a push has returned")
    if timeout is None:
        return inf
    is_time = isinstance(timeout, int | float) and type(timeout) is not bool
    if not is_time or not 0 <= timeout <= LONGEST_SECONDS:  # type: ignore[operator]
        raise ForkqError(f"timeout is {shown(timeout)}: pass a number of seconds from 0 to 1e9")
    return monotonic() + float(timeout)  # type: ignore[arg-type]


def _refuse_deadlock(jid: str, waiting: Result) -> None:
    """Raises ForkqError in a job that would wait for a job of its own capsule: if all its
    processors wait so, none is left for the others."""
    if running_job() is not None and matches_any(waiting.queue, process_state.served()):
        raise ForkqError(
            f"this job would wait for job {shown(jid)}, which waits in the queue "
            f"{shown(waiting.queue)} for the same capsule: once all its processors wait so, "
            "nothing goes on. Return now, and let that job push what comes next; or serve that "
            "queue by another capsule (docs/results.md)"
        )


def value_of(jid: str, found: Result) -> Any:
    """What the job has returned. Raises what ``result`` raises of a job that has ended."""
    job, error = f"job {shown_name(found.job)} {shown_name(jid)}", found.error
    if error is None:
        reader = registry.reader_of(found.job)
        return found.value if reader is None else reader.result(found.value)
    if found.outcome == "done":
        text = f"{job} is done, and its result was not kept: {error.message}"
        if error.name == TOO_LARGE:
            raise ResultTooLarge(f"{text}; keep such a value elsewhere, and return where it is")
        raise ResultNotKept(text)
    said = with_message(error.name, error.message) if error.name else error.message
    failed = _KINDS.get(found.outcome, JobFailed)
    raise failed(
        f"{job} has ended without a result ({found.outcome}): {said}",
        jid,
        found.outcome,
        error.name,
        error.message if error.name else "",
    )
