"""Which queues a fetch may take from, and by which rules: what fetch.lua is told of them.

A few fixed queues are offered in every fetch. A pattern stands for any number of queues, and a
capsule may list thousands. Of these a fetch offers only some that may have something: a name is
awake, or asleep once a script has found nothing to take, and will be woken by what the server tells
(docs/decisions/011).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...config.capsule import Capsule
from ...limits.patterns import is_pattern, matches_any, matching
from ...limits.rules import NO_RULES, Rules
from ...wire.keys import Keys
from .offered_queue import offered_queues

# How many queues of one pattern, or of a long list, a fetch offers; more if there are more
# processors.
_WINDOW: Final = 64
# What fetch.lua leaves unsaid.
_EMPTY: Final = (b"empty", 0)
_EVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class QueueOffer:
    """The queues of one fetch in the script's order: it may take from the first ``count`` of them.
    ``rules`` are the script's arguments about groups and rules."""

    names: Sequence[str]
    numbers: dict[str, int]
    count: int
    keys: Sequence[str]
    rules: Sequence[Any]


class QueueSelector:
    """The queues of one child. Not thread-safe: the fetch connection's."""

    def __init__(self, capsule: Capsule, keys: Keys) -> None:
        self.offered: set[str] = set()
        self.counts = False  # whether some queue has a process limit
        self.due = _EVER  # monotonic: when a queue has a token again
        self._keys = keys
        self._book = capsule.rules
        self._in_order = capsule.mode == "strict"
        self._window = max(_WINDOW, 2 * capsule.concurrency)
        self._entries = offered_queues(capsule, self._window)
        self._groups = [entry for entry in self._entries if entry.known is not None]
        self._patterns = [entry for entry in self._groups if is_pattern(entry.name)]
        self._rules_of: dict[str, Rules] = {}
        self._lacking: dict[str, str] = {}  # the key that is to change, by queue
        self._last: tuple[list[list[str]], QueueOffer] | None = None
        self._fixed = {name for name, _ in capsule.queues if not is_pattern(name)}
        self.names = set(self._fixed)  # of which it may take, as far as it knows
        self.dynamic = bool(self._groups)  # whether offers differ
        self.has_patterns = bool(self._patterns)
        self.stale = self.has_patterns  # whether the set of queue names is to be read (again)

    # What Redis says

    def learn(self, names: Collection[str]) -> None:
        """``names`` are all queues that there are."""
        self.stale = False
        left = set(names) - self._fixed
        self.names = set(self._fixed)
        for entry in self._patterns:
            found = matching(entry.name, left)
            entry.known.meet(found)  # type: ignore[union-attr]
            left.difference_update(found)
            self.names.update(found)

    def changed(self, keys: Iterable[bytes] | None) -> None:
        """Something changed under these keys; None: anywhere."""
        if keys is None:
            self.wake_all()
            return
        for raw in keys:
            key = raw.decode("utf-8", "replace")
            if key == self._keys.queues:
                self.stale = self.has_patterns
            else:
                self._stir(self._keys.queue_of(key))

    def wake_all(self) -> None:
        """All queues may have changed."""
        self.stale = self.has_patterns
        self._wake(None)

    def _stir(self, name: str | None) -> None:
        """That queue may have something again; and all others, if they may have waited for it."""
        self._wake(None if name is None or self._rules(name).blocking else name)

    def _wake(self, name: str | None) -> None:
        for entry in self._groups:
            entry.known.wake(name)  # type: ignore[union-attr]

    # What a fetch needs

    def wanting(self, offer: QueueOffer) -> set[str]:
        """The keys that change when there may be more to take from what is offered: as far as
        what keeps each queue is known, else its list."""
        names = offer.names[: offer.count]
        lacking = (self._lacking.get(name) or self._keys.queue(name) for name in names)
        return {self._keys.paused, self._keys.controlled, *lacking}

    def offer(self, also: Iterable[str] = (), *, turning: bool = False) -> QueueOffer:
        """The queues for the next fetch. It acknowledges in the queues ``also``. With ``turning``
        each offer goes on where the last one ended, since no queue is ever asleep; then what comes
        after a pattern is offered too, or it would wait for ever."""
        if self._last is not None and not self.dynamic:
            return self._last[1]
        also = list(dict.fromkeys(also))
        for name in also:
            self._stir(name)  # Redis does not say what this connection changes
        shown = self._show(turning)
        extra = [n for n in also if not any(n in names for names in shown)]
        if self._last is None or self._last[0] != shown or extra:
            self._last = shown, self._make(shown, extra)
            self.offered.update(self._last[1].names)
        made = self._last[1]
        if extra:
            self._last = None
        return made

    def nothing(self, also: Sequence[str]) -> QueueOffer:
        """No queues to take from."""
        for name in also:
            self._stir(name)  # as in ``offer``
        return self.offer() if not self.dynamic else self._make([], list(dict.fromkeys(also)))

    def turn(self, taken: Mapping[str, int]) -> None:
        """The last offer brought so many jobs of these queues: whose turn it is next."""
        for entry in self._groups:
            entry.turn(taken)

    def note_all_empty(self) -> None:
        """A fetch emptied the fixed queues. For use instead of ``judge`` where it is known that one
        of their lists is not registered."""
        self._lacking.clear()
        self.due = _EVER

    def judge(self, offer: QueueOffer, reasons: Sequence[Any], tracked: Container[object]) -> bool:
        """A fetch found no more in ``offer``, for these reasons (fetch.lua). Returns whether Redis
        will say when there is more, if it says when the keys ``tracked`` change."""
        is_tracked = self._keys.paused in tracked and self._keys.controlled in tracked
        resting: dict[str, float] = {}
        dues = []
        rest = zip(reasons[::3], reasons[1::3], reasons[2::3], strict=True)
        found = {number: (why, detail) for number, why, detail in rest}
        for number, name in enumerate(offer.names[: offer.count], 1):
            why, detail = found.get(number, _EMPTY)
            # A blocking queue that may have jobs in progress must be in every offer, to block.
            sleeps = why == b"empty" or not self._rules(name).blocking
            if why == b"dry":
                dues.append(time.monotonic() + detail / 1e6)
                if sleeps:
                    resting[name] = dues[-1]
                continue
            key = self._key(why, name, detail, offer.names)
            self._lacking[name] = key
            self.counts |= why == b"uncounted"
            if key not in tracked or why == b"uncounted":
                is_tracked = False
            elif sleeps and why not in {b"held", b"busy"}:
                resting[name] = _EVER
        alarms = [entry.rest(resting) for entry in self._groups]
        self.due = min((*dues, *alarms), default=_EVER)
        return is_tracked and not self.stale and not any(entry.cut for entry in self._groups)

    def _key(self, why: bytes, name: str, detail: int, names: Sequence[str]) -> str:
        """What changes when that reason may be gone. Only this child frees a process limit."""
        if why == b"full":
            return self._keys.full(name)
        if why == b"blocked":
            return self._keys.busy(names[detail - 1])
        if why == b"damaged":
            return self._keys.lists_and_leases([name])[detail - 1]
        return self._keys.queue(name) if why in {b"empty", b"busy"} else self._keys.controlled

    def _show(self, turning: bool) -> list[list[str]]:
        shown = []
        for entry in self._entries:
            shown.append(entry.show(self._window, turning=turning))
            if entry.cut and self._in_order and not turning:
                break  # strictly in order: what comes after this pattern waits until it is through
        for entry in self._entries[len(shown) :]:
            entry.shown = []
        return shown

    def _make(self, shown: list[list[str]], extra: list[str]) -> QueueOffer:
        names = [name for group in shown for name in group] + extra
        numbers = {name: number for number, name in enumerate(names, 1)}
        rules = [
            rule
            for at, group in enumerate(shown)
            for name in group
            if (rule := self._ruling(name, numbers, shown[at + 1 :]))
        ]
        arguments = (*self._grouping(shown), len(rules), *(part for rule in rules for part in rule))
        keys = (self._keys.paused, self._keys.controlled, *self._keys.lists_and_leases(names))
        return QueueOffer(names, numbers, len(names) - len(extra), keys, arguments)

    def _grouping(self, shown: list[list[str]]) -> list[int]:
        """What fetch.lua wants of groups: nothing where each queue is simply taken in order."""
        if self._in_order and not any(entry.fair for entry in self._entries):
            return [0]
        groups = [
            (len(group), entry.weight, int(entry.fair))
            for group, entry in zip(shown, self._entries, strict=False)
        ]
        return [len(groups), *(part for group in groups for part in group)]

    def _ruling(self, name: str, numbers: dict[str, int], after: list[list[str]]) -> list[Any]:
        rules = self._rules(name)
        if rules == NO_RULES:
            return []
        rate = (rules.rate.count, rules.rate.seconds, rules.rate.burst) if rules.rate else ("",) * 3
        waiting = [later for group in after for later in group] if rules.blocking else []
        if isinstance(rules.blocking, tuple):
            waiting = [later for later in waiting if matches_any(later, rules.blocking)]
        fields = (rules.limit, rules.process_limit, *rate)
        blocked = [numbers[later] for later in waiting]
        return [numbers[name], *("" if f is None else f for f in fields), len(blocked), *blocked]

    def _rules(self, name: str) -> Rules:
        rules = self._rules_of.get(name)
        if rules is None:
            rules = self._rules_of[name] = self._book.of(name)
        return rules
