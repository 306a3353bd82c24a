"""Batches that stand still, looked at by the leader's clock.

What ends a job without forkq tells no batch: a delete in Sidekiq's pages, an LREM by hand. So a
batch whose numbers have not changed from one look to the next has its members searched for. One
that two such searches have found nowhere has ended otherwise. docs/internals.md, "The way of a
batch".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import MalformedPayload
from ..features.batch.parts import lost, place_in
from ..features.effects import packed
from ..store.connection import RedisConnection
from ..store.find_job import JobSearch
from ..store.scripts import BATCH_CHANGE, EFFECTS_ALONE
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.marks import KEY, needs_in
from ..wire.payload import loads_head
from ..wire.times import now
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds from the end of one look to the next.
LOOK_EVERY: Final = 600.0
# So many members are searched for in one look: where more wait, a queue is slow or paused.
_MOST: Final = 10_000
_BATCHES: Final = 10_000  # the latest ones that a look reads
_PAGE: Final = 500
# Members that one call of a script settles.
_AT_ONCE: Final = 100
_REST: Final = 3  # times as long as a step took
_FIELDS: Final = ("state", "total", "done", "dead", "other", "parent")
_OVER: Final = object()


class Standing(NamedTuple):
    """A batch as a look finds it: its numbers are ``total`` and those of its ended members."""

    bid: str
    state: str
    numbers: tuple[int, ...]
    parent: str

    @property
    def waiting(self) -> int:
        """How many members have not ended."""
        return self.numbers[0] - sum(self.numbers[1:])


class StandingBatches:
    """Settles the members that are nowhere. While there is no batch, nothing is asked."""

    def __init__(self, keys: Keys, connection: RedisConnection, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._connection = connection
        self._log = log
        self._has_batches = False
        self._steps: Iterator[None] | None = None
        self._next_step = 0.0
        self._before: dict[str, tuple[int, ...]] = {}  # the numbers at the last look
        self._missed: dict[str, set[int]] = {}  # members that the last search has not found

    def load(self, watch: bool) -> None:
        """Reads whether there is a batch."""
        counted = tracked(("ZCARD", self._keys.batches), watch)
        self._has_batches = bool(checked(self._connection.pipeline(counted))[-1])

    def next_due(self) -> float | None:
        """When to go on, epoch seconds."""
        return self._next_step if self._has_batches or self._steps is not None else None

    def work(self) -> None:
        """Does the next step of a look. If one fails, a new look begins."""
        began = monotonic()
        if self._steps is None:
            self._steps = self._look()
        try:
            is_over = next(self._steps, _OVER) is _OVER
        except Exception:
            self._steps = None
            raise
        self._next_step = now() + (LOOK_EVERY if is_over else _REST * (monotonic() - began))
        if is_over:
            self._steps = None

    def _look(self) -> Iterator[None]:
        waiting: dict[str, Standing] = {}
        for page in self._pages():
            for each in self._read(page):
                if each.waiting > 0:
                    waiting[each.bid] = each
                elif each.state in ("sealed", "cancelled"):
                    self._change(each)
            yield
        still = [each for each in waiting.values() if self._before.get(each.bid) == each.numbers]
        self._before = {each.bid: each.numbers for each in waiting.values()}
        if sum(each.waiting for each in still) > _MOST:
            still = sorted(still, key=lambda each: each.waiting)
            while sum(each.waiting for each in still) > _MOST:
                still.pop()
        missed = dict[str, set[int]]()
        if still:
            search = MemberSearch(self._connection, self._keys, [each.bid for each in still])
            yield from search.steps()
            for each in still:
                missed[each.bid] = self._waiting_members(each) - search.members[each.bid]
                yield from self._settle(each, missed[each.bid] & self._missed.get(each.bid, set()))
        self._missed = missed

    def _pages(self) -> Iterator[list[str]]:
        names = self._connection.call("ZRANGE", self._keys.batches, 0, _BATCHES - 1, "REV")
        before = self._keys.batch("")
        bids = [name.decode("utf-8", "replace").removeprefix(before) for name in names]
        for first in range(0, len(bids), _PAGE):
            yield bids[first : first + _PAGE]

    def _read(self, bids: Sequence[str]) -> list[Standing]:
        """What Redis has of these batches, without what is gone or damaged."""
        asked = [("HMGET", self._keys.batch(bid), *_FIELDS) for bid in bids]
        found = []
        for bid, reply in zip(bids, self._connection.pipeline(asked), strict=True):
            if isinstance(reply, list) and reply[0] is not None:
                state, *numbers, parent = (str(one or b"", "utf-8", "replace") for one in reply)
                counts = tuple(int(one) if one.isdigit() else 0 for one in numbers)
                found.append(Standing(bid, state, counts, parent))
        return found

    def _change(self, batch: Standing) -> None:
        """Pushes a callback that Redis refused when its time came."""
        above = self._above(batch)
        arguments = (1 + len(above), "look")
        self._connection.script(BATCH_CHANGE, self._keys.of_batch(batch.bid, above), arguments)

    def _above(self, batch: Standing) -> list[str]:
        found, parent = list[str](), batch.parent
        while parent and parent not in found:
            found.append(parent)
            [up] = self._read([parent]) or [Standing("", "", (0,), "")]
            parent = up.parent
        return found

    def _waiting_members(self, batch: Standing) -> set[int]:
        """The members whose two bits say that they wait, without batches: those tell themselves."""
        ends, fields = self._keys.batch_ends(batch.bid), self._keys.batch(batch.bid)
        bits, names = checked(self._connection.pipeline([("GET", ends), ("HKEYS", fields)]))
        children = {int(name[6:]) for name in names if name.startswith(b"child:")}
        total = batch.numbers[0]
        padded = (bits or b"").ljust(-(-total // 4), b"\0")
        waiting = {i for i in range(total) if not padded[i // 4] >> (6 - 2 * (i % 4)) & 3}
        return waiting - children

    def _settle(self, batch: Standing, members: Iterable[int]) -> Iterator[None]:
        """Ends these members otherwise, some at a time."""
        left, above = sorted(members), self._above(batch)
        if left:
            self._log.warning(
                "members of a batch were nowhere: they count as ended otherwise",
                batch=batch.bid,
                members=len(left),
            )
        for first in range(0, len(left), _AT_ONCE):
            names: list[Any] = []
            ends = self._keys.totals("ends")
            texts = [
                packed(lost(self._keys, batch.bid, above, member), names, ends)
                for member in left[first : first + _AT_ONCE]
            ]
            self._connection.script(EFFECTS_ALONE, names, texts)
            yield


class MemberSearch(JobSearch):
    """One pass for the members of these batches. ``members``: the indices of those that were
    seen."""

    def __init__(self, connection: RedisConnection, keys: Keys, bids: Iterable[str]) -> None:
        super().__init__(connection, keys, bids)
        self.members: dict[str, set[int]] = {bid: set() for bid in self._wanted}

    def _note(self, location: Any, queue: str, payload: bytes, **more: Any) -> None:
        try:
            place = place_in(needs_in(loads_head(payload).get(KEY)))
        except MalformedPayload:
            return
        if place is not None and place.member is not None and place.bid in self.members:
            self.members[place.bid].add(place.member)
