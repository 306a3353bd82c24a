"""What forkq notes in a payload, under its own key ``forkq``: docs/wire.md.

``suspect``: its process died while it was in progress, perhaps because of it; it runs alone from
now on. ``failed``: it has failed in a process that could not settle it; the child that fetches it
settles it and does not run it. ``crashes``: how its processes died. ``v``: the lowest version of
this format that can run the job; plain jobs have none. ``postponed``: since when no process that
fetched the job knew that version. ``snoozed``: since when the job has done nothing but snooze, and
how often. ``paused``: the batch whose pause has put it off. ``needs``: what the features of a
marked job need (features/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..errors import Crashed, TimeLimit, Unsettled
from .payload import KEY as KEY  # noqa: PLC0414 - for all that read marks
from .payload import Payload
from .times import now, seconds

SUSPECT: Final = "suspect"
FAILED: Final = "failed"
POSTPONED: Final = "postponed"
SNOOZED: Final = "snoozed"
PAUSED: Final = "paused"
NEEDS: Final = "needs"
# What this forkq can run. It rises with each feature that an older child must not run without.
VERSION: Final = 9
# Seconds for which a crash counts, and for which a job waits for a process that knows its version.
COUNTED_FOR: Final = 72 * 3600.0
POSTPONED_FOR: Final = 24 * 3600.0
# Seconds for which a job may do nothing but snooze.
SNOOZED_FOR: Final = 24 * 3600.0
# A suspect runs for long that has run for so many seconds, and for so many times its own run before
# a crash.
_LONG: Final = 60.0
_TIMES_AS_LONG: Final = 10
# In a crash record: a person has retried the job with all its attempts since.
_FORGIVEN: Final = "forgiven"
_ERRORS: Final[dict[str, type[BaseException]]] = {
    f"{error.__module__}.{error.__qualname__}": error for error in (Crashed, TimeLimit)
}


def marks_of(job: Payload) -> dict[str, Any]:
    """The marks in ``job``, to be changed. Another value in their place is replaced."""
    if type(job.get(KEY)) is not dict:
        job[KEY] = {}
    marks: dict[str, Any] = job[KEY]
    return marks


def is_suspect(marks: object) -> bool:
    """Whether the job must run alone."""
    return type(marks) is dict and marks.get(SUSPECT) is True


def needs_newer(marks: object, known: int | None = None) -> bool:
    """Whether only a forkq can run the job that knows a higher version than ``known``, by default
    than this one."""
    if type(marks) is not dict or "v" not in marks:
        return False
    return type(marks["v"]) is not int or marks["v"] > (VERSION if known is None else known)


def needs_in(marks: object) -> dict[str, Any]:
    """What the features of the job need; empty if it is not marked."""
    found = marks.get(NEEDS) if type(marks) is dict else None
    return found if type(found) is dict else {}


def with_needs(marks: object, more: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of these marks whose features need ``more``. Another value than marks is replaced."""
    kept = marks if type(marks) is dict else {}
    return {**kept, NEEDS: {**needs_in(kept), **more}}


def with_gained(job: Payload, need: str, value: object, version: int) -> Payload:
    """``job`` as one that has gained a need while it ran, which only a forkq knows that knows this
    ``version``. Changes it, and returns it."""
    marks = marks_of(job)
    known = marks.get("v")
    marks[NEEDS] = {**needs_in(marks), need: value}
    marks["v"] = max(version, known if type(known) is int else 0)
    job[KEY] = job.pop(KEY)  # scripts look for it at the end
    return job


def is_paused(marks: object) -> bool:
    """Whether the pause of its batch has put the job off."""
    return type(marks) is dict and PAUSED in marks


def postponed_in(marks: object) -> float | None:
    """Since when (epoch seconds) the job waits for a newer forkq; None if it does not."""
    at = marks.get(POSTPONED) if type(marks) is dict else None
    return seconds(at) if isinstance(at, int | float) else None


def snooze(marks: dict[str, Any]) -> float:
    """Counts one more snooze in a row. Returns since when it has done nothing else."""
    before = marks.get(SNOOZED)
    row = before if type(before) is dict else {}
    since, count = row.get("since"), row.get("count")
    if not isinstance(since, int | float) or not isinstance(count, int):
        since, count = now(), 0
    marks[SNOOZED] = {"since": since, "count": count + 1}
    return seconds(since)


