"""Which queues a fetch may take from, in which order, why one waits, and what Redis says of that.

A few fixed queues are offered in every fetch. A pattern stands for any number of queues, and a
capsule may list thousands. Of these a fetch offers only some that may have something. A name is
blocked once a script has found nothing to take there, until the server tells of a change, or until
its moment has come (docs/decisions/011).

Redis says when a *tracked* key changes. A registration lasts until the key changes, however many
fetches come in between. So a child that waits for the same keys again need not register them again.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cache
from itertools import groupby
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...config.capsule import Capsule
from ...limits.patterns import is_pattern, matches_any, matching
from ...limits.rules import NO_RULES, Rules
from ...runtime.log import LogOnce
from ...store.connection import DamagedKey, ResponseError
from ...store.damage import about
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from .portions import Portions

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How many queues of one pattern, or of a long list, a fetch offers; more if there are more
# processors.
_WINDOW: Final = 64
# What fetch.lua leaves unsaid.
_EMPTY: Final = (b"empty", 0)
# Seconds. So long a child sends the keys of a queue for which a script has asked: few queues have
# rules that were changed at run time, and they may be reset.
_ASKED_FOR: Final = 10.0


class QueueOffer(msgspec.Struct, frozen=True):
    """The queues of one fetch in the script's order: it may take from the first ``count`` of them.
    ``rules`` are the script's arguments about groups and rules, ``rule_keys`` the keys of the
    queues with rules; ``in_order``: no queue is drawn by weight."""

    names: Sequence[str]
    numbers: dict[str, int]
    count: int
    keys: Sequence[str]
    rule_keys: Sequence[str]
    rules: Sequence[Any]
    in_order: bool


class QueueGroup:
    """One of the capsule's queues (``single``), or queues that are offered as one: those of a
    pattern (``learn`` tells them; the order is alphabetical) or of a long list (``listed``).

    ``block`` keeps a name out of the offers until ``wake``, or until its moment has come (monotonic
    seconds). ``offered``: the names in the last offer.
    """

    def __init__(
        self, name: str, weight: int = 1, rules: Rules = NO_RULES, listed: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.weight = weight
        self.rules = rules
        self.offered: Sequence[str] = ()
        self.is_single = not listed and not is_pattern(name)
        self._places = {name: place for place, name in enumerate(listed)}
        self._known: set[str] = set(listed)
        self._open: list[str] = list(listed)  # sorted: those that are not blocked
        self._blocked_until: list[tuple[float, str]] = []  # a heap
        self._after = ""

    @property
    def is_fair(self) -> bool:
        """Whether its queues take turns."""
        return not self.is_single and bool(self.rules.fair)

    @property
    def is_cut(self) -> bool:
        """Whether it has open queues that are not in the last offer."""
        return not self.is_single and len(self._open) > len(self.offered)

    def learn(self, names: Iterable[str]) -> None:
        """Notes that ``names`` are all queues of the group. New ones are open."""
        names = set(names)
        self._open = self._sorted({*self._open, *(names - self._known)} & names)
        self._known = names

    def wake(self, name: str | None) -> None:
        """Opens one queue of the group, or all of them."""
        if name is None:
            self._open = self._sorted(self._known)
            self._blocked_until.clear()
        elif name in self._known and not self._is_open(name):
            insort(self._open, name, key=self._order)

    def offer(self, most: int, *, turning: bool) -> Sequence[str]:
        """The names for the next offer."""
        if self.is_single:
            self.offered = (self.name,)
            return self.offered
        now = monotonic()
        while self._blocked_until and self._blocked_until[0][0] <= now:
            self.wake(heapq.heappop(self._blocked_until)[1])
        if self.rules.blocking:
            self.offered = self._open[:]  # one left out could not keep the others waiting
        else:
            self.offered = self._next(most, turning=turning or self.is_fair)
        return self.offered

    def took(self, counts: Mapping[str, int]) -> None:
        """Notes how many jobs were taken of these queues: the next offer goes on after them."""
        served = [name for name in self.offered if name in counts]
        if served:
            most = max(counts[name] for name in served)
            self._after = [name for name in served if counts[name] == most][-1]
        elif self.offered and self.is_cut:
            self._after = self.offered[-1]

    def block(self, until: Mapping[str, float]) -> float:
        """Blocks the queues of the last offer that ``until`` names, each until its moment
        (infinity: it never opens by itself). Returns when the first name of all that are blocked
        opens by itself; infinity if none does."""
        for name in self.offered:
            at = until.get(name)
            if at is None or not self._is_open(name):
                continue
            del self._open[self._index(name)]
            if at != inf:
                heapq.heappush(self._blocked_until, (at, name))
        self.offered = [name for name in self.offered if name not in until]
        return self._blocked_until[0][0] if self._blocked_until else inf

    def _next(self, most: int, *, turning: bool) -> list[str]:
        """The next open queues, at most ``most`` of them, in order. With ``turning`` they begin
        after the last queue that was taken from."""
        at = self._index(self._after, bisect_right) if turning and self._after else 0
        found = self._open[at : at + most]
        return found + self._open[: min(at, most - len(found))]

    def _is_open(self, name: str) -> bool:
        at = self._index(name)
        return at < len(self._open) and self._open[at] == name

    def _index(self, name: str, bisect: Callable[..., int] = bisect_left) -> int:
        return bisect(self._open, self._order(name), key=self._order)

    def _sorted(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=self._order)

    def _order(self, name: str) -> Any:
        return self._places.get(name, name)


class FetchQueues:
    """The queues of one child. Not thread-safe: the channel's.

    ``names``: of which it may take, as far as it knows; ``offered``: those of all offers so far.
    ``blocked_until`` (monotonic): when a queue has a token again. ``counts``: whether some queue
    has a process limit. ``stale``: whether the set of queue names is to be read (again).
    """

    def __init__(self, capsule: Capsule, keys: Keys, log: FilteringBoundLogger) -> None:
        self.names = set(_fixed(capsule))
        self.offered: set[str] = set()
        self.blocked_until = inf
        self.counts = False
        self._capsule = capsule
        self._keys = keys
        self._entries = _groups_of(capsule)
        self._groups = [entry for entry in self._entries if not entry.is_single]
        self.stale = self._has_patterns
        self.portions = Portions(cache(capsule.rules.of))
        self._lacking: dict[str, str] = {}  # the key that is to change, by queue
        # The queues whose keys a script has asked for, and until when they are sent (monotonic).
        self._asked: dict[str, float] = {}
        self._last: tuple[list[Sequence[str]], QueueOffer] | None = None
        self._tracked: set[str] = set()
        self._log = LogOnce(log)  # a damaged key is a problem by its name

    @property
    def dynamic(self) -> bool:
        """Whether offers differ."""
        return bool(self._groups)

    # What Redis says

    def learn(self, names: Set[str]) -> None:
        """Notes that ``names`` are all queues that there are."""
        self.stale = False
        known = set(_fixed(self._capsule))
        for entry in self._groups:
            if is_pattern(entry.name):
                found = matching(entry.name, names - known)
                entry.learn(found)
                known.update(found)
        self.names = known

    def changed(self, keys: Collection[bytes] | None) -> None:
        """Notes which keys have changed, as Redis says; None: all may have."""
        if keys is None:
            self._tracked.clear()
            self.stale = self._has_patterns
            self.wake(None)
            return
        texts = [key.decode("utf-8", "replace") for key in keys]
        self._tracked.difference_update(texts)
        if not self._groups:
            return
        for key in texts:
            if key == self._keys.queues:
                self.stale = self._has_patterns
            else:
                self.wake(self._keys.queue_of(key))

    def registered(self, keys: Iterable[str]) -> None:
        """Notes that Redis tracks these keys."""
        self._tracked.update(keys)

    def missing(self, offer: QueueOffer) -> list[str]:
        """The keys that change when there may be more to take from what is offered, and that Redis
        does not track: as far as what keeps each queue is known, else its list."""
        names = offer.names[: offer.count]
        lacking = {self._lacking.get(name) or self._keys.queue(name) for name in names}
        wanted = {self._keys.paused, self._keys.controlled, *lacking}
        return [key for key in wanted if key not in self._tracked]

    def judge(
        self,
        offer: QueueOffer,
        reasons: Sequence[Any],
        damaged: Sequence[bytes],
        ended: Sequence[UnitOfWork],
        taken: Sequence[UnitOfWork],
        *,
        moved: Collection[str],
        short: bool,
        marked: bool,
        late: bool,
    ) -> bool:
        """Notes what a fetch of ``offer`` says of the queues. Returns whether Redis will say when
        there is more. ``short``: it found no more, for these reasons (fetch.lua). ``damaged``: the
        damaged keys that it met. ``moved``: the queues from which a job moved elsewhere.
        ``marked``: Redis tracks no key any more that matters. ``late``: some of ``moved`` moved
        after the fetch, which has not seen what they have freed."""
        if damaged or self._log.problems:
            self._judge_damage(offer, reasons, damaged, taken, all_seen=short and not marked)
        if self._groups:
            counts = Counter([unit.queue_name for unit in taken])
            for entry in self._groups:
                entry.took(counts)
        if marked or not short:  # if there is more, no processor waits
            self._tracked.clear()
        else:  # what this connection changes ends a registration, and Redis does not say so
            self._tracked.difference_update(_changed_by(self._keys, ended, taken))
            self._tracked.difference_update(self._keys.of_returns(moved))
        if late:
            self.changed(None)
        if late or not short:
            return False
        if taken and not reasons and not self._groups:
            self._lacking.clear()
            self.blocked_until = inf
            return False  # the script changed a list, so that is no longer registered
        return self._judge(offer, reasons)

    # Damaged keys: what one belongs to is left out of the fetch, and all else goes on

    def found_damaged(self, keys: Iterable[str]) -> None:
        """Logs these damaged keys: each once, and again if it was mended in between."""
        for key in keys:
            self._log.error(key, "damaged key; left out until it is mended", **about(key))

    def found_sound(self, keys: Collection[str], queues: Collection[str] = ()) -> None:
        """Notes that these keys are not damaged, nor is any key of these queues."""
        for key in self._log.problems:
            if key in keys or self._keys.queue_of(key) in queues:
                self._log.over(key)

    def noted(self, reply: object) -> None:
        """Takes Redis's reply to the note of this child's queues."""
        if isinstance(reply, DamagedKey):
            self.found_damaged([self._keys.fetched])
        elif isinstance(reply, ResponseError):
            self._log.error("note", "cannot note the queues of this child", error=str(reply))
        else:
            self.found_sound(["note", self._keys.fetched])

    # What a fetch needs

    def offer(
        self, also: Iterable[str] = (), *, turning: bool = False, nothing: bool = False
    ) -> QueueOffer:
        """The queues for the next fetch. It tells ends in the queues ``also``. With ``turning``
        each offer goes on where the last one ended, since no queue is ever blocked; then what comes
        after a pattern is offered too, or it would wait for ever. ``nothing``: no queue to take
        from."""
        if self._asked and monotonic() >= max(self._asked.values()):
            self._asked, self._last = {}, None
        if self._last is not None and not self._groups:
            return self._last[1]
        also = list(dict.fromkeys(also))
        for name in also:
            self.wake(name)  # Redis does not say what this connection changes
        if nothing and self._groups:
            return self._make([], also)
        shown = self._show(turning)
        extra = [n for n in also if not any(n in names for names in shown)]
        if self._last is None or self._last[0] != shown or extra:
            self._last = shown, self._make(shown, extra)
            self.offered.update(self._last[1].names)
        made = self._last[1]
        if extra:
            self._last = None
        return made

    # How

    @property
    def _has_patterns(self) -> bool:
        return any(is_pattern(entry.name) for entry in self._groups)

    @property
    def _in_order(self) -> bool:
        return self._capsule.mode == "strict"

    def wake(self, name: str | None) -> None:
        """Opens the queue, which may have something again; and all others, if they may have waited
        for it. Its rules may be others than in the last offer."""
        self._last = None
        if name is not None and self.portions.rules(name).blocking:
            name = None
        for entry in self._groups:
            entry.wake(name)

    def _judge_damage(
        self,
        offer: QueueOffer,
        reasons: Sequence[Any],
        damaged: Sequence[bytes],
        taken: Sequence[UnitOfWork],
        *,
        all_seen: bool,
    ) -> None:
        """All keys of a queue are sound if jobs were taken from it. Its list is sound too if the
        fetch looked at all queues and gives no reason why this one had none; the in-flight hash of
        an empty queue it does not look at."""
        found = {key.decode("utf-8", "replace") for key in damaged}
        self.found_damaged(found)
        if not offer.count or not (all_seen or taken):
            return
        sound = {self._keys.paused, self._keys.controlled}
        if all_seen:
            empty = set(range(1, offer.count + 1)).difference(reasons[::3])
            sound.update(self._keys.queue(offer.names[number - 1]) for number in empty)
        served = {unit.queue_name for unit in taken} - {self._keys.queue_of(key) for key in found}
        self.found_sound(sound - found, served)

    def _judge(self, offer: QueueOffer, reasons: Sequence[Any]) -> bool:
        is_tracked = self._keys.paused in self._tracked and self._keys.controlled in self._tracked
        blocked: dict[str, float] = {}
        dues = []
        rest = zip(reasons[::3], reasons[1::3], reasons[2::3], strict=True)
        found = {number: (why, detail) for number, why, detail in rest}
        for number, name in enumerate(offer.names[: offer.count], 1):
            why, detail = found.get(number, _EMPTY)
            # A blocking queue that may have jobs in progress must be in every offer, to block.
            may_block = why == b"empty" or not self.portions.rules(name).blocking
            if why == b"dry":
                dues.append(monotonic() + detail / 1e6)
                if may_block:
                    blocked[name] = dues[-1]
                continue
            key = self._lacking[name] = self._key(why, name, detail, offer.names)
            self.counts |= why == b"uncounted"
            if why == b"unkeyed":
                self._asked[name], self._last = monotonic() + _ASKED_FOR, None
            if key not in self._tracked or why == b"uncounted":
                is_tracked = False
            elif may_block and why not in {b"process_limit", b"busy"}:
                blocked[name] = inf
        dues += [entry.block(blocked) for entry in self._groups]
        self.blocked_until = min(dues, default=inf)
        return is_tracked and not self.stale and not any(entry.is_cut for entry in self._groups)

    def _key(self, why: bytes, name: str, detail: int, names: Sequence[str]) -> str:
        """The key that changes when that reason may be gone. Only this child frees a process limit:
        there it is the key of changed rules."""
        if why == b"full":
            return self._keys.awaited(name)
        if why == b"blocked":
            return self._keys.awaited(names[detail - 1])
        if why == b"damaged":
            return self._keys.lists_and_leases([name])[detail - 1]
        return self._keys.queue(name) if why in {b"empty", b"busy"} else self._keys.controlled

    def _show(self, turning: bool) -> list[Sequence[str]]:
        shown = []
        for entry in self._entries:
            shown.append(entry.offer(_window(self._capsule), turning=turning))
            if entry.is_cut and self._in_order and not turning:
                break  # strictly in order: what comes after this pattern waits until it is through
        for entry in self._entries[len(shown) :]:
            entry.offered = ()
        return shown

    def _make(self, shown: list[Sequence[str]], extra: list[str]) -> QueueOffer:
        names = [name for group in shown for name in group] + extra
        numbers = {name: number for number, name in enumerate(names, 1)}
        rules = {
            name: rule
            for at, group in enumerate(shown)
            for name in group
            if (rule := self._ruling(name, numbers, shown[at + 1 :]))
        }
        rule_keys = [key for name in rules for key in self._keys.of_rules(name)]
        rows = (part for rule in rules.values() for part in rule)
        arguments = (*self._grouping(shown), len(rules), *rows)
        keys = (self._keys.paused, self._keys.controlled, *self._keys.lists_and_leases(names))
        count = len(names) - len(extra)
        return QueueOffer(names, numbers, count, keys, rule_keys, arguments, self._in_order)

    def _grouping(self, shown: list[Sequence[str]]) -> list[int]:
        """The arguments about groups for fetch.lua: none where each queue is simply taken in
        order."""
        if self._in_order and not any(entry.is_fair for entry in self._entries):
            return [0]
        groups = [
            (len(group), entry.weight, int(entry.is_fair))
            for group, entry in zip(shown, self._entries, strict=False)
        ]
        return [len(groups), *(part for group in groups for part in group)]

    def _ruling(self, name: str, numbers: dict[str, int], after: list[Sequence[str]]) -> list[Any]:
        rules = self.portions.rules(name)
        if rules == NO_RULES and name not in self._asked:
            return []
        rate = (rules.rate.count, rules.rate.seconds, rules.rate.burst) if rules.rate else ("",) * 3
        waiting = [later for group in after for later in group] if rules.blocking else []
        if isinstance(rules.blocking, tuple):
            waiting = [later for later in waiting if matches_any(later, rules.blocking)]
        fields = (rules.limit, rules.process_limit, *rate)
        blocked = [numbers[later] for later in waiting]
        return [numbers[name], *("" if f is None else f for f in fields), len(blocked), *blocked]


def _changed_by(
    keys: Keys, ended: Sequence[UnitOfWork], taken: Sequence[UnitOfWork]
) -> Iterable[str]:
    """The keys that an exchange has changed, of those that may be registered, but new marks."""
    changed = keys.lists_and_leases({unit.queue_name for unit in taken})
    if not ended:
        return changed
    freed = Counter([unit.queue_name for unit in ended])
    freed.subtract([unit.queue_name for unit in taken])
    for name, count in freed.items():
        changed.append(keys.inflight(name))
        if count > 0:
            changed.append(keys.awaited(name))
    return changed


def _fixed(capsule: Capsule) -> list[str]:
    return [name for name, _ in capsule.queues if not is_pattern(name)]


def _window(capsule: Capsule) -> int:
    return max(_WINDOW, 2 * capsule.concurrency)


def _groups_of(capsule: Capsule) -> list[QueueGroup]:
    """A list of more queues than a fetch offers becomes groups, if it is taken in order and no
    queue blocks others: that would need all of them in each offer."""

    def entry(name: str, weight: int) -> QueueGroup:
        return QueueGroup(name, weight, capsule.rules.of(name))

    has_blocking = any(capsule.rules.of(name).blocking for name, _ in capsule.queues)
    if capsule.mode != "strict" or len(_fixed(capsule)) <= _window(capsule) or has_blocking:
        return [entry(name, weight) for name, weight in capsule.queues]
    entries = []
    for are_patterns, run in groupby(capsule.queues, key=lambda queue: is_pattern(queue[0])):
        if are_patterns:
            entries += [entry(name, weight) for name, weight in run]
        else:
            entries.append(QueueGroup("", listed=[name for name, _ in run]))
    return entries
