"""Batches that stand still, looked at by the leader's clock.

What ends a job without forkq tells no batch: a delete in Sidekiq's pages, an LREM by hand. So a
batch whose numbers have not changed from one look to the next has its members searched for. One
that two such searches have found nowhere has ended otherwise. docs/internals.md, "The way of a
batch".
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..errors import ForkqError, MalformedPayload
from ..features.batch.parts import (
    COUNTED,
    DEEPEST,
    LOST,
    BatchCount,
    lost,
    never_pushed,
    place_in,
)
from ..features.effects import Effect, packed
from ..features.flow.parts import lost as lost_step
from ..store.connection import Call, RedisConnection, RedisError
from ..store.find_job import JobSearch
from ..store.scripts import BATCH_CHANGE, EFFECTS_ALONE, FLOW_CHANGE
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.marks import KEY, needs_in
from ..wire.payload import loads_head
from ..wire.times import now
from .other_shards import OtherShards
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds from the end of one look to the next.
LOOK_EVERY: Final = 600.0
# So many members are searched for in one look: where more wait, a queue is slow or paused.
_MOST: Final = 10_000
_BATCHES: Final = 10_000  # the latest ones that a look reads
_PAGE: Final = 500
# So many members one call of a script settles, and so many batches one round trip is about.
_AT_ONCE: Final = 100
_REST: Final = 3  # times as long as a step took
_NUMBERS: Final = ("total", "done", "dead", "other", "ignored")
_LETTERS: Final = ("d", "f", "s")
_FIELDS: Final = (
    *("state", "parent", "calls", "away", "flow", *_NUMBERS),
    *(f"{what}_{letter}" for what in ("fired", "called") for letter in _LETTERS),
)
_OVER: Final = object()
# Which of the four members of a byte of the bitfield wait, by the value of that byte.
_WAITING: Final = [[k for k in range(4) if not byte >> (6 - 2 * k) & 3] for byte in range(256)]
# What a batch waits for: a member by its index, or a callback by its letter.
_Awaited: TypeAlias = "set[int | str]"


class Standing(NamedTuple):
    """A batch as a look finds it. ``numbers``: its members, the ended ones as they have ended, and
    those that are ignored; ``away``: whether it may have some on other shards; ``calls``: the
    letters of its callbacks; ``fired``: those whose time has come; ``called``: those that have
    ended; ``is_flow``: its members are the steps of a flow."""

    bid: str
    state: str
    parent: str
    away: bool
    is_flow: bool
    numbers: tuple[int, ...]
    calls: frozenset[str]
    fired: frozenset[str]
    called: frozenset[str]

    @property
    def waiting(self) -> int:
        """How many members have not ended."""
        return self.numbers[0] - sum(self.numbers[1:4])

    @property
    def awaited_calls(self) -> frozenset[str]:
        """The callbacks that the batch above waits for: where there is none, nothing does."""
        return (self.calls & self.fired) - self.called if self.parent else frozenset()

    @property
    def counts_as(self) -> BatchCount:
        """The word under which the metrics count it, unless it stands still."""
        if self.state in ("open", "broken"):
            return "open" if self.state == "open" else "broken"
        return "waiting" if self.waits else "ended"

    @property
    def waits(self) -> bool:
        """Whether it waits for a member or for a callback."""
        return self.waiting > 0 or bool(self.awaited_calls)

    @property
    def lacks_a_call(self) -> bool:
        """Whether the time of an event has come, but Redis has refused what comes of it."""
        total, done, dead, _, ignored = self.numbers
        is_over = self.state in ("sealed", "cancelled") and self.waiting <= 0
        is_success = is_over and not dead and done + max(0, ignored) >= total
        due = {"d": dead > 0, "f": is_over, "s": is_success}
        return any(due[letter] and letter not in self.fired for letter in _LETTERS)


class StandingBatches:
    """Settles the members that are nowhere. While there is no batch, nothing is asked."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        others: OtherShards,
        log: FilteringBoundLogger,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._others = others
        self._log = log
        self._has_batches = False
        self._steps: Iterator[None] | None = None
        self._next_step = 0.0
        self._before: dict[str, Standing] = {}  # those that waited at the last look
        self._missed: dict[str, _Awaited] = {}  # what the last search has not found

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
        counts = dict.fromkeys(COUNTED, 0)
        for page in self._pages():
            found = self._read(page)
            for each in found:
                counts[each.counts_as] += 1
            waiting |= {each.bid: each for each in found if each.waits}
            self._push_calls([each for each in found if each.lacks_a_call])
            yield
        standing = [each for each in waiting.values() if self._before.get(each.bid) == each]
        counts["standing"] = sum(each.counts_as == "waiting" for each in standing)
        counts["waiting"] -= counts["standing"]
        self._connection.pipeline([("HSET", self._keys.batch_counts, *chain(*counts.items()))])
        still = _few(standing)
        self._before = waiting
        missed = dict[str, _Awaited]()
        if still:
            yield from self._search(still, missed)
        self._missed = missed

    def _search(self, still: Sequence[Standing], missed: dict[str, _Awaited]) -> Iterator[None]:
        """Searches for what these batches wait for, and notes what it has ``missed``."""
        seen: dict[str, _Awaited] = {each.bid: set() for each in still}
        search = MemberSearch(self._connection, self._keys, seen)
        yield from search.steps()
        if any(each.away for each in still) and not (yield from self._search_away(still, seen)):
            still = [each for each in still if not each.away]
        for first in range(0, len(still), _AT_ONCE):
            awaited = self._awaited(still[first : first + _AT_ONCE])
            missed |= {each.bid: left - seen[each.bid] for each, left in awaited}
            yield from self._settle([each for each, _ in awaited], missed)

    def _search_away(
        self, still: Sequence[Standing], seen: dict[str, _Awaited]
    ) -> Generator[None, None, bool]:
        """Searches the other shards. False if one cannot be searched, or has notes: what these say
        would be told too late. So it is if this one has: what it sends there is in no queue yet."""
        if self._connection.call("XLEN", self._keys.notes):
            return False
        wanted = {each.bid: seen[each.bid] for each in still if each.away}
        for name in self._others.names():
            try:
                keys, connection = self._others.keys(name), self._others.connection(name)
                if connection.call("XLEN", keys.notes):
                    return False
                for _ in MemberSearch(connection, keys, wanted).steps():
                    yield
            except (RedisError, ForkqError) as error:
                self._log.warning(
                    "a shard is not searched for members of batches that stand still",
                    shard=name,
                    error=str(error),
                )
                return False
        return True

    def _pages(self) -> Iterator[list[str]]:
        names = self._connection.call("ZRANGE", self._keys.batches, 0, _BATCHES - 1, "REV")
        before = self._keys.batch("")
        bids = [name.decode("utf-8", "replace").removeprefix(before) for name in names]
        for first in range(0, len(bids), _PAGE):
            yield bids[first : first + _PAGE]

    def _read(self, bids: Sequence[str]) -> list[Standing]:
        """What Redis has of these batches, without what is gone or damaged."""
        asked = [("HMGET", self._keys.batch(bid), *_FIELDS) for bid in bids]
        replies = self._connection.pipeline(asked)
        pairs = zip(bids, replies, strict=True)
        return [_standing(bid, reply) for bid, reply in pairs if type(reply) is list and reply[0]]

    def _push_calls(self, batches: Sequence[Standing]) -> None:
        """Pushes callbacks that Redis refused when their time came."""
        chains = self._chains(batches)
        for first in range(0, len(batches), _AT_ONCE):
            calls = []
            for batch in batches[first : first + _AT_ONCE]:
                above = chains[batch.bid]
                script, of_it = BATCH_CHANGE, self._keys.of_batch
                if batch.is_flow:
                    script, of_it = FLOW_CHANGE, self._keys.of_flow
                calls.append(Call(script, of_it(batch.bid, above), (1 + len(above), "look")))
            checked(self._connection.exchange(calls))

    def _chains(self, batches: Iterable[Standing]) -> dict[str, list[str]]:
        """The batches above each of these, the nearest first."""
        chains: dict[str, list[str]] = {each.bid: [] for each in batches}
        parents = {each.bid: each.parent for each in batches if each.parent}
        for _ in range(DEEPEST if parents else 0):
            for bid, parent in parents.items():
                chains[bid].append(parent)
            above = {each.bid: each.parent for each in self._read([*{*parents.values()}])}
            parents = {bid: above[one] for bid, one in parents.items() if above.get(one)}
            if not parents:
                break
        return chains

    def _awaited(self, batches: Sequence[Standing]) -> list[tuple[Standing, _Awaited]]:
        """What each of these batches waits for, without those that are damaged. Batches that are
        members tell themselves, as long as Redis has them."""
        ends = self._connection.pipeline([("GET", self._keys.batch_ends(b.bid)) for b in batches])
        hashes = self._connection.pipeline([("HGETALL", self._keys.batch(b.bid)) for b in batches])
        there = self._known_children(hashes)
        unstarted = self._unstarted(batches)
        return [
            (
                batch,
                {
                    *(_waiting_in(bits or b"", batch.numbers[0]) - children - unstarted[batch.bid]),
                    *batch.awaited_calls,
                },
            )
            for batch, bits, children in zip(batches, ends, there, strict=True)
            if not isinstance(bits, Exception)
        ]

    def _unstarted(self, batches: Sequence[Standing]) -> dict[str, set[int]]:
        """The steps of each flow that have not started: they are in no queue."""
        flows = [each.bid for each in batches if each.is_flow]
        asked = [("HKEYS", self._keys.flow_steps(bid)) for bid in flows]
        replies = self._connection.pipeline(asked) if asked else []
        found: dict[str, set[int]] = {each.bid: set() for each in batches}
        for bid, names in zip(flows, replies, strict=True):
            if isinstance(names, list):
                found[bid] = {int(name[5:]) for name in names if name.startswith(b"wait:")}
        return found

    def _known_children(self, hashes: Sequence[Any]) -> list[set[int]]:
        """Returns, of each batch with one of these hashes, the indices of the members that are
        batches which Redis has."""
        children = [
            {int(name[6:]): key for name, key in fields.items() if name[:6] == b"child:"}
            if isinstance(fields, dict)
            else {}
            for fields in hashes
        ]
        names = [key for each in children for key in each.values()]
        known = self._connection.pipeline([("EXISTS", key) for key in names]) if names else []
        there = {key for key, count in zip(names, known, strict=True) if count}
        return [{index for index, key in each.items() if key in there} for each in children]

    def _settle(
        self, batches: Sequence[Standing], missed: Mapping[str, _Awaited]
    ) -> Iterator[None]:
        """Ends otherwise what two searches have missed, some at a time."""
        twice = {each.bid: missed[each.bid] & self._missed.get(each.bid, set()) for each in batches}
        found = [each for each in batches if twice[each.bid]]
        chains = self._chains(found)
        for batch in found:
            self._log.warning(
                "members of a batch were nowhere: they count as ended otherwise",
                batch=batch.bid,
                members=len(twice[batch.bid]),
            )
            counted = ("HINCRBY", self._keys.batch_counts, LOST, len(twice[batch.bid]))
            self._connection.pipeline([counted])  # where that is damaged, members end all the same
            effects = self._effects(batch, chains[batch.bid], twice[batch.bid])
            for first in range(0, len(effects), _AT_ONCE):
                names: list[Any] = []
                page, ends = effects[first : first + _AT_ONCE], self._keys.totals("ends")
                texts = [packed([effect], names, ends) for effect in page]
                self._connection.script(EFFECTS_ALONE, names, texts)
                yield

    def _effects(self, batch: Standing, above: list[str], left: _Awaited) -> list[Effect]:
        """What the batch hears of what is nowhere. A place that a push has taken, and has never
        told to have a member, has none."""
        fields = self._connection.call("HGETALL", self._keys.batch(batch.bid)) if batch.away else {}
        ranges = [value.split() for name, value in fields.items() if name[:6] == b"joins:"]
        places = {int(first) + n for first, count in ranges for n in range(int(count))}
        return [
            self._end_of(batch, above, one, is_place=one in places) for one in sorted(left, key=str)
        ]

    def _end_of(
        self, batch: Standing, above: Sequence[str], what: int | str, *, is_place: bool
    ) -> Effect:
        if batch.is_flow and isinstance(what, int):
            return lost_step(self._keys, batch.bid, above, what)
        return (never_pushed if is_place else lost)(self._keys, batch.bid, above, what)


