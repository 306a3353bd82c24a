"""What the steps of a flow need: values, without I/O.

A flow is a batch whose members, its steps, are known before the first one starts. A step's payload
has ``forkq.needs.flow``: the id of its flow (``bid``), its index there (``i``), its name
(``step``), the batches of which the flow is a member (``up``, the nearest first), ``takes``: how
many results of other steps its arguments have, and, where the flow may be on another shard than the
step, ``at``: the name of that shard. In the place of such a result stands an object
whose only key has the id of the flow: so no argument of an app is taken for one.
store/scripts/flow.lua says what a flow is in Redis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ...errors import Dead, shown
from ...wire.keys import Keys
from ...wire.marks import needs_in
from ...wire.payload import Payload
from ..batch.parts import FLOW, INDEX, STATES, Fate, Place, place_in
from ..effects import NONE, Effect, jid_of
from ..notes import ANYWHERE, noted
from ..results.parts import Result, read, written

# The lowest version of forkq's payloads whose children know steps.
VERSION: Final = 8
# How many steps a flow has at most.
MOST: Final = 10_000
LONGEST_NAME: Final = 100  # characters of the name of a step
_PLACEHOLDER: Final = msgspec.Raw(INDEX)

# What a bad end of a step means for one behind it: that one waits (a person may retry a dead step),
# is cancelled, or runs all the same.
OnFailure: TypeAlias = Literal["wait", "cancel", "run"]
ON_FAILURE: Final[tuple[OnFailure, ...]] = ("wait", "cancel", "run")
# The names of steps whose results an argument has: of one, or of a list.
Taken: TypeAlias = "str | Sequence[str]"


def need_of(place: Place, takes: int) -> dict[str, Any]:
    """What stands in the needs of the step at this ``place``. Without an index (``member``) a
    script gives it one."""
    need: dict[str, Any] = {"bid": place.bid, "step": place.step}
    if place.above:
        need["up"] = list(place.above)
    if place.at:
        need["at"] = place.at
    if takes:
        need["takes"] = takes
    return need if place.member is None else {**need, "i": place.member}


def marker(bid: str, names: Taken) -> dict[str, Any]:
    """What stands in the arguments of a step in the place of these results."""
    return {_key(bid): names if isinstance(names, str) else list(names)}


def taken_in(args: Any, bid: str) -> Iterator[Taken]:
    """The names of the steps whose results ``args`` have."""
    if type(args) is dict:
        if (names := _taken(args, bid)) is not None:
            yield names
            return
        args = list(args.values())
    if type(args) is list:
        for each in args:
            yield from taken_in(each, bid)


def filled(args: Any, needs: Mapping[str, Any], results: Mapping[str, Any]) -> Any:
    """``args`` of the step that has these ``needs``, with the results of others by their names."""
    return _filled(args, str(needs[FLOW]["bid"]), results)


def _filled(args: Any, bid: str, results: Mapping[str, Any]) -> Any:
    if type(args) is list:
        return [_filled(each, bid, results) for each in args]
    if type(args) is not dict:
        return args
    names = _taken(args, bid)
    if names is None:
        return {key: _filled(value, bid, results) for key, value in args.items()}
    return results[names] if type(names) is str else [results[name] for name in names]


def _key(bid: str) -> str:
    return f"forkq:{bid}"


def _taken(found: Mapping[str, Any], bid: str) -> Taken | None:
    return found.get(_key(bid)) if len(found) == 1 else None


def is_step(marks: object) -> bool:
    """Whether the job with these marks is a step of a flow."""
    return FLOW in needs_in(marks)


def names_taken(needs: Mapping[str, Any], args: Any) -> list[str] | None:
    """The names of the steps whose results a job with these ``needs`` takes as arguments, each
    once: none, if it takes a list of none. None if it takes no results."""
    need = needs.get(FLOW)
    if type(need) is not dict or not need.get("takes"):
        return None
    found = dict[str, None]()
    for names in taken_in(args, str(need.get("bid"))):
        found.update(dict.fromkeys([names] if isinstance(names, str) else names))
    return list(found)


def field_of_index(name: str) -> str:
    """The field of a flow's steps that has the index of the step of this name."""
    return f"of:{name}"


def field_of_end(index: int) -> str:
    """The field of a flow's steps that says how the step with this index has ended."""
    return f"end:{index}"


def read_end(raw: bytes | None) -> Result | None:
    """How a step has ended, as ``field_of_end`` has it; None if that is not known."""
    return None if raw is None else read(raw)


def value_for(name: str, raw: bytes | None) -> Any:
    """What a step gets that takes the result of the one called ``name``: what that has returned;
    None if it has ended badly. Raises Dead if it is done, and its result is not there: so it will
    be at each further try."""
    end = read_end(raw)
    if end is not None and end.error is not None and end.outcome == "done":
        raise Dead(
            f"the result of step {shown(name)} was not kept ({end.error.message}); keep such a "
            "value elsewhere, and return where it is"
        )
    return None if end is None else end.value


def effects(
    keys: Keys, needs: Mapping[str, Any], fate: Fate, job: Payload, way: str
) -> tuple[Effect, ...]:
    """What its flow hears of the ``job``, which takes this ``way``."""
    place = place_in(needs)
    if place is None or not place.step:
        return NONE
    if fate == "failing":
        return _failing(keys, place, jid_of(job))
    if fate not in STATES:
        return NONE
    text = written(job, way) if STATES[fate] else ""
    return (_effect(keys, place, (STATES[fate], way, jid_of(job), text)),)


def _failing(keys: Keys, place: Place, jid: str) -> tuple[Effect, ...]:
    key, *more = _there(keys, place).of_batch(place.bid, place.above)
    how = (1 + len(place.above), place.member or 0, jid)
    return (_at(keys, place, Effect("batch_failing", key, how, tuple(more))),)


def lost(keys: Keys, bid: str, above: Sequence[str], index: int) -> Effect:
    """What a flow hears of a step that has started, and is nowhere."""
    how = (STATES["ended otherwise"], "lost", "", written({}, "deleted"))
    return _effect(keys, Place(bid, tuple(above), index), how)


def _effect(keys: Keys, place: Place, how: tuple[str | int, ...]) -> Effect:
    key, *more = _there(keys, place).of_flow(place.bid, place.above)
    arguments = (1 + len(place.above), place.member or 0, *how)
    return _at(keys, place, Effect("flow", key, arguments, tuple(more)))


def _there(keys: Keys, place: Place) -> Keys:
    """The keys of the shard of the flow, as an effect has them."""
    return ANYWHERE if place.at else keys


def _at(keys: Keys, place: Place, effect: Effect) -> Effect:
    """The effect, or what notes it for the shard of the flow."""
    return noted(keys, place.at, effect) if place.at else effect


def unstarted(payload: bytes, expires_in: float) -> bytes:
    """The payload of a step, or the note that pushes it to another shard, as its flow keeps it
    until it starts."""
    return f"{expires_in:f}".encode() + payload if expires_in else payload


def ask(needs: dict[str, Any]) -> None:
    """Puts the placeholder of the index into the needs of a step that is pushed into a flow in
    which others have an index already."""
    need = needs.get(FLOW)
    if type(need) is dict and "i" not in need:
        needs[FLOW] = {**need, "i": _PLACEHOLDER}
