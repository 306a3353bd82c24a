"""What the members and the callbacks of a batch need: values, without I/O.

A member's payload has ``forkq.needs.batch``: the id of its batch (``bid``), its index there
(``i``), and the batches of which that one is a member (``up``, the nearest first). The index is
known when push.lua pushes the job: until then the payload has a placeholder. A callback's payload
has ``of``, the id of its batch, and ``on``, the letter of its event. Where the batch may be on
another shard than the job, ``at`` is the name of that shard: the batch hears of the job by notes
(notes.py). store/scripts/batch.lua says what a batch is in Redis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from secrets import token_urlsafe
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from ...errors import InvalidJob, shown
from ...wire.keys import Keys
from ..effects import NONE, Effect
from ..notes import ANYWHERE, noted

BATCH: Final = "batch"
FLOW: Final = "flow"  # of a step: features/flow/parts.py
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
# Seconds for which a batch lives from its last change on (store/scripts/batch.lua).
LIVES: Final = 180 * 86_400
EVENTS: Final[tuple[Event, ...]] = ("death", "finish", "success")
# The ways that may be ignored: a success in spite of them.
IGNORABLE: Final = ("expired", "cancelled", "discarded", "dropped", "deleted")
# The two bits of a member in each state.
STATES: Final[dict[str, int]] = {"done": 1, "dead": 2, "ended otherwise": 3, "waits again": 0}

# As what the leader counts batches for the metrics. "standing": nothing of it has changed from one
# look to the next.
BatchCount: TypeAlias = Literal["open", "broken", "waiting", "standing", "ended"]
COUNTED: Final[tuple[BatchCount, ...]] = get_args(BatchCount)
# The field beside them: how many members were nowhere, of all time.
LOST: Final = "lost"

# The way of a place without a member, in the scripts.
NO_MEMBER: Final = "no member"
# The placeholder of the index: a byte that no JSON text has, since a string escapes it.
INDEX: Final = b"\x02"
_PLACEHOLDER: Final = msgspec.Raw(INDEX)
_LONGEST_BID: Final = 64


def number_in(value: bytes | str | None) -> float:
    """A number that forkq's scripts write of a batch; 0 for what is none."""
    try:
        found = float(value or 0)
    except ValueError:
        return 0.0
    return found if isfinite(found) else 0.0


def new_bid() -> str:
    """A new id of a batch or a flow. It begins with no "-": a command would take that for an
    option."""
    bid = token_urlsafe(10)
    return new_bid() if bid.startswith("-") else bid


class PushedInto(NamedTuple):
    """The batch that a push gives members to. ``via``: the index of the member that pushes them;
    None: the block of the batch does. ``at``: the shard of the batch, if that may be another one
    than that of the push; then ``above`` are the batches above it."""

    bid: str
    via: int | None = None
    at: str = ""
    above: tuple[str, ...] = ()

    @property
    def argument(self) -> int | str:
        """What push.lua is told of the pusher."""
        return "" if self.via is None else self.via


class Place(NamedTuple):
    """Where a job belongs: to the batch ``bid``, and so to those ``above`` it, the nearest first.
    It is the ``member`` with this index, or the callback of the event with this ``letter``. ``at``:
    the shard of these batches; "": that of the job. ``step``: its name, if that batch is a flow."""

    bid: str
    above: tuple[str, ...]
    member: int | None = None
    letter: str = ""
    at: str = ""
    step: str = ""


def joined(place: PushedInto, above: Sequence[str]) -> dict[str, Any]:
    """What stands in the needs of a job that is to be pushed into a batch."""
    need = {"bid": place.bid, "via": place.via}
    return _with_chain(need, above, place.at)


def callback_of(bid: str, event: Event, above: Sequence[str], at: str = "") -> dict[str, Any]:
    """What stands in the needs of a callback."""
    return _with_chain({"of": bid, "on": event[0]}, above, at)


def _with_chain(need: dict[str, Any], above: Sequence[str], at: str) -> dict[str, Any]:
    need |= {"up": list(above)} if above else {}
    return need | ({"at": at} if at else {})


def ask(job: Mapping[str, Any], needs: dict[str, Any]) -> PushedInto | None:
    """Puts the placeholder of the index into the needs of a job that is to be pushed into a batch.
    None for any other job, also for one that has its index already."""
    need = needs.get(BATCH)
    if type(need) is not dict or "via" not in need:
        return None
    needs[BATCH] = {name: value for name, value in need.items() if name != "via"}
    reserve(needs)
    at = need.get("at", "")
    return PushedInto(need["bid"], need["via"], at, tuple(need.get("up", ())) if at else ())


