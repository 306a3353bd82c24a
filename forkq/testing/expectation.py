"""What a test expects of a job, and how far each recorded job is from that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ..errors import shown
from ..job import FunctionJob, Job
from ..push import Pusher
from ..units import plural
from ..wire.times import due
from .recorded_job import RecordedJob

_TOLERANCE: Final = 1.0  # seconds
_EPOCH_FLOOR: Final = 1e9  # below it a number counts from the push on, as in times.due
_MOST_SHOWN: Final = 10


class _Any:
    """Stands for what the caller left out: any value will do."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Final[Any] = _Any()


@dataclass(frozen=True, slots=True)
class Expectation:
    """The name of a job (or ANY), the time at which it is due, and keys of its payload."""

    name: Any
    at: Any
    keys: Mapping[str, Any]

    @classmethod
    def of(cls, job: object, *, at: Any, **keys: Any) -> Expectation:
        """An expectation of these values. Keys that are ANY are left out."""
        if "args" in keys and isinstance(keys["args"], tuple):
            keys["args"] = list(keys["args"])
        given = {key: value for key, value in keys.items() if value is not ANY}
        return cls(job if job is ANY else named(job), at, given)

    def __str__(self) -> str:
        at = {} if self.at is ANY else {"at": self.at}
        rest = [f"{key}={shown(value)}" for key, value in {**self.keys, **at}.items()]
        return ", ".join(["any job" if self.name is ANY else self.name, *rest])

    def differences(self, job: RecordedJob) -> list[str]:
        """One line for each way in which ``job`` differs."""
        found = [] if self.name in (ANY, job.name) else [f"job: {_pair(self.name, job.name)}"]
        for key, value in self.keys.items():
            found += _differences(key, value, job.payload.get(key))
        if self.at is not ANY and not self._is_due_then(job):
            found.append(f"at: expected {self._when()}, found {_found_time(job)}")
        return found

    def complaint(
        self,
        waiting: Sequence[RecordedJob],
        performed: Sequence[RecordedJob],
        found: Sequence[RecordedJob],
        times: int | None,
        held: str,
    ) -> str:
        """Why the assertion failed; the nearest jobs come first. ``held``: which pushes wait for a
        commit (``Transactions.held``)."""
        if found or times == 0:
            head = f"expected {plural(times or 0, 'such job')}, found {len(found)}: {self}"
            return "\n".join((head, *_listed([[str(job)] for job in found])))
        head = f"no such job is enqueued: {self}"
        done = sum(not self.differences(job) for job in performed)
        if done:
            head += f"\n(but so many have run already: {done})"
        if held:
            head += f"\n{held}"
        if not waiting:
            return head if held else f"{head}\nno job is enqueued at all"
        nearest = sorted(waiting, key=self._distance)
        listed = _listed([[str(job), *self._indented(job)] for job in nearest])
        return "\n".join((head, "enqueued are, the nearest first:", *listed))

    def _indented(self, job: RecordedJob) -> list[str]:
        return [f"    {line}" for line in self.differences(job)]

    def _distance(self, job: RecordedJob) -> tuple[bool, int]:
        return self.name not in (ANY, job.name), len(self.differences(job))

    def _is_due_then(self, job: RecordedJob) -> bool:
        if self.at is None or job.at is None:
            return self.at is job.at
        return abs(due(self.at, job.payload["created_at"]) - job.at) < _TOLERANCE

    def _when(self) -> str:
        if self.at is None:
            return "now"
        relative = isinstance(self.at, timedelta) or (
            isinstance(self.at, int | float) and self.at < _EPOCH_FLOOR
        )
        return f"{due(self.at, 0):.0f} s after the push" if relative else str(self.at)


def named(job: object) -> str:
    """The registered name of a job class, a job function, or a name."""
    if isinstance(job, str):
        return job
    if isinstance(job, Pusher | FunctionJob):
        return job.name
    if isinstance(job, type) and issubclass(job, Job):
        return job.set().name
    raise TypeError(
        f"{shown(job)} is no job: pass a class that derives from forkq.Job, a function under "
        "@forkq.job, or a registered name"
    )


def _differences(path: str, expected: Any, found: Any) -> Iterator[str]:
    """The lines about where two values differ: the innermost keys and places, as far as both have
    the same shape."""
    if expected == found:
        return
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        for key in expected:
            yield from _differences(f"{path}[{key!r}]", expected[key], found[key])
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for place, pair in enumerate(zip(expected, found, strict=True)):
            yield from _differences(f"{path}[{place}]", *pair)
    else:
        yield f"{path}: {_pair(expected, found)}"


def _pair(expected: Any, found: Any) -> str:
    return f"expected {shown(expected)}, found {shown(found)}"


def _found_time(job: RecordedJob) -> str:
    return "now" if job.at is None else f"{job.delay:.0f} s after the push"


def _listed(blocks: Sequence[Sequence[str]]) -> Iterator[str]:
    for block in blocks[:_MOST_SHOWN]:
        yield from (f"  {line}" for line in block)
    if len(blocks) > _MOST_SHOWN:
        yield f"  and {len(blocks) - _MOST_SHOWN:,} more"
