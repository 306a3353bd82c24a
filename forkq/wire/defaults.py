"""A job as a push is given it, checked and with its defaults. Any process; this module is light."""

from __future__ import annotations

from typing import Final

from ..errors import InvalidJob, shown
from .payload import DEFAULT_QUEUE, Payload
from .times import due, now
from .validation import check_shape, in_places

# Where a program defines its own jobs; multiprocessing calls it by the second name.
_PROGRAMS: Final = ("__main__.", "__mp_main__.")
# What no two jobs share, and may be given all the same.
UNSHARED: Final = ("jid", "created_at")


def with_defaults(job: Payload) -> Payload:
    """A new dict: ``job``, and defaults for the keys that it leaves out: None for what no two jobs
    share. Raises InvalidJob for a value that no job can have."""
    if type(job) is not dict:
        kind = type(job).__name__  # its value may be a secret, here and below
        raise InvalidJob(f'a job is a dict like {{"class": "Name", "args": []}}, not a {kind}')
    made = {"retry": True, "queue": DEFAULT_QUEUE, **job}
    check_shape(made)
    made = in_places(made)
    _refuse_program(made["class"])
    for key in UNSHARED:
        made.setdefault(key, None)
    return made


def _refuse_program(name: str) -> None:
    """Raises InvalidJob for a job that only its own program knows."""
    if name.startswith(_PROGRAMS):
        raise InvalidJob(
            f"job {shown(name)} is defined in the program itself, and no worker knows it "
            "by that name; define it in a module, import that here, and name the module in "
            "`forkq start -r`"
        )


def set_time(job: Payload) -> None:
    """Turns ``at`` into epoch seconds, and removes a past one. Raises InvalidJob."""
    at = job.pop("at", None)
    moment = None if at is None else due(at)
    if moment is not None and moment > now():
        job["at"] = moment
