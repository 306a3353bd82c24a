"""Where the pushes of this process go in a test: recorded, performed at once, refused, or to Redis.

Each ``with`` adds a mode to one stack of the process, and the latest counts, in all threads. The
stack is asked at the one place where a push leaves the process (store/transport.py).
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ..store.transport import Channel, divert
from ..wire.redis_url import redacted_url
from .jobs import RecordedJobs

if TYPE_CHECKING:
    from types import TracebackType

_HELP: Final = (
    "Ask for the fixture `forkq_jobs`, which records pushes, or for `forkq_server`, a Redis for "
    'tests. To let this one test reach that server, mark it `@pytest.mark.forkq("real")`; for all '
    'tests, write `forkq_pushes = "real"` into the configuration of pytest.'
)


class PushRefused(AssertionError):
    """A test was about to reach a real server."""


class Mode(Protocol):
    """What becomes of pushes. ``channel`` takes those to ``url``; None means Redis."""

    def channel(self, url: str) -> Channel | None: ...


class ToRedis:
    """Pushes leave the process: to ``only`` this URL, if one is given."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only

    def channel(self, url: str) -> Channel | None:
        """None for the server that may be reached; for another one a refusal."""
        return None if self._only in (None, url) else Refusal().channel(url)


class Refusal:
    """No push leaves the process."""

    def channel(self, url: str) -> Channel | None:
        """Raises PushRefused."""
        raise PushRefused(f"this test pushes to a real server, {redacted_url(url)}. {_HELP}")


AnyMode = TypeVar("AnyMode", bound=Mode)
Function = TypeVar("Function", bound=Callable[..., Any])
_stack: tuple[Mode, ...] = ()
_lock: Final = threading.Lock()


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
        _replace(None, mode)
        return mode

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _replace(self._entered.pop(), None)

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
        with Scope(make):
            return function(*args, **kwargs)

    return call


def _async_in(make: Callable[[], Mode], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with Scope(make):
            return await function(*args, **kwargs)

    return call


def fake() -> Scope[RecordedJobs]:
    """Pushes are recorded, and nothing leaves the process. ``with`` returns the RecordedJobs."""
    return Scope(RecordedJobs)


def inline() -> Scope[RecordedJobs]:
    """A push performs its job at once, in the thread that pushes, and raises what the job raises.

    A job for later, and the retry of a job that failed, are recorded as under ``fake``.
    """
    return Scope(lambda: RecordedJobs(at_once=True))


def real(url: str | None = None) -> Scope[ToRedis]:
    """Pushes reach Redis; if ``url`` is given, that server alone."""
    return Scope(lambda: ToRedis(url))


def refused() -> Scope[Refusal]:
    """Pushes raise PushRefused, and so does all else that needs Redis: so the pytest plugin runs
    each test that asks for nothing else."""
    return Scope(Refusal)


def active() -> Mode | None:
    """What becomes of pushes now; None means Redis."""
    return _stack[-1] if _stack else None


def recorded() -> RecordedJobs:
    """The jobs of the innermost ``fake`` or ``inline``. Raises AssertionError outside of both."""
    for mode in reversed(_stack):
        if isinstance(mode, RecordedJobs):
            return mode
    raise AssertionError(
        "no pushes are recorded here: use `with forkq.testing.fake() as jobs:`, the fixture "
        "`forkq_jobs`, or forkq.testing.JobsMixin"
    )


def _replace(old: Mode | None, new: Mode | None) -> None:
    """Takes ``old`` off the stack, wherever it stands: another thread may have entered one since.
    Puts ``new`` on top."""
    global _stack  # noqa: PLW0603 - clients of the whole process look here
    with _lock:
        left = [mode for mode in _stack if mode is not old]
        _stack = (*left, new) if new is not None else tuple(left)
        divert(_channel if _stack else None)


def _channel(url: str) -> Channel | None:
    stack = _stack
    return stack[-1].channel(url) if stack else None
