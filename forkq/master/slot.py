"""The slots: one for each child that must run, whichever process fills it now."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..config.capsule import Capsule
from ..config.config import Config
from ..config.shards import DEFAULT_SHARD
from ..store.outage import growing_pause
from ..wire.printable import last_line

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from .child_handle import ChildHandle

CLOCK: Final = "clock"
# A child that lived this long was healthy: the pauses after its death start anew.
_HEALTHY_AFTER: Final = 10.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
# After a crash of a child that was ready. Each job kills one such child at most, and with a long
# pause a few of those jobs would keep all others waiting.
_LONGEST_AFTER_CRASH: Final = 1.0
# After a failed boot: what the app waits for, such as a database, takes seconds to come.
_FIRST_AFTER_BOOT: Final = 1.0


class Slot(msgspec.Struct, eq=False):
    """One child that must run. The master fills the slot again when its child has died.

    ``capsule`` is None for the clock of the shard ``clock_of`` ("": of the only Redis).
    ``solo``: the child runs one suspect at a time; ``sole``: and no other solo child of the tree
    runs one beside it. ``on_trial``: it tries new code, so its death says nothing of its jobs.
    ``due`` (monotonic) is when the empty slot may be filled. ``reason``: why the last child did not
    boot; ``lasting``: the next one could not either.
    ``fork_error``: why the system refused the last fork; "" if it did not. ``ended``: how children
    of this slot have ended in good order or were replaced (``counted_as``); the next child adds it
    to the totals in Redis, but the clock adds nothing. The rescue counts crashes.
    """

    name: str
    capsule: Capsule | None
    solo: bool = False
    sole: bool = False
    on_trial: bool = False
    clock_of: str = ""
    boot_failures: int = 0
    fork_error: str = ""
    early_deaths: int = 0
    respawns: int = 0
    due: float = 0.0
    reason: str = ""
    lasting: bool = False
    ended: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the configuration gives to this slot."""
        return self.capsule.queue_names if self.capsule else ()

    @property
    def shard(self) -> str:
        """Where its child finds its jobs; "" if the configuration has no shards."""
        return self.capsule.shard if self.capsule else self.clock_of

    @property
    def failure(self) -> str:
        """Why the last try to fill the slot has failed; "" if it has not."""
        if self.fork_error:
            return f"{self.name} cannot be forked: {self.fork_error}"
        if self.boot_failures:
            return f"{self.name} cannot boot: {self.error}"
        return ""

    @property
    def error(self) -> str:
        """The reason without its traceback."""
        return last_line(self.reason)

    def record_death(self, child: ChildHandle, how: str) -> None:
        """Notes that the child has died, or leaves the slot: computes when the slot may be filled
        again."""
        self.reason = child.told.reason or f"it died with {how} before it was ready"
        self.lasting = child.told.lasting
        lived = time.monotonic() - child.born
        if child.was_ready:
            self.boot_failures = 0
            healthy = lived >= _HEALTHY_AFTER or self.solo  # a suspect may well have killed it
            self.early_deaths = 0 if healthy else self.early_deaths + 1
        else:
            self.boot_failures += child.told.exiting is None  # else it was told to end
            self.early_deaths += 1
        self.respawns += 1
        self.due = time.monotonic() + self._pause(was_ready=child.was_ready)

    def _pause(self, *, was_ready: bool) -> float:
        """Zero after a long life; after failed boots and short lives a growing pause."""
        if self.boot_failures:
            return growing_pause(self.boot_failures - 1, _FIRST_AFTER_BOOT, _LONGEST_PAUSE)
        if self.early_deaths == 0:
            return 0.0
        longest = _LONGEST_AFTER_CRASH if was_ready else _LONGEST_PAUSE
        return growing_pause(self.early_deaths - 1, _FIRST_PAUSE, longest)


