"""Where the pushes of this process go in a test: recorded, performed at once, refused, or to Redis.

Each ``with`` adds a mode to the stack of the process (stack.py).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ..store.route import Channel
from ..wire.redis_url import redacted_url
from .jobs import JobsRunTwice, RecordedJobs
from .stack import Mode, enter, leave, modes, within

if TYPE_CHECKING:
    from types import TracebackType

_HELP: Final = (
    "Ask for the fixture `forkq_jobs`, which records pushes, or for `forkq_server`, a Redis for "
    'tests. To let this one test reach that server, mark it `@pytest.mark.forkq("real")`; for all '
    "tests, set `forkq_pushes` to `real` in the configuration of pytest."
)


class PushRefused(AssertionError):
    """A test was about to reach a real server."""


class ToRedis:
    """A mode in which pushes leave the process: to ``only`` this URL, if one is given."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only

    def channel(self, url: str) -> Channel | None:
        """Returns None for a server that may be reached; raises PushRefused for another one."""
        return None if self._only in (None, url) else Refusal().channel(url)


class Refusal:
    """A mode in which no push leaves the process."""

    def channel(self, url: str) -> Channel | None:
        """Raises PushRefused."""
        raise PushRefused(f"this test would reach a real server, {redacted_url(url)}. {_HELP}")


AnyMode = TypeVar("AnyMode", bound=Mode)
Function = TypeVar("Function", bound=Callable[..., Any])


class Scope(Generic[AnyMode]):
    """A mode for a ``with`` block, or as a decorator for each call of a function, async or not.

    Its end restores what was before. ``with`` returns the mode.
    """

    def __init__(self, make: Callable[[], AnyMode]) -> None:
        self._make = make
        self._entered: list[AnyMode] = []

    def __enter__(self) -> AnyMode:
        mode = self._make()
        self._entered.append(mode)
        enter(mode)
        return mode

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self._entered.pop())

    def __call__(self, function: Function) -> Function:
        if inspect.isclass(function):
            raise TypeError(
                "decorate a test, not a class; a class derives from forkq.testing.JobsMixin"
            )
        wrapper = _async_in if inspect.iscoroutinefunction(function) else _in
        return wrapper(self._make, function)  # type: ignore[return-value]


def _in(make: Callable[[], Mode], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with within(make()):
            return function(*args, **kwargs)

    return call


def _async_in(make: Callable[[], Mode], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with within(make()):
            return await function(*args, **kwargs)

    return call


def fake(*, twice: bool = False) -> Scope[RecordedJobs]:
    """Pushes are recorded, and nothing leaves the process. ``with`` returns the RecordedJobs.

    ``twice``: each run that does not fail is done twice, as after a kill of its process before the
    end of the run was written.
    """
    return Scope(JobsRunTwice if twice else RecordedJobs)


def inline(*, twice: bool = False) -> Scope[RecordedJobs]:
    """A push performs its job at once, in the thread that pushes, and raises what the job raises.

    An awaited push performs a coroutine in its own loop, and a ``def`` job in another thread.
    A job for later, and the retry of a job that failed, are recorded as under ``fake``. ``twice``
    is that of ``fake``.
    """
    jobs = JobsRunTwice if twice else RecordedJobs
    return Scope(lambda: jobs(at_once=True))


def real(url: str | None = None) -> Scope[ToRedis]:
    """Pushes reach Redis; if ``url`` is given, that server alone."""
    return Scope(lambda: ToRedis(url))


def refused() -> Scope[Refusal]:
    """Pushes raise PushRefused, and so does all else that needs Redis: so the pytest plugin runs
    each test that asks for nothing else."""
    return Scope(Refusal)


def recorded() -> RecordedJobs:
    """The jobs of the innermost ``fake`` or ``inline``. Raises AssertionError outside of both."""
    for mode in reversed(modes()):
        if isinstance(mode, RecordedJobs):
            return mode
    raise AssertionError(
        "no pushes are recorded here: use `with forkq.testing.fake() as jobs:`, the fixture "
        "`forkq_jobs`, or forkq.testing.JobsMixin"
    )
