"""What a job calls to do a step once, to sleep, and to wait for a signal."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

from ..errors import ForkqError, InvalidJob, shown
from ..features.steps.parts import RememberedStep, Signal, SignalWait, event_of
from ..push import does_next
from ..wire.times import LONGEST_SECONDS
from .run import StepsOfRun, current_key, inside, steps_here

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(call: Callable[P, T]) -> Callable[P, T]:
    """A call for coroutines. It raises ForkqError where nothing awaits it: nothing would be done,
    and the job would be done all the same."""

    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if does_next(sys._getframe(1), "POP_TOP"):
            name = call.__name__
            other = "wait_for" if name == "await_for" else name[1:]
            raise ForkqError(
                f"nothing awaits this forkq.{name}, so it would do nothing: write "
                f"`await forkq.{name}(...)`, or in a `def` job `forkq.{other}(...)`"
            )
        return call(*args, **kwargs)

    return checked


def _with_timeout(call: Callable[P, T]) -> Callable[P, T]:
    """The call of a wait, which raises InvalidJob where Python would say what is missing, and not
    why."""

    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if "timeout" not in kwargs:
            raise InvalidJob(
                f"forkq.{call.__name__} takes a time-out, since a job that waits for ever is found "
                "by no one: timeout=3 * 86_400 are three days, and it returns None after them"
            )
        return call(*args, **kwargs)

    return checked


class StepCall:
    """What ``forkq.step`` is: a function, and the key of the step that runs."""

    def __call__(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does a step of the job that runs: calls ``fn`` with the arguments, and remembers what it
        returns, a JSON value. A later run of the same job, after a crash, a retry or a deploy, gets
        that at once, and ``fn`` is not called again. If ``fn`` raises, nothing is remembered.

        ``name`` is what the job remembers the step by; each step of a run has a name of its own.
        """
        _refuse_in_loop("step")
        _refuse_no_function(name, fn)
        steps = steps_here("step")
        if (found := steps.begin(name, "step")) is not None:
            return cast("T", found.value)
        with steps.in_progress(name):
            with inside(steps, name):
                value = fn(*args, **kwargs)
            if inspect.isawaitable(value):
                _close(value)
                raise ForkqError(
                    f"the function of the step {name!r} is `async def`: make the job one, too, and "
                    "write `await forkq.astep`"
                )
            return cast("T", steps.save(name, steps.written(value)))

    @property
    def key(self) -> str:
        """The jid and the name of the step whose function runs: the same in each run of the job.
        Hand it to a service that does a request with the same key only once."""
        return current_key()


step: Final = StepCall()


@overload
async def astep(
    name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T: ...
@overload
async def astep(name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
@_awaited
async def astep(name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``step`` for a coroutine: ``fn`` may be ``async def``. Redis is asked in a thread, so the
    event loop does not wait for it."""
    _refuse_no_function(name, fn)
    steps = steps_here("astep")
    if not steps.is_loaded:
        await asyncio.to_thread(steps.load)
    if (found := steps.begin(name, "step")) is not None:
        return found.value
    with steps.in_progress(name):
        with inside(steps, name):
            value = fn(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
        return await asyncio.to_thread(steps.save, name, steps.written(value))


def sleep(name: str, delay: float | timedelta) -> None:
    """Lets the job that runs go on ``delay`` later: seconds, or a timedelta. Meanwhile it waits in
    the schedule, under its jid, and its worker is free; that is no failure, and costs no retry.
    Then the job begins anew, skips its steps, and comes past this one.

    ``name`` is that of a step: the job remembers until when it sleeps.
    """
    _refuse_in_loop("sleep")
    steps_here("sleep").sleep(name, _seconds("sleep", delay))


@_awaited
async def asleep(name: str, delay: float | timedelta) -> None:
    """``sleep`` for a coroutine."""
    steps = steps_here("asleep")
    if not steps.is_loaded:
        await asyncio.to_thread(steps.load)
    steps.sleep(name, _seconds("asleep", delay))


@_with_timeout
def wait_for(
    event: str, *, key: str | int | None = None, timeout: float | timedelta, name: str = ""
) -> Signal | None:
    """Lets the job that runs go on once ``forkq.signal(event, key=key)`` is called, or was called
    before. Meanwhile it waits in the schedule, as with ``sleep``. Returns the signal, whose
    ``data`` are those of the call; None if none has come for ``timeout`` seconds, or a timedelta.
    The end is remembered: a later run gets the same.

    ``name``: that of the step, for a job that waits for one event and key several times.
    """
    _refuse_in_loop("wait_for")
    steps, called = steps_here("wait_for"), event_of(event, key)
    found = steps.begin_wait(name or called, called, _seconds("wait_for", timeout))
    ended = steps.look(found) if isinstance(found, SignalWait) else found
    return _ended(steps, found, ended)


@_awaited
@_with_timeout
async def await_for(
    event: str, *, key: str | int | None = None, timeout: float | timedelta, name: str = ""
) -> Signal | None:
    """``wait_for`` for a coroutine."""
    steps, called = steps_here("await_for"), event_of(event, key)
    if not steps.is_loaded:
        await asyncio.to_thread(steps.load)
    found = steps.begin_wait(name or called, called, _seconds("await_for", timeout))
    ended = await asyncio.to_thread(steps.look, found) if isinstance(found, SignalWait) else found
    return _ended(steps, found, ended)


def _ended(
    steps: StepsOfRun, wait: SignalWait | RememberedStep, ended: RememberedStep | None
) -> Signal | None:
    """The signal that has ended the wait, or None. Raises Asleep if it goes on."""
    if ended is None and isinstance(wait, SignalWait):
        steps.wait(wait)
    return None if ended is None else ended.signal


def _seconds(call: str, given: float | timedelta) -> float:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if type(seconds) not in (int, float) or not 0 <= seconds <= LONGEST_SECONDS:
        raise InvalidJob(
            f"forkq.{call} got the time {shown(given)}: pass a number of seconds from 0 to 1e9, or "
            "a timedelta"
        )
    return float(seconds)


def _refuse_in_loop(call: str) -> None:
    if asyncio._get_running_loop() is not None:
        other = "await_for" if call == "wait_for" else f"a{call}"
        raise ForkqError(
            f"forkq.{call} would block the event loop: write `await forkq.{other}(...)`"
        )


def _refuse_no_function(name: str, fn: object) -> None:
    """Raises InvalidJob for what a caller has called already, for example."""
    if not callable(fn):
        raise InvalidJob(
            f"the step {shown(name)} takes a function and its arguments, as in "
            f'forkq.step("charge", pay, 7): this is of type {type(fn).__name__}'
        )


def _close(value: Any) -> None:
    """Ends a coroutine that is not awaited, without Python's warning."""
    if inspect.iscoroutine(value):
        value.close()