class Slots:
    """The slots of the tree, and which child fills each slot.

    ``ordinary``: those that the configuration gives; ``solo``: those for the suspects that wait, as
    isolation.py has them. ``were_ready``: all ordinary slots have been filled with ready children
    at least once. A tree that was never ready ends when a child cannot boot within ``boot_timeout``
    seconds (0: no limit); with ``never_gives_up`` it goes on."""

    def __init__(
        self, slots: Iterable[Slot], boot_timeout: float = 0.0, *, never_gives_up: bool = False
    ) -> None:
        self.ordinary = list(slots)
        self._children: dict[Slot, ChildHandle] = {}
        self._boot_until = time.monotonic() + (boot_timeout or math.inf)
        self._never_gives_up = never_gives_up
        self.solo: list[Slot] = []
        self.were_ready = False

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.ordinary)

    def child(self, slot: Slot) -> ChildHandle | None:
        """The child that fills ``slot``; None if it is empty."""
        return self._children.get(slot)

    def has(self, child: ChildHandle) -> bool:
        """Whether the child fills its slot. One that another child has replaced does not."""
        return self._children.get(child.slot) is child

    def is_ready(self, slot: Slot) -> bool:
        """Whether ``slot`` has a child that has booted."""
        child = self._children.get(slot)
        return child is not None and child.was_ready

    def put(self, child: ChildHandle) -> None:
        """From now on the child fills its slot."""
        self._children[child.slot] = child

    def empty(self, child: ChildHandle, how: str = "") -> None:
        """The child has died, ``how`` it did, or leaves its slot."""
        if self.has(child):
            del self._children[child.slot]
            child.slot.record_death(child, how)

    def note_ready(self, log: FilteringBoundLogger) -> None:
        """Called after the facts were read: logs which children boot again."""
        for slot in self.ordinary:
            if self.is_ready(slot) and slot.boot_failures:
                log.info("child is ready again", child=slot.name, failed=slot.boot_failures)
                slot.boot_failures = 0
        self.were_ready = self.were_ready or self.all_ready

    @property
    def all_ready(self) -> bool:
        """Whether every slot has a child that has booted."""
        return all(self.is_ready(slot) for slot in self.ordinary)

    @property
    def due(self) -> float | None:
        """When the next empty slot is due (monotonic)."""
        return min((slot.due for slot in self.ordinary if self.child(slot) is None), default=None)

    @property
    def missing(self) -> dict[str, str]:
        """By name the slots that have no ready child although the master has tried, and why."""
        found = [slot for slot in (*self.ordinary, *self.solo) if not self.is_ready(slot)]
        return {slot.name: slot.failure for slot in found if slot.failure}

    @property
    def goes_on(self) -> bool:
        """Whether a child that cannot boot leaves the tree running."""
        return self.were_ready or self._never_gives_up

    @property
    def boot_failure(self) -> dict[str, Any] | None:
        """Which child cannot boot, and why: one that could not at the next try either, or that has
        failed until ``boot_timeout``. None if there is none, or if the tree was ready before: such
        a tree goes on with the children that it has."""
        if self.goes_on:
            return None
        is_late = time.monotonic() >= self._boot_until
        for slot in self.ordinary:
            if slot.boot_failures and self.child(slot) is None and (slot.lasting or is_late):
                return {"child": slot.name, "attempts": slot.boot_failures, "reason": slot.error}
        return None

    @property
    def cannot_ever_boot(self) -> bool:
        """Whether a child has failed to boot in a way that only a change of the app or of the
        configuration can mend."""
        return any(slot.lasting for slot in self.ordinary)


def slots_of(config: Config) -> Iterator[Slot]:
    """The slots of each capsule's children, and that of the clock, or of the clock of each of their
    shards. On another shard this tree does not say which periodic jobs there are, so it must not
    push them."""
    for capsule in config.capsules:
        for number in range(capsule.workers):
            yield Slot(f"{capsule.name}.{number}", capsule)
    for shard in dict.fromkeys(capsule.shard for capsule in config.capsules):
        name = CLOCK if shard in ("", DEFAULT_SHARD) else f"{CLOCK}@{shard}"
        yield Slot(name, None, clock_of=shard)