def forget_pause(job: Payload) -> None:
    """The job runs: no pause of its batch keeps it any more."""
    marks = job.get(KEY)
    if type(marks) is dict:
        marks.pop(PAUSED, None)


def counted(crashes: list[Any]) -> int:
    """How many of a job's crashes count: the recent ones of a job that ran alone."""
    counting = [one for one in crashes if type(one) is dict and one.get("alone") is True]
    return len([one for one in counting if one.get(_FORGIVEN) is not True and _is_recent(one)])


def _is_recent(crash: dict[str, Any]) -> bool:
    at = crash.get("at")
    return isinstance(at, int | float) and seconds(at) > now() - COUNTED_FOR


def deaths_of_trees(crashes: list[Any]) -> int:
    """How many of a job's crashes are recent deaths of a whole tree: they say little of a single
    job."""
    found = [one for one in crashes if type(one) is dict and one.get("tree") is True]
    return len([one for one in found if _is_recent(one)])


def deaths_of_groups(crashes: list[Any]) -> int:
    """How many of a job's crashes are recent deaths of a process in which it ran together with many
    others, of which any may have been the reason."""
    found = [one for one in crashes if type(one) is dict and type(one.get("group")) is int]
    return len([one for one in found if _is_recent(one)])


def most_together(marks: object) -> int:
    """How many suspects may run together in one process of which this is one: half as many as were
    in its last death, of which any may have been the reason; 1 if that says of this job that it
    may be."""
    crashes = marks.get("crashes") if type(marks) is dict else None
    last = crashes[-1] if type(crashes) is list and crashes else None
    group = last.get("group") if type(last) is dict else None
    return max(1, group // 2) if type(group) is int and not needs_sole(marks) else 1


def needs_sole(marks: object) -> bool:
    """Whether the job is a suspect beside which no other one of its tree may run: it was in
    progress when a whole tree died."""
    crashes = marks.get("crashes") if type(marks) is dict else None
    return is_suspect(marks) and type(crashes) is list and deaths_of_trees(crashes) > 0


def long_run(marks: object) -> float:
    """After how many seconds alone a suspect counts as one that runs for long, and keeps no other
    job waiting any more: ten times its longest run before a crash."""
    crashes = marks.get("crashes") if type(marks) is dict else None
    found = [one for one in crashes if type(one) is dict] if type(crashes) is list else []
    runs = [one["ran"] for one in found if type(one.get("ran")) in (int, float)]
    return max(_LONG, min(_TIMES_AS_LONG * max(runs, default=0), COUNTED_FOR))


def retried_alone(job: Payload, *, fresh: bool) -> Payload:
    """``job`` as a person retries it. A job that killed its process while it ran alone runs alone
    again. ``fresh``: these crashes count no more."""
    marks = job.get(KEY)
    crashes = marks.get("crashes") if type(marks) is dict else None
    if type(crashes) is not list or not counted(crashes):
        return job
    if fresh:
        crashes = [{**one, _FORGIVEN: True} if type(one) is dict else one for one in crashes]
    return {**job, KEY: {**job[KEY], "crashes": crashes, SUSPECT: True}}


def mark_failed(marks: dict[str, Any], error: BaseException, ran: float | None) -> None:
    """The next child that fetches the job settles it as failed with ``error``, after it has run for
    ``ran`` seconds (None: unknown)."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    marks[FAILED] = {"class": name, "message": str(error)}
    if ran is not None:
        marks[FAILED]["ran"] = round(ran, 3)


def failure_in(marks: object) -> BaseException | None:
    """The error with which the job has failed in another process; None if it is to be run."""
    found = marks.get(FAILED) if type(marks) is dict else None
    if type(found) is not dict:
        return None
    return _ERRORS.get(str(found.get("class")), Unsettled)(str(found.get("message")))


def ran_until_failure(marks: object) -> float:
    """For how many seconds a job had run that has failed in another process; 0 if that is
    unknown."""
    found = marks.get(FAILED) if type(marks) is dict else None
    ran = found.get("ran") if type(found) is dict else None
    return float(ran) if type(ran) is float or type(ran) is int else 0.0


def clear(job: Payload) -> None:
    """The job has ended: it is no suspect any more."""
    marks = job.get(KEY)
    if type(marks) is dict:
        marks.pop(SUSPECT, None)
        marks.pop(FAILED, None)
        marks.pop(POSTPONED, None)
        marks.pop(SNOOZED, None)
        marks.pop(PAUSED, None)
        if not marks:
            del job[KEY]
