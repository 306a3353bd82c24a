"""A slot: one child that must run, whichever process fills it now."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..config.capsule import Capsule
from ..config.config import Config
from ..config.shards import DEFAULT_SHARD
from ..store.outage import growing_pause
from ..wire.printable import last_line

if TYPE_CHECKING:
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


@dataclass(slots=True, eq=False)
class Slot:
    """One child that must run. The master fills the slot again when its child has died.

    ``capsule`` is None for the clock of the shard ``clock_of`` ("": of the only Redis).
    ``solo``: the child runs one suspect at a time; ``sole``: and no other solo child of the tree
    runs one beside it. ``due``
    (monotonic) is when the empty slot may be filled. ``reason``: why the last child did not boot;
    ``lasting``: the next one could not either.
    ``fork_error``: why the system refused the last fork; "" if it did not. ``ended``: how children
    of this slot have ended in good order or were replaced (``counted_as``); the next child adds it
    to the totals in Redis, but the clock adds nothing. The rescue counts crashes.
    """

    name: str
    capsule: Capsule | None
    solo: bool = False
    sole: bool = False
    clock_of: str = ""
    child: ChildHandle | None = None
    boot_failures: int = 0
    fork_error: str = ""
    early_deaths: int = 0
    respawns: int = 0
    due: float = 0.0
    reason: str = ""
    lasting: bool = False
    ended: Counter[str] = field(default_factory=Counter)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the configuration gives to this slot."""
        return self.capsule.queue_names if self.capsule else ()

    @property
    def shard(self) -> str:
        """Where its child finds its jobs; "" if the configuration has no shards."""
        return self.capsule.shard if self.capsule else self.clock_of

    @property
    def ready(self) -> bool:
        """Whether the slot has a child that has booted."""
        return self.child is not None and self.child.was_ready

    @property
    def missing(self) -> str:
        """Why the slot has no ready child although the master has tried; "" if it has one, or if
        no try has failed."""
        if self.ready:
            return ""
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
        """Empties the slot, and computes when it may be filled again."""
        self.child = None
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


def slots_of(config: Config) -> Iterator[Slot]:
    """Those of each capsule's children, and the clock's, or the clock's of each of their shards. On
    another shard this tree does not say which periodic jobs there are, so it must not push them."""
    for capsule in config.capsules:
        for number in range(capsule.workers):
            yield Slot(f"{capsule.name}.{number}", capsule)
    for shard in dict.fromkeys(capsule.shard for capsule in config.capsules):
        name = CLOCK if shard in ("", DEFAULT_SHARD) else f"{CLOCK}@{shard}"
        yield Slot(name, None, clock_of=shard)
