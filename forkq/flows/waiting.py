"""Waiting for what a step has returned, and reading what the steps before a step have returned.

A waiter is woken by each change of its flow's steps (store/watch/key_watch.py), and reads its own
step then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, NamedTuple

from .. import process_state
from ..current_job import running_job
from ..default_client import adefault, default
from ..errors import ForkqError, JobCancelled, ResultUnknown, shown
from ..features.flow.parts import field_of_end, field_of_index, read_end
from ..features.results.parts import Result
from ..limits.patterns import matches_any
from ..results.waiting import INTERRUPTIBLE, LONGEST_WAIT, deadline_of, value_of
from ..servers import Server, first_found
from ..store.loop.in_thread import in_thread
from ..store.loop.rung import rung
from ..store.route import Channel, Route
from ..wire.printable import shown_name

_CANCELLED: Final = 3  # the two bits of a step that has ended otherwise


class StepState(NamedTuple):
    """What Redis says of a step: its two bits, and how it has ended."""

    state: int
    end: Result | None


class _StepWaiter:
    """Has ``heard`` called, in another thread, when the key may have changed, or with an error."""

    def __init__(self, key: str, heard: Callable[[Exception | None], object]) -> None:
        self.key = key
        self._heard = heard

    def tell(self, found: bytes | Exception | None) -> bool:
        """Passes on that something may have changed, or why that cannot be known."""
        try:
            self._heard(found if isinstance(found, Exception) else None)
        except RuntimeError:  # the loop of the waiter is closed
            return True
        return False


def step_result(bid: str, name: str, timeout: float | None) -> Any:
    """``Flow.get``, by a thread that waits."""
    deadline = deadline_of(name, timeout)
    found = _read(bid, name)
    if found.state == 0 and found.end is None:
        found = _wait(bid, name, deadline)
    return _value(bid, name, found, timeout)


async def astep_result(bid: str, name: str, timeout: float | None) -> Any:
    """``Flow.aget``: awaited by an event loop."""
    deadline = deadline_of(name, timeout)
    await adefault()
    found = await in_thread(lambda: _read(bid, name))
    if found.state == 0 and found.end is None:
        found = await _await(bid, name, deadline)
    return _value(bid, name, found, timeout)


def _wait(bid: str, name: str, deadline: float) -> StepState:
    heard: SimpleQueue[Exception | None] = SimpleQueue()
    longest = LONGEST_WAIT if running_job() is None else INTERRUPTIBLE
    found, watches = StepState(0, None), _watches(bid, default().routes, heard.put)
    try:
        for channel, waiter in watches:
            channel.watch(waiter)
        while (left := deadline - monotonic()) > 0 and found == (0, None):
            with suppress(Empty):
                _raise(heard.get(timeout=min(left, longest)))
                found = _read(bid, name)
    finally:
        _leave(watches)
    return found


async def _await(bid: str, name: str, deadline: float) -> StepState:
    loop, bell = asyncio.get_running_loop(), asyncio.Event()
    errors: list[Exception | None] = []

    def pass_on(error: Exception | None) -> None:
        errors.append(error)
        loop.call_soon_threadsafe(bell.set)

    found = StepState(0, None)
    watches = _watches(bid, default().routes, pass_on)
    try:
        for channel, waiter in watches:
            channel.watch(waiter)
        while (left := deadline - monotonic()) > 0 and found == (0, None):
            await rung(bell, min(left, LONGEST_WAIT))
            _raise(next((error for error in errors if error), None))
            found = await in_thread(lambda: _read(bid, name))
    finally:
        _leave(watches)
    return found


def _watches(
    bid: str, routes: Iterable[Route], heard: Callable[[Exception | None], object]
) -> list[tuple[Channel, _StepWaiter]]:
    """What tells of changes of the flow, which is on one of the servers."""
    return [(route.channel(), _StepWaiter(route.keys.flow_steps(bid), heard)) for route in routes]


def _leave(watches: Iterable[tuple[Channel, _StepWaiter]]) -> None:
    """Ends these waits. It takes no lock: Python's garbage collector may call it anywhere."""
    for channel, waiter in watches:
        channel.unwatch(waiter)


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _read(bid: str, name: str) -> StepState:
    """What Redis says of the step now. Raises ResultUnknown if there is no such step."""
    found = first_found(default().servers, lambda server: _read_on(server, bid, name))
    if found is None:
        raise ResultUnknown(
            f"there is no step {shown(name)} of a flow {shown_name(bid)}: its name is another one "
            "(`forkq flows show` lists them), or the flow has changed nothing for 180 days"
        )
    return found


def _read_on(server: Server, bid: str, name: str) -> StepState | None:
    """What this server says of the step; None if it does not have it."""
    steps, ends = server.keys.flow_steps(bid), server.keys.batch_ends(bid)
    [found] = server.ask(("HGET", steps, field_of_index(name)))
    if found is None:
        return None
    index = int(found)
    asked = (("HGET", steps, field_of_end(index)), ("BITFIELD", ends, "GET", "u2", f"#{index}"))
    end, [state] = server.ask(*asked)
    return StepState(state, read_end(end))


def _value(bid: str, name: str, found: StepState, timeout: float | None) -> Any:
    if found.end is not None:
        return value_of(name, found.end)
    if found.state == _CANCELLED:
        raise JobCancelled(
            f"step {shown(name)} of the flow {shown_name(bid)} was cancelled before it started: a "
            "step before it has ended badly, or the flow was cancelled",
            *("", "cancelled", "", ""),
        )
    raise TimeoutError(f"step {shown(name)} has not ended within {timeout:g} s: it waits or runs")


def refuse_deadlock(name: str, queues: Iterable[str]) -> None:
    """Raises ForkqError in a job that would wait for a step in one of these ``queues``, which its
    own capsule is to run."""
    served = process_state.served()
    if running_job() is not None and any(matches_any(queue, served) for queue in queues):
        raise ForkqError(
            f"this job would wait for step {shown(name)}, which its own capsule is to run: once "
            "all its processors wait so, nothing goes on. Make a step of what comes next, with "
            "`after=`"
        )
