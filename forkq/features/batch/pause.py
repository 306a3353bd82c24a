"""Which batches are paused, and since when: values, without I/O.

A pause is a field of the hash that says what is cancelled (features/cancel/parts.py), so a child
knows it at once, and asks nothing. A member that a child fetches meanwhile is put off, and says in
its payload (``forkq.paused``) which batch has kept it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .parts import LIVES, number_in, place_in

_PAUSED: Final = "paused:"
# Seconds for which a member is put off: the first time, and at most. In between as long as the
# pause lasts already, so a short one costs little time, and a long one few looks.
_SHORTEST: Final = 10.0
_LONGEST: Final = 600.0


class BatchPause(NamedTuple):
    """The pause of the batch ``bid``. ``since``: epoch seconds."""

    bid: str
    since: float

    def lasts(self, at: float) -> float:
        """For how many seconds it is taken for granted at that moment that it goes on."""
        return min(_LONGEST, max(_SHORTEST, at - self.since))

    def is_over(self, at: float) -> bool:
        """Whether no batch lives so long without a change."""
        return at > self.since + LIVES


def field_of_pause(bid: str) -> str:
    """The field of a batch that is paused."""
    return f"{_PAUSED}{bid}"


def read_pauses(reply: Mapping[bytes, bytes]) -> dict[str, BatchPause]:
    """The pauses among these fields, by the ids of their batches."""
    found = {}
    for field, value in reply.items():
        bid = str(field, "utf-8", "replace").removeprefix(_PAUSED)
        since = number_in(value) if field.startswith(_PAUSED.encode()) else 0.0
        if since:
            found[bid] = BatchPause(bid, since)
    return found


def pause_of(pauses: Mapping[str, BatchPause], needs: Mapping[str, Any]) -> BatchPause | None:
    """What keeps the job with these needs from being run: the pause of the batch of which it is a
    member, or of one above. A callback is kept by those above its own batch."""
    place = place_in(needs)
    if place is None:
        return None
    bids = place.above if place.member is None else (place.bid, *place.above)
    return next((pauses[bid] for bid in bids if bid in pauses), None)
