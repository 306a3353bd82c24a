"""Kills a job at each point at which a kill matters, and asks the author what has come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import iscoroutinefunction
from math import inf
from typing import Any, Final

from ..default_client import default
from ..features.marked import readable
from ..store.route import EncodedJob, Wait
from ..store.scripts import BATCH_CHANGE, CANCEL, FLOW_CHANGE, FLOW_PUSH, SIGNAL_SEND, Script
from ..units import plural
from ..wire.prepared import PreparedJob
from ..wire.printable import with_message
from .fake_connection import FakeConnection
from .jobs import RecordedJobs
from .kills import KillAt, Kills
from .recorded_job import RecordedJob
from .recorder import Recorder
from .stack import within

_CHANGES: Final = (
    (FLOW_PUSH, "push of a flow"),
    (FLOW_CHANGE, "cancel of a flow"),
    (BATCH_CHANGE, "change of a batch"),
)


def crash_everywhere(
    job: PreparedJob,
    *,
    check: Callable[[RecordedJobs], object],
    setup: Callable[[], object] | None = None,
) -> list[str]:
    """Runs a job again and again, ``crash_everywhere(fulfil.s(7), check=check)``: once without a
    kill, then once for each point at which a kill matters, with a kill of its process there, after
    which the next child runs it again, to its end. After each of these ``check`` is called with
    what was pushed meanwhile, and asserts what must hold. Returns the points.

    The points: before and after each step and each push, in a step before it is remembered, before
    each pause, and before the job is acknowledged. ``setup`` is called before each of them, to set
    the effects back; what it pushes is recorded, too. The jobs that this one pushes are not run,
    unless ``check`` calls ``drain``.

    Raises AssertionError with each point after which ``check`` has raised an Exception, or the job
    was given up.
    """
    if not isinstance(job, PreparedJob):
        raise TypeError("crash_everywhere takes a job with its arguments: job.s(...)")
    for name, given in (("check", check), ("setup", setup)):
        if iscoroutinefunction(given):
            raise TypeError(f"`{name}` of crash_everywhere is `async def`: write `def`")
    points, error = _world(job, None, check, setup)
    if error is not None:
        raise AssertionError(f"without any kill: {_said(error)}") from error
    failed: list[tuple[str, Exception]] = []
    for number, point in enumerate(points):
        reached, error = _world(job, number, check, setup)
        if reached[number:] != [point]:
            raise AssertionError(_unlike(point, reached[number:]))
        if error is not None:
            failed.append((point, error))
    if failed:
        raise AssertionError(_complaint(job, len(points), failed)) from failed[0][1]
    return points


def _world(
    job: PreparedJob,
    number: int | None,
    check: Callable[[RecordedJobs], object],
    setup: Callable[[], object] | None,
) -> tuple[list[str], Exception | None]:
    """Runs the job to its end, with a kill at the point of this number. Returns the points to which
    it has come until then, and what is wrong afterwards."""
    jobs, kills = _Jobs(), KillAt(number)
    with within(jobs):
        if setup is not None:
            setup()
        jid = default().push(dict(job.payload))
        if not jid:
            raise AssertionError(f"{job} was not pushed: a middleware, or a job before it, says no")
        jobs.run_to_end(jid, kills)
        try:
            jobs.check()
            check(jobs)
        except Exception as error:  # noqa: BLE001 - the author's code; it is told with the point
            return kills.points, error
    return kills.points, None


class _Jobs(RecordedJobs):
    """What is recorded while a job runs that is killed once: its pushes are points."""

    def __init__(self) -> None:
        super().__init__()
        self._kills: KillAt | None = None

    def run_to_end(self, jid: str, kills: KillAt) -> None:
        """Runs this job until it waits no more, and no other one."""
        self._kills = kills
        try:
            self._run_all(lambda each: each.jid == jid, inf)
        finally:
            self._kills = None

    def _kills_of_run(self) -> Kills | None:
        """The job is killed once."""
        return self._kills

    def _perform_again(self, job: RecordedJob) -> BaseException | None:
        """Runs the job again, from now on without a kill."""
        self._kills = None
        return super()._perform_again(job)

    def push(
        self,
        jobs: Sequence[EncodedJob],
        wait: Wait | None = None,
        duplicates: dict[str, str] | None = None,
    ) -> bool | None:
        """Records a push, and is a point before and after it."""
        with self._around(_push_of(jobs)):
            return super().push(jobs, wait, duplicates)

    async def apush(
        self,
        jobs: Sequence[EncodedJob],
        wait: Wait | None = None,
        duplicates: dict[str, str] | None = None,
    ) -> bool | None:
        """``push``, awaited."""
        with self._around(_push_of(jobs)):
            return await super().apush(jobs, wait, duplicates)

    def connection(self) -> AbstractContextManager[Any]:
        """What stands in the place of a connection: its changes are points."""
        return nullcontext(_Connection(self, self._around))

    @contextmanager
    def _around(self, what: str) -> Iterator[None]:
        kills = self._kills
        if kills is None:
            yield
            return
        kills.reach(f"before {what}")
        yield
        kills.reach(f"after {what}")


class _Connection(FakeConnection):
    """A connection each of whose scripts is a point before and after it."""

    def __init__(
        self, jobs: Recorder, around: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        super().__init__(jobs)
        self._around = around

    def script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Changes batches and flows, cancels jobs, and sends signals."""
        with self._around(_change_by(script, arguments)):
            return super().script(script, keys, arguments)


def _change_by(script: Script, arguments: Sequence[Any]) -> str:
    if script is SIGNAL_SEND:
        return f"signal '{arguments[0]}'"
    if script is CANCEL:
        return f"cancel of {', '.join(map(_named, arguments[2::2]))}"
    return next(what for each, what in _CHANGES if each is script)


def _named(field: str) -> str:
    """What is cancelled. An id that is new in each run does not name the point."""
    kind, _, _ = field.partition(":")
    return {"jid": "a job", "batch": "a batch"}.get(kind, field)


def _push_of(jobs: Sequence[EncodedJob]) -> str:
    names = sorted({str(readable(job.payload)["class"]) for job in jobs})
    of = ", ".join(names)
    return f"push of {of}" if len(jobs) == 1 else f"push of {plural(len(jobs), 'job')} ({of})"


def _unlike(expected: str, found: Sequence[str]) -> str:
    came = f"came to {found[0]}" if found else "ended before"
    return (
        f"a run that was to be killed {expected} {came}: the job must do the same in each of its "
        "first runs, so have `setup` set back what it has changed"
    )


def _complaint(job: PreparedJob, points: int, failed: Sequence[tuple[str, Exception]]) -> str:
    name = job.payload["class"]
    head = f"{name} does not bear {len(failed)} of {plural(points, 'kill')}:"
    lines = [f"  killed {point}, and run again: {_said(error)}" for point, error in failed]
    return "\n".join((head, *lines))


def _said(error: Exception) -> str:
    text = str(error)
    if not (isinstance(error, AssertionError) and text):
        text = with_message(type(error).__name__, text)
    return text.replace("\n", "\n    ")
