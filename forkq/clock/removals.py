"""Ending jobs where they wait, for the tasks of the leader's clock that find them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from ..features.effects import Effect, name_of, packed
from ..features.marked import EndOutcome
from ..store.scripts import JOBS_MOVE, Call
from ..wire.keys import Keys
from ..wire.payload import Payload

REMOVED: Final = 1  # the answer of jobs_move.lua for a job that was still there


class Removal(NamedTuple):
    """A job that ends: its payload, the job in it, and what must happen together with its end."""

    payload: bytes
    job: Payload
    effects: Sequence[Effect]


def removal_of(
    keys: Keys,
    source: str | bytes,
    place: Sequence[Any],
    outcome: EndOutcome | Literal[""],
    jobs: Iterable[Removal],
) -> Call:
    """The call that ends these jobs with this outcome ("": it is not counted). ``source``: the key
    of the set or list in which they stand; ``place``: the arguments of jobs_move.lua that say where
    there."""
    names, arguments = keys.of_moves(source), list(place)
    for payload, job, effects in jobs:
        asked = packed(effects, names, keys.totals("ends"))
        arguments += (payload, f"0 {asked}", outcome, "", name_of(job))
    return Call(JOBS_MOVE, names, arguments)