def _few(standing: list[Standing]) -> list[Standing]:
    """Returns the batches with the fewest waiting members first: so many that the search for these
    is bounded."""
    standing.sort(key=lambda each: each.waiting)
    counts = accumulate(each.waiting for each in standing)
    return [each for each, count in zip(standing, counts, strict=True) if count <= _MOST]


class MemberSearch(JobSearch):
    """One pass for the members and the callbacks of batches. ``seen`` has their ids, and gets the
    indices and the letters of those that are there."""

    def __init__(self, connection: RedisConnection, keys: Keys, seen: dict[str, _Awaited]) -> None:
        super().__init__(connection, keys, seen)
        self.seen = seen

    def _note(self, location: Any, queue: str, payload: bytes, **more: Any) -> None:
        try:
            place = place_in(needs_in(loads_head(payload).get(KEY)))
        except MalformedPayload:
            return
        if place is not None and place.bid in self.seen:
            self.seen[place.bid].add(place.letter if place.member is None else place.member)


def _standing(bid: str, values: Sequence[bytes | None]) -> Standing:
    """The batch with these values of ``_FIELDS``."""
    state, parent, calls, away, flow, *rest = (
        str(value or b"", "utf-8", "replace") for value in values
    )
    numbers = tuple(int(text) if text.removeprefix("-").isdecimal() else 0 for text in rest[:5])
    fired, called = _letters_of(rest[5:8]), _letters_of(rest[8:])
    return Standing(
        bid, state, parent, bool(away), bool(flow), numbers, frozenset(calls), fired, called
    )


def _letters_of(texts: Sequence[str]) -> frozenset[str]:
    return frozenset(letter for letter, text in zip(_LETTERS, texts, strict=True) if text)


def _waiting_in(bits: bytes, total: int) -> set[int]:
    """The members whose two bits say that they wait."""
    padded = bits.ljust(-(-total // 4), b"\0")
    found = {4 * at + k for at, byte in enumerate(padded) for k in _WAITING[byte]}
    return {index for index in found if index < total}
