"""What the members and the callbacks of a batch need: values, without I/O.

A member's payload has ``forkq.needs.batch``: the id of its batch (``bid``), its index there
(``i``), and the batches of which that one is a member (``up``, the nearest first). The index is
known when push.lua pushes the job: until then the payload has a placeholder. A callback's payload
has ``of``, the id of its batch, and ``on``, the letter of its event. store/scripts/batch.lua says
what a batch is in Redis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from ...errors import InvalidJob, shown
from ...wire.keys import Keys
from ..effects import NONE, Effect

BATCH: Final = "batch"
# The lowest version of forkq's payloads whose children know the need.
VERSION: Final = 4
# So deep batches may be members of each other.
DEEPEST: Final = 8

# What a member is after a way: "waits" changes nothing; "waits again": it had ended.
Fate: TypeAlias = Literal[
    "done",
    "waits",
    "failing",
    "dead",
    "ended otherwise",
    "waits again",
    "found when it stands still",
]
Event: TypeAlias = Literal["death", "finish", "success"]
EVENTS: Final[tuple[Event, ...]] = ("death", "finish", "success")
# The ways that may be ignored: a success in spite of them.
IGNORABLE: Final = ("expired", "cancelled", "discarded", "dropped", "deleted")
# The two bits of a member in each state.
STATES: Final[dict[str, int]] = {"done": 1, "dead": 2, "ended otherwise": 3, "waits again": 0}

# The placeholder of the index: a byte that no JSON text has, since a string escapes it.
INDEX: Final = b"\x02"
_PLACEHOLDER: Final = msgspec.Raw(INDEX)
_LONGEST_BID: Final = 64


class PushedInto(NamedTuple):
    """The batch that a push gives members to. ``via``: the index of the member that pushes them;
    None: the block of the batch does."""

    bid: str
    via: int | None = None

    @property
    def argument(self) -> int | str:
        """What push.lua is told of the pusher."""
        return "" if self.via is None else self.via


class Place(NamedTuple):
    """Where a job belongs: to the batch ``bid``, and so to those ``above`` it, the nearest first.
    It is the ``member`` with this index, or the callback of the event with this ``letter``."""

    bid: str
    above: tuple[str, ...]
    member: int | None = None
    letter: str = ""


def joined(place: PushedInto, above: Sequence[str]) -> dict[str, Any]:
    """What stands in the needs of a job that is to be pushed into a batch."""
    need: dict[str, Any] = {"bid": place.bid, "via": place.via}
    return {**need, "up": list(above)} if above else need


def callback_of(bid: str, event: Event, above: Sequence[str]) -> dict[str, Any]:
    """What stands in the needs of a callback."""
    need: dict[str, Any] = {"of": bid, "on": event[0]}
    return {**need, "up": list(above)} if above else need


def ask(job: Mapping[str, Any], needs: dict[str, Any]) -> PushedInto | None:
    """Puts the placeholder of the index into the needs of a job that is to be pushed into a batch.
    None for any other job, also for one that has its index already."""
    need = needs.get(BATCH)
    if type(need) is not dict or "via" not in need:
        return None
    needs[BATCH] = {name: value for name, value in need.items() if name != "via"}
    reserve(needs)
    return PushedInto(need["bid"], need["via"])


def reserve(needs: dict[str, Any]) -> None:
    """Puts the placeholder into the needs of a member, in the place of its index."""
    needs[BATCH]["i"] = _PLACEHOLDER


def refusal(job: Mapping[str, Any]) -> InvalidJob:
    """The error for a member to which a later push could give another place: its batch would not
    hear of that."""
    return InvalidJob(
        f'job {shown(job.get("class"))}: with `debounce`, or with `on_duplicate` "latest" or '
        '"replace", it can be no member of a batch, since a later push takes its place; push it '
        'outside of the block, or with `.set(debounce=0)`, or `.set(on_duplicate="skip")`'
    )


def place_in(needs: Mapping[str, Any]) -> Place | None:
    """Where the job with these needs belongs; None if to no batch, or if what stands there is
    odd."""
    need = needs.get(BATCH)
    if type(need) is not dict:
        return None
    above, index, letter = need.get("up", []), need.get("i"), need.get("on")
    bids = [need.get("bid", need.get("of")), *(above if type(above) is list else [None])]
    if len(bids) > DEEPEST or not all(type(b) is str and 0 < len(b) <= _LONGEST_BID for b in bids):
        return None
    if type(index) is int and index >= 0:
        return Place(bids[0], tuple(bids[1:]), index)
    if "of" in need and letter in ("d", "f", "s"):
        return Place(bids[0], tuple(bids[1:]), letter=letter)
    return None


def bids_in(needs: Mapping[str, Any]) -> tuple[str, ...]:
    """The batches to which the job with these needs belongs, the nearest first."""
    place = place_in(needs)
    return () if place is None else (place.bid, *place.above)


def effects(
    keys: Keys, needs: Mapping[str, Any], fate: Fate, way: str, jid: str
) -> tuple[Effect, ...]:
    """What its batch hears of the job ``jid`` that takes this ``way``."""
    place = place_in(needs)
    if place is None:
        return NONE
    [key, *more] = keys.of_batch(place.bid, place.above)
    depth, rest = 1 + len(place.above), tuple(more)
    if fate == "failing" and place.member is not None:
        return (Effect("batch_failing", key, (depth, place.member, jid), rest),)
    if fate not in STATES:
        return NONE
    if place.member is None:
        return (Effect("batch_called", key, (depth, place.letter, STATES[fate]), rest),)
    return (Effect("batch", key, (depth, place.member, STATES[fate], way, jid), rest),)


def lost(keys: Keys, bid: str, above: Sequence[str], what: int | str) -> tuple[Effect, ...]:
    """What a batch hears of a member that is nowhere, or of a callback: ``what`` is the index of
    the one, or the letter of the other."""
    [key, *more] = keys.of_batch(bid, above)
    depth, state, rest = 1 + len(above), STATES["ended otherwise"], tuple(more)
    if isinstance(what, str):
        return (Effect("batch_called", key, (depth, what, state), rest),)
    return (Effect("batch", key, (depth, what, state, "lost", ""), rest),)
