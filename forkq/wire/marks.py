"""What forkq notes in a payload, under its own key ``forkq``: docs/wire.md.

``suspect``: its process died while it was in progress, perhaps because of it; it runs alone from
now on. ``failed``: it has failed in a process that could not settle it; the child that fetches it
settles it and does not run it. ``crashes``: how its processes died.
"""

from __future__ import annotations

from typing import Any, Final

from ..errors import Crashed, TimeLimit, Unsettled
from .payload import Payload

KEY: Final = "forkq"
SUSPECT: Final = "suspect"
FAILED: Final = "failed"
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


def mark_failed(marks: dict[str, Any], error: BaseException) -> None:
    """The next child that fetches the job settles it as failed with ``error``."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    marks[FAILED] = {"class": name, "message": str(error)}


def failure_in(marks: object) -> BaseException | None:
    """The error with which the job has failed in another process; None if it is to be run."""
    found = marks.get(FAILED) if type(marks) is dict else None
    if type(found) is not dict:
        return None
    return _ERRORS.get(str(found.get("class")), Unsettled)(str(found.get("message")))


def clear(job: Payload) -> None:
    """The job has ended: it is no suspect any more."""
    marks = job.get(KEY)
    if type(marks) is dict:
        marks.pop(SUSPECT, None)
        marks.pop(FAILED, None)
        if not marks:
            del job[KEY]
