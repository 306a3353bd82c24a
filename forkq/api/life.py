"""The life of a job, as its payload has it: pushed, failed, crashed, retried, and what comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..store.find_job import Location
from ..wire.payload import Payload
from ..wire.printable import signal_name
from ..wire.times import delay_of, is_backoff
from .readable_job import crashes_of, moment, text

_DEFAULT_RETRIES: Final = 25
# An estimate of further retries would be beyond any calendar.
_MOST_ESTIMATED: Final = 200
_LONGEST: Final = 1e9


@dataclass(frozen=True, slots=True)
class Crash:
    """How a process died that had the job in progress. ``why`` is the reason for people, ``at`` in
    epoch seconds (None: unknown), ``rss`` its peak memory in KiB, ``alone``: no other job ran in
    it, so this crash counts. ``stack`` is where the job was, ``ran`` for how many seconds it
    had run, if that is known; ``step`` the name of the durable step that it did, "" if none."""

    why: str
    at: float | None = None
    host: str = ""
    rss: int | None = None
    alone: bool = False
    stack: str = ""
    ran: float | None = None
    step: str = ""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event in the life of a job, as its payload has it: ``what`` is "pushed", "enqueued",
    "failed", "retried", "crashed", "due", "died" or "dies" (to come), ``at`` in epoch seconds."""

    at: float
    what: str
    detail: str = ""


def crash_of(record: dict[str, Any]) -> Crash:
    """The Crash that a crash record of a payload describes."""
    number, code = record.get("signal"), record.get("exit")
    rss, ran = record.get("rss"), record.get("ran")
    why = text(record.get("reason")) or (signal_name(number) if number else f"exit code {code}")
    return Crash(
        why=why,
        at=moment(record.get("at")),
        host=text(record.get("host")),
        rss=rss if type(rss) is int else None,
        alone=record.get("alone") is True,
        stack=text(record.get("stack")),
        ran=max(0.0, min(ran, _LONGEST)) if isinstance(ran, int | float) else None,
        step=text(record.get("step")),
    )


def events(job: Payload, location: Location, score: float) -> tuple[JobEvent, ...]:
    """The known events in the life of a job, in order of time."""
    error = text(job.get("error_class"))
    again = job.get("retried_at") is not None
    count = job.get("retry_count")
    known: list[tuple[float | None, str, str]] = [
        (moment(job.get("created_at")), "pushed", ""),
        (moment(job.get("enqueued_at")), "enqueued", text(job.get("queue"))),
        (moment(job.get("failed_at")), "failed", "" if again else error),
    ]
    if again:
        tries = f"retry {count} failed: " if type(count) is int else ""  # a crash counts no retry
        known.append((moment(job.get("retried_at")), "retried", f"{tries}{error}"))
    known += [(crash.at, "crashed", crash.why) for crash in map(crash_of, crashes_of(job))]
    if location == "dead":
        known.append((moment(score), "died", error))
    elif location in ("scheduled", "retrying"):
        known.append((moment(score), "due", ""))
    if location == "retrying":
        known.append((dies_at(job, score), "dies", "if it goes on failing"))
    found = [JobEvent(at, what, detail) for at, what, detail in known if at is not None]
    return tuple(sorted(found, key=lambda event: event.at))


def retries_of(job: Payload) -> int | None:
    """How many retries a job may have; None if time limits them."""
    if _window(job):
        return None
    retry = job.get("retry", True)
    if retry is False:
        return 0
    return retry if type(retry) is int else _DEFAULT_RETRIES


def dies_at(job: Payload, due: float) -> float | None:
    """When a retrying job dies that goes on failing; its next run is ``due``."""
    if window := _window(job):
        return moment(max(due, (moment(job.get("failed_at")) or due) + window))
    limit, count = retries_of(job), job.get("retry_count")
    if limit is None or type(count) is not int:
        return None
    at, backoff = due, job.get("backoff")
    for tries in range(max(0, count) + 1, min(limit, _MOST_ESTIMATED)):
        usual = tries**4 + 15 + 5 * (tries + 1)
        at += delay_of(backoff, tries) if is_backoff(backoff) else usual
    return moment(at)


def _window(job: Payload) -> float | None:
    """For how many seconds after its first failure a job is retried; None if a count limits
    that."""
    window: Any = job.get("retry_for")
    return min(window, _LONGEST) if type(window) in (int, float) and window > 0 else None
