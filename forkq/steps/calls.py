"""What a job calls to do a step once: ``forkq.step`` and ``forkq.astep``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

from ..errors import ForkqError
from .run import current_key, inside, steps_here

P = ParamSpec("P")
T = TypeVar("T")


class StepCall:
    """What ``forkq.step`` is: a function, and the key of the step that runs."""

    def __call__(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does a step of the job that runs: calls ``fn`` with the arguments, and remembers what it
        returns, a JSON value. A later run of the same job, after a crash, a retry or a deploy, gets
        that at once, and ``fn`` is not called again. If ``fn`` raises, nothing is remembered.

        ``name`` is what the job remembers the step by; each step of a run has a name of its own.
        """
        if asyncio._get_running_loop() is not None:
            raise ForkqError(
                f"forkq.step({name!r}, ...) would block the event loop: write `await forkq.astep`"
            )
        steps = steps_here("step")
        if (found := steps.begin(name)) is not None:
            return cast("T", found.value)
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
async def astep(name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``step`` for a coroutine: ``fn`` may be ``async def``. Redis is asked in a thread, so the
    event loop does not wait for it."""
    steps = steps_here("astep")
    if not steps.is_loaded:
        await asyncio.to_thread(steps.load)
    if (found := steps.begin(name)) is not None:
        return found.value
    with inside(steps, name):
        value = fn(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
    return await asyncio.to_thread(steps.save, name, steps.written(value))


def _close(value: Any) -> None:
    """Ends a coroutine that is not awaited, without Python's warning."""
    if inspect.iscoroutine(value):
        value.close()