def reserve(needs: dict[str, Any]) -> None:
    """Puts the placeholder into the needs of a member, in the place of its index."""
    needs[BATCH]["i"] = _PLACEHOLDER


def check(job: Mapping[str, Any], into: PushedInto, *, gives_way: bool, is_once: bool) -> None:
    """Raises InvalidJob for a member to which a later push could give another place: its batch
    would not hear of that. Also for one that may have been pushed before, to another shard than
    that of the batch: it would have two places."""
    name = shown(job.get("class"))
    if gives_way:
        raise InvalidJob(
            f'job {name}: with `debounce`, or with `on_duplicate` "latest" or "replace", it can be '
            "no member of a batch, since a later push takes its place; push it outside of the "
            'block, or with `.set(debounce=0)`, or `.set(on_duplicate="skip")`'
        )
    if is_once and into.at:
        raise InvalidJob(
            f"job {name}: with `once` it can be no member of a batch on another shard, which is "
            f"{into.at}: push it to a queue there, or outside of the block"
        )


def place_in(needs: Mapping[str, Any]) -> Place | None:
    """Where the job with these needs belongs; None if to no batch, or if what stands there is
    odd."""
    need = needs.get(BATCH) or needs.get(FLOW)
    if type(need) is not dict:
        return None
    above, index, letter = need.get("up", []), need.get("i"), need.get("on")
    bids = [need.get("bid", need.get("of")), *(above if type(above) is list else [None])]
    if len(bids) > DEEPEST or not all(type(b) is str and 0 < len(b) <= _LONGEST_BID for b in bids):
        return None
    at = need.get("at", "")
    place = Place(bids[0], tuple(bids[1:]), at=at if type(at) is str else "")
    if type(index) is int and index >= 0:
        name = need.get("step") if FLOW in needs else ""
        return place._replace(member=index, step=name if type(name) is str else "")
    return place._replace(letter=letter) if "of" in need and letter in ("d", "f", "s") else None


def bids_in(needs: Mapping[str, Any]) -> tuple[str, ...]:
    """The batches to which the job with these needs belongs, the nearest first."""
    place = place_in(needs)
    return () if place is None else (place.bid, *place.above)


def effects(
    keys: Keys, needs: Mapping[str, Any], fate: Fate, way: str, jid: str
) -> tuple[Effect, ...]:
    """What its batch hears of the job ``jid`` that takes this ``way``."""
    place = place_in(needs)
    if place is None or place.step:
        return NONE
    effect = _effect(place, fate, way, jid, keys)
    if effect is None:
        return NONE
    return (noted(keys, place.at, effect) if place.at else effect,)


def _effect(place: Place, fate: Fate, way: str, jid: str, keys: Keys) -> Effect | None:
    """What happens to the batch, where it is; None if nothing does."""
    there = ANYWHERE if place.at else keys
    [key, *more] = there.of_batch(place.bid, place.above)
    depth, rest = 1 + len(place.above), tuple(more)
    if fate == "failing" and place.member is not None:
        return Effect("batch_failing", key, (depth, place.member, jid), rest)
    if fate not in STATES:
        return None
    if place.member is None:
        return Effect("batch_called", key, (depth, place.letter, STATES[fate]), rest)
    return Effect("batch", key, (depth, place.member, STATES[fate], way, jid), rest)


def lost(keys: Keys, bid: str, above: Sequence[str], what: int | str) -> Effect:
    """What a batch hears of a member that is nowhere, or of a callback: ``what`` is the index of
    the one, or the letter of the other."""
    [key, *more] = keys.of_batch(bid, above)
    depth, state, rest = 1 + len(above), STATES["ended otherwise"], tuple(more)
    if isinstance(what, str):
        return Effect("batch_called", key, (depth, what, state), rest)
    return Effect("batch", key, (depth, what, state, "lost", ""), rest)


def never_pushed(keys: Keys, bid: str, above: Sequence[str], member: int | str) -> Effect:
    """What a batch hears of a place that was taken for a member which was not pushed."""
    [key, *more] = keys.of_batch(bid, above)
    arguments = (1 + len(above), member, STATES["done"], NO_MEMBER, "")
    return Effect("batch", key, arguments, tuple(more))
