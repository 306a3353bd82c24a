"""The jobs that run now, and those of which nothing has been heard for long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from ..errors import MalformedPayload
from ..lease import Progress
from ..payload import loads
from ..times import seconds
from .asking import ask_leniently, keys, server_now
from .records import identities


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in the making; its arguments are other people's data, and not here.

    ``job`` is the name of its class, ``identity`` and ``thread`` who runs it, ``started_at`` epoch
    seconds (a Ruby process's by the clock of its host), ``elapsed`` seconds from then to now,
    ``progress`` what it last said of itself.
    """

    jid: str
    job: str
    queue: str
    identity: str
    thread: str
    started_at: float
    elapsed: float
    progress: Progress | None = None

    @property
    def silent_for(self) -> float:
        """Seconds since it last told of progress, or since it began."""
        if self.progress is None:
            return self.elapsed
        return max(0.0, self.elapsed - (self.progress.at - self.started_at))


class _Work(msgspec.Struct):
    """What stands in IDENTITY:work for each thread. Sidekiq 6 writes the payload as an object."""

    queue: str
    payload: str | dict[str, Any]
    run_at: float
    progress: Progress | None = None


def running(longer_than: float | timedelta | None = None) -> list[RunningJob]:
    """What runs now, the longest first; only what has run for more than ``longer_than`` seconds.

    As of each process's last heartbeat. Raises ServerUnavailable.
    """
    names = identities()
    at = server_now()
    work = ask_leniently(*(("HGETALL", keys().work(name)) for name in names))
    jobs = [
        job
        for name, threads in zip(names, work, strict=True)
        for thread, raw in _pairs(threads)
        if (job := _running_job(name, thread, raw, at)) is not None
    ]
    floor = _in_seconds(longer_than)
    return sorted((job for job in jobs if job.elapsed > floor), key=lambda job: -job.elapsed)


def stuck(minutes: float = 10) -> list[RunningJob]:
    """The running jobs that have told of no progress for ``minutes`` (nor begun since), those that
    are silent for longest first. A job that never tells of any counts from its beginning."""
    silent = [job for job in running() if job.silent_for > minutes * 60]
    return sorted(silent, key=lambda job: -job.silent_for)


def _running_job(identity: str, thread: bytes, raw: bytes, at: float) -> RunningJob | None:
    """One thread's entry; None for what nobody can read, such as a payload that is no job."""
    try:
        work = msgspec.json.decode(raw, type=_Work)
        job = loads(work.payload.encode()) if isinstance(work.payload, str) else work.payload
    except (ValueError, MalformedPayload, RecursionError):
        return None
    started = seconds(work.run_at)
    return RunningJob(
        jid=str(job.get("jid", "")),
        job=str(job.get("class", "")),
        queue=work.queue,
        identity=identity,
        thread=thread.decode("utf-8", "replace"),
        started_at=started,
        elapsed=max(0.0, at - started),
        progress=work.progress,
    )


def _pairs(reply: Any) -> Iterator[tuple[bytes, bytes]]:
    """A hash as RESP3 gives it; nothing where there is none."""
    yield from (reply or {}).items()


def _in_seconds(length: float | timedelta | None) -> float:
    """-1 for no bound: what began in this very second is running too."""
    if length is None:
        return -1.0
    return length.total_seconds() if isinstance(length, timedelta) else length
