"""The flows of a test without Redis: what the scripts keep there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..features.batch.parts import INDEX, STATES, place_in
from ..features.expire.parts import MOMENT
from ..features.flow.parts import filled, names_taken, value_for
from ..features.results.parts import written
from ..features.ways import BY_NAME
from ..wire.marks import KEY, needs_in
from ..wire.payload import Payload
from ..wire.times import now
from .batches import FakeBatch, FakeBatches

_DONE: Final = STATES["done"]
_CANCELLED: Final = STATES["ended otherwise"]
_WAITING: Final = re.compile(rb"([\d.]*)(.*)", re.DOTALL)
_EDGE: Final = re.compile(r"(\d+)([a-z])")


@dataclass(slots=True)
class FakeFlow:
    """One flow. Of each step by its index: ``jobs`` has its payload until it starts, ``before`` the
    steps before it with the letters of the edges, ``ends`` how it has ended, ``by`` which step has
    added it."""

    batch: FakeBatch
    names: dict[str, int] = field(default_factory=dict)
    jobs: dict[int, bytes] = field(default_factory=dict)
    before: dict[int, dict[int, str]] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    by: dict[int, int] = field(default_factory=dict)

    def add(self, told: Sequence[Any]) -> None:
        """Adds the steps in the arguments of flow_push.lua."""
        for at in range(0, len(told), 6):
            index, name, job, _, _, nexts = told[at : at + 6]
            self.names[name], self.jobs[index] = index, job
            self.before.setdefault(index, {})
            for number, letter in _EDGE.findall(nexts):
                self.before.setdefault(int(number), {})[index] = letter

    def graft(self, by: int, name: str, job: bytes, edges: Mapping[str, str]) -> None:
        """Adds a step that the step ``by`` has made, once."""
        if name not in self.names:
            index = self.names[name] = len(self.batch.members)
            self.batch.members.append((0, ""))
            self.by[index], self.jobs[index] = by, job.replace(INDEX, b"%d" % index)
            self.before[index] = {self.names[one]: how for one, how in edges.items()}

    def state(self, index: int) -> int:
        """What a step is: it waits or has started, is done, dead, or has ended otherwise."""
        return self.batch.members[index][0]

    def due(self) -> Iterator[bytes]:
        """The payloads of the steps that start now; ends those that are cancelled instead."""
        left = True
        while left:
            left = False
            for index in [*self.jobs]:
                edges = [(self.state(one), how) for one, how in self.before[index].items()]
                is_cancelled = any(_cancels(state, how) for state, how in edges)
                if is_cancelled or self.batch.state == "cancelled":
                    del self.jobs[index]
                    self.batch.settle(index, _CANCELLED, "cancelled")
                    left = True
                elif all(state == _DONE or (state > _DONE and how == "r") for state, how in edges):
                    yield _started(self.jobs.pop(index))


def _cancels(state: int, letter: str) -> bool:
    """Whether a step in this state ends the one behind it."""
    return (state > _DONE and letter == "c") or (state == _CANCELLED and letter == "w")


class FakeFlows:
    """All flows of a test. ``push`` gets the payload of a step that starts; ``after`` is called
    behind each change that a caller of the flow makes."""

    def __init__(
        self, batches: FakeBatches, push: Callable[[bytes], None], after: Callable[[], None]
    ) -> None:
        self.batches = batches
        self._push = push
        self._after = after
        self._flows: dict[str, FakeFlow] = {}

    def push(self, keys: Sequence[str], arguments: Sequence[Any]) -> bytes:
        """What flow_push.lua does."""
        depth, via, total, _, count, *rest = arguments
        bid = _bid_of(keys[0])
        self.batches.change(keys, (depth, "open", via, *rest[:count]))
        flow = self._flows.setdefault(bid, FakeFlow(self.batches.batch(bid)))
        if flow.batch.state != "open":
            return flow.batch.state.encode()
        flow.add(rest[count:])
        if total == "":
            return b"open"
        flow.batch.members = [(0, "")] * total
        flow.batch.state = "sealed"
        self._look_round(flow)
        self._after()
        return flow.batch.state.encode()

    def graft(self, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """What flow_graft.lua does."""
        _, by, most, what, *rest = arguments
        flow = self._flows[_bid_of(keys[0])]
        self.batches.refuse_if_closed(_bid_of(keys[0]), by)
        new = [*_grafts(rest)]
        known = {*flow.names, *(name for name, _, _ in new)}
        for name, _, edges in new:
            if odd := [one for one in edges if one not in known]:
                return [b"unknown", odd[0].encode()]
            if name in flow.names and flow.by.get(flow.names[name]) != by:
                return [b"double", name.encode()]
        added = [name for name, _, _ in new if name not in flow.names]
        if (room := most - len(flow.batch.members)) < len(added):
            return [b"many", added[room].encode()]
        if what == "look":
            return 1
        for name, job, edges in new:
            flow.graft(by, name, job, edges)
        self._look_round(flow)
        self._after()
        return 1

    def cancel(self, keys: Sequence[str]) -> list[Any]:
        """What flow_change.lua does."""
        flow = self._flows.get(_bid_of(keys[0]))
        if flow is None:
            return []
        flow.batch.state = "cancelled"
        self._look_round(flow)
        self._after()
        return [b"cancelled", 0]

    def end(self, job: Payload | None, way: str) -> None:
        """A step takes this way: its flow knows the state of it by now."""
        place = None if job is None else place_in(needs_in(job.get(KEY)))
        flow = None if place is None or not place.step else self._flows.get(place.bid)
        if job is None or flow is None or place is None or place.member is None:
            return
        state = STATES.get(BY_NAME[way].batch)
        if state:
            flow.ends.setdefault(place.member, written(job, way))
        elif state == 0:
            flow.ends.pop(place.member, None)
        self._look_round(flow)

    def fill(self, job: Payload) -> None:
        """Puts the results of other steps into the arguments of a step, as a child does."""
        needs = needs_in(job.get(KEY))
        place, names = place_in(needs), names_taken(needs, job.get("args"))
        if place is not None and names is not None:
            flow = self._flows[place.bid]
            found = {name: value_for(name, self._end_of(flow, name)) for name in names}
            job["args"] = filled(job["args"], needs, found)

    def field(self, key: str, name: str) -> bytes | None:
        """A field of the steps of a flow, as Redis would have it."""
        flow = self._flows.get(_bid_of(key.removesuffix(":steps")))
        kind, _, rest = name.partition(":")
        if flow is None or (kind == "of" and rest not in flow.names):
            return None
        found = str(flow.names[rest]) if kind == "of" else flow.ends.get(int(rest))
        return None if found is None else found.encode()

    def state(self, key: str, index: int) -> int:
        """The two bits of a step."""
        return self._flows[_bid_of(key.removesuffix(":ends"))].state(index)

    def _end_of(self, flow: FakeFlow, name: str) -> bytes | None:
        found = flow.ends.get(flow.names[name])
        return None if found is None else found.encode()

    def _look_round(self, flow: FakeFlow) -> None:
        due = [*flow.due()]
        self.batches.look_round(flow.batch)
        for job in due:
            self._push(job)


def _grafts(rest: Sequence[Any]) -> Iterator[tuple[str, bytes, Mapping[str, str]]]:
    """The steps in the arguments of flow_graft.lua: name, payload, and the edges by names."""
    at = 0
    while at < len(rest):
        name, job, _, count = rest[at : at + 4]
        flat = rest[at + 4 : at + 4 + 2 * count]
        yield name, job, dict(zip(flat[::2], flat[1::2], strict=True))
        at += 4 + 2 * count


def _started(job: bytes) -> bytes:
    """The payload of a step as it goes to its queue."""
    match = _WAITING.fullmatch(job)
    assert match is not None
    seconds, payload = match.groups()
    return payload.replace(MOMENT, b"%f" % (now() + float(seconds))) if seconds else payload


def _bid_of(key: str) -> str:
    """The id of the flow whose hash has this name."""
    return key.rpartition(":")[2]
