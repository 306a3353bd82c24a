"""Held classes: their jobs have killed process after process, so they run alone, in solo children.

A death counts for a class if its job ran alone, or if the thread that crashed ran it. Who gives the
jobs of a dead process back notes the death. A held class is released when one of its jobs has ended
well alone, or by a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ..wire.keys import Keys
from .scripts import CLASS_DEATH, CLASS_JOBS, CLASS_RELEASE, Call

# How many processes must have died of a class, and within how many seconds, for it to be held.
DEADLY_DEATHS: Final = 5
WITHIN: Final = 60
# How many jobs of a list one script looks at, about.
_PAGE: Final = 500
# Longer names of classes are not counted: a payload may have any.
_LONGEST_NAME: Final = 200


class HeldClassRecord(msgspec.Struct, frozen=True):
    """A class that is held ``since`` (epoch seconds), because ``deaths`` processes have died of
    it."""

    name: str
    since: float
    deaths: int


def name_in(job: Mapping[str, object]) -> str:
    """The class for which the deaths of this job count: of an ActiveJob, the wrapped one. "" if it
    has none, or a name that is too long."""
    name = job.get("wrapped") or job.get("class")
    return name if type(name) is str and len(name) <= _LONGEST_NAME else ""


def held_in(found: Mapping[bytes, bytes]) -> list[HeldClassRecord]:
    """The classes in ``Keys.held_classes``, by name. A value that another program wrote counts as
    no deaths."""
    held = []
    for name, value in found.items():
        since, _, deaths = value.partition(b" ")
        is_whole = since.isdigit() and deaths.isdigit()
        numbers = (float(since), int(deaths)) if is_whole else (0.0, 0)
        held.append(HeldClassRecord(name.decode("utf-8", "replace"), *numbers))
    return sorted(held, key=lambda each: each.name)


def death(keys: Keys, name: str, identity: str) -> Call:
    """The call that notes that the process ``identity`` died of a job of the class. It returns 1 if
    the class is held from now on."""
    names = (keys.deaths_of_class(name), keys.held_classes, keys.released_classes)
    return Call(CLASS_DEATH, names, (name, identity, WITHIN, DEADLY_DEATHS))


def release(keys: Keys, name: str) -> Call:
    """The call that ends that the class is held; it returns 0 if the class was not. The leader's
    clock then returns its jobs to their queues."""
    names = (keys.held_classes, keys.released_classes, keys.deaths_of_class(name))
    return Call(CLASS_RELEASE, names, (name,))


def waiting_jobs(keys: Keys, name: str, queue: str, at: int, *, returns: bool) -> Call:
    """The call that finds jobs of the class in the queue's list of suspects that are no suspects
    themselves, from the place ``at`` on, and ``returns`` them to the queue or counts them. It
    returns where to go on (-1: that was all) and how many it found."""
    lists = (keys.suspects(queue), keys.queue(queue), keys.suspected, keys.queues)
    text = msgspec.json.encode(name).decode()
    texts = [f'"{key}":{space}{text}' for key in ("class", "wrapped") for space in ("", " ")]
    return Call(CLASS_JOBS, lists, (queue, at, _PAGE, int(returns), *texts))
