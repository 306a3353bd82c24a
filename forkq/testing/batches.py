"""The batches of a test without Redis: what the scripts keep there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import BatchFinished
from ..features.batch.parts import STATES, Place, PushedInto, place_in
from ..features.ways import BY_NAME
from ..wire.marks import KEY, needs_in
from ..wire.payload import Payload

_WAITS, _DONE = STATES["waits again"], STATES["done"]
_DEAD, _OTHERWISE = STATES["dead"], STATES["ended otherwise"]
_AFTER: Final[dict[str, dict[str, str]]] = {
    "break": {"open": "broken"},
    "seal": {"open": "sealed", "broken": "sealed"},
    "cancel": {"open": "cancelled", "broken": "cancelled", "sealed": "cancelled"},
}


@dataclass(slots=True)
class FakeBatch:
    """One batch. ``members``: of each the state and the way; ``calls``: the payloads of its
    callbacks by their letters; ``called``: how they have ended."""

    above: FakeBatch | None
    index: int
    calls: dict[str, bytes]
    ignore: str
    state: str = "open"
    members: list[tuple[int, str]] = field(default_factory=list)
    fired: set[str] = field(default_factory=set)
    called: dict[str, int] = field(default_factory=dict)

    def settle(self, member: int, state: int, way: str) -> None:
        """A member has another state, unless that is one which it cannot have."""
        before = self.members[member][0]
        if before != _DONE and (before, state) != (_DEAD, _OTHERWISE):
            self.members[member] = (state, way)

    @property
    def is_over(self) -> bool:
        """Whether no member will run any more."""
        closed = self.state in ("sealed", "cancelled")
        return closed and all(state != _WAITS for state, _ in self.members)

    @property
    def is_success(self) -> bool:
        """Whether all members are done, but for those that are ignored."""
        return self.is_over and all(
            state == _DONE or (state == _OTHERWISE and f",{way}," in self.ignore)
            for state, way in self.members
        )

    @property
    def as_member(self) -> int:
        """What it is as a member of another batch: it waits until its callbacks have ended."""
        open_calls = self.fired & self.calls.keys() - self.called.keys()
        if not self.is_over or open_calls:
            return _WAITS
        ends = {_DONE if self.is_success else _OTHERWISE, *self.called.values()}
        ends |= {_DEAD} if any(state == _DEAD for state, _ in self.members) else set()
        return next(state for state in (_DEAD, _OTHERWISE, _DONE) if state in ends)


class FakeBatches:
    """All batches of a test. ``push`` gets the payload of a callback whose time has come."""

    def __init__(self, push: Callable[[bytes], None]) -> None:
        self._push = push
        self._batches: dict[str, FakeBatch] = {}

    def change(self, keys: Sequence[str], arguments: Sequence[Any]) -> bytes:
        """What batch_change.lua does."""
        depth, what, *rest = arguments
        bid, *above = [_bid_of(key) for key in keys[: 2 * depth : 2]]
        batch = self._batches.get(bid)
        if what == "open" and batch is None:
            via, *fields = rest
            batch = self._open(above, via, dict(zip(fields[::2], fields[1::2], strict=True)))
            self._batches[bid] = batch
        if batch is None:
            return b""
        batch.state = _AFTER.get(what, {}).get(batch.state, batch.state)
        self.look_round(batch)
        return batch.state.encode()

    def join(self, into: PushedInto) -> int:
        """The index of a new member. Raises BatchFinished if the batch takes none."""
        self.refuse_if_closed(into.bid, into.via)
        batch = self._batches[into.bid]
        batch.members.append((_WAITS, ""))
        return len(batch.members) - 1

    def end(self, job: Payload | None, way: str) -> None:
        """The job takes this way: its batch hears of it."""
        place: Place | None = None if job is None else place_in(needs_in(job.get(KEY)))
        batch = None if place is None else self._batches.get(place.bid)
        state = STATES.get(BY_NAME[way].batch)
        if place is None or batch is None or state is None:
            return
        if place.member is not None:
            batch.settle(place.member, state, way)
        elif state == _WAITS:
            batch.called.pop(place.letter, None)
        else:
            batch.called[place.letter] = state
        self.look_round(batch)

    def _open(self, above: Sequence[str], via: Any, fields: dict[str, Any]) -> FakeBatch:
        calls = {name[3:]: value for name, value in fields.items() if name.startswith("on_")}
        if not above:
            return FakeBatch(None, 0, calls, fields["ignore"])
        index = self.join(PushedInto(above[0], None if via == "" else via))
        return FakeBatch(self._batches[above[0]], index, calls, fields["ignore"])

    def batch(self, bid: str) -> FakeBatch:
        """The batch of that id, which is there."""
        return self._batches[bid]

    def refuse_if_closed(self, bid: str, via: int | None) -> None:
        """Raises BatchFinished if the batch takes no members from this pusher."""
        batch = self._batches.get(bid)
        is_open = batch is not None and (
            batch.state == "open"
            if via is None
            else batch.state != "cancelled" and batch.members[via][0] == _WAITS
        )
        if not is_open:
            raise BatchFinished(f"the batch {bid} takes no members any more")

    def look_round(self, batch: FakeBatch) -> None:
        """Pushes the callbacks whose time has come, and tells the batch above."""
        if any(state == _DEAD for state, _ in batch.members):
            each: FakeBatch | None = batch
            while each is not None:
                self._fire(each, "d")
                each = each.above
        if batch.is_over:
            self._fire(batch, "f")
        if batch.is_success:
            self._fire(batch, "s")
        if batch.above is not None and batch.above.members[batch.index][0] != batch.as_member:
            batch.above.settle(batch.index, batch.as_member, "batch")
            self.look_round(batch.above)

    def _fire(self, batch: FakeBatch, letter: str) -> None:
        if letter not in batch.fired:
            batch.fired.add(letter)
            if letter in batch.calls:
                self._push(batch.calls[letter])


def _bid_of(key: str) -> str:
    """The id of the batch whose hash has this name."""
    return key.rpartition(":")[2]
