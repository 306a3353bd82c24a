"""A job with its arguments, that is not pushed now: what ``j.s(...)`` returns; and such jobs in a
line or side by side, as the steps of a flow. Any process."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

import msgspec

from ..errors import InvalidJob, shown
from .payload import Payload


class _Joinable:
    """What may stand in a line: ``a | b`` is ``chain(a, b)``."""

    __slots__ = ()

    def __or__(self, after: object) -> StepChain:
        if not isinstance(after, _Joinable):
            raise InvalidJob(f"{shown(after)} is no step: write the job with its arguments, j.s(7)")
        return chain(cast("Steps", self), cast("Steps", after))


class PreparedJob(_Joinable, msgspec.Struct, frozen=True):
    """A job with its arguments and its options, checked, to be pushed when its time has come: the
    callback of a batch, or a step of a flow. ``a | b``: b is to start once a is done."""

    payload: Payload

    def __repr__(self) -> str:
        return f"<forkq prepared job {self.payload['class']}>"


class StepChain(_Joinable, msgspec.Struct, frozen=True):
    """``parts`` that run one after the other: each is a job, a chain or a group."""

    parts: tuple[Steps, ...]


class StepGroup(_Joinable, msgspec.Struct, frozen=True):
    """``parts`` that run side by side: each is a job, a chain or a group."""

    parts: tuple[Steps, ...]


Steps: TypeAlias = "PreparedJob | StepChain | StepGroup"


def chain(*steps: Steps) -> StepChain:
    """Steps of a flow that run one after the other: ``forkq.Flow("report", forkq.chain(a.s(1),
    b.s())).push()``. After a group comes what waits for all of it."""
    parts: list[Steps] = []
    for each in steps:  # (a | b) | c is one line
        parts += each.parts if isinstance(each, StepChain) else [each]
    return StepChain(tuple(parts))


def group(*steps: Steps) -> StepGroup:
    """Steps of a flow that run side by side. What comes after it in a chain waits for all."""
    return StepGroup(tuple(steps))


class StepResult(msgspec.Struct, frozen=True):
    """In the arguments of a step: what the step of that name has returned. ``names`` may be those
    of several: a list of what they have returned. None: the steps that this one comes after."""

    names: str | tuple[str, ...] | None


BEFORE: Final[Any] = StepResult(None)
"""In the arguments of a step: what the step before has returned; after several steps, or after a
group, the list of what they have returned."""
