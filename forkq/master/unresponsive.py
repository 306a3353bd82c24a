"""The rules of health about children that do not answer: they do not come out of their boot, have
lost their pipes, send no facts, or do not reach Redis although others do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ..config.config import Config
from ..runtime.liveness import STOPPED, kernel_state
from ..store.crash_record import ProcessDeath
from .child_handle import ChildHandle
from .health import ChildVerdict, Rule, line
from .replacement import Replacements
from .slot import Slot, Slots

# Seconds that a process may take to end after its end of the report pipe was closed, or after a
# booting child was told to stop.
_END_LIMIT: Final = 1.0
# Seconds that a child which hangs in its boot has to log its stacks; then, if its interpreter
# hangs, too, to write them from a signal handler.
_STACKS_LIMIT: Final = 1.0
# Seconds that a child which is well may let pass between two answers of Redis: twice its
# heartbeat's pause.
_BETWEEN_ANSWERS: Final = 20.0


def _sends_facts(child: ChildHandle) -> bool:
    """Whether facts are to be expected of it: it has booted, and no job has written into its
    pipe."""
    return child.was_ready and not child.report.garbled


class Garbled(Rule):
    """A job has written into the report pipe of its child, so the master can read no more facts."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        if not (child.report.garbled and child.was_ready and self._slots.has(child)):
            return None
        event = "a job has written into its child's pipe; replacing the child"
        return ChildVerdict("leave slot", (line("error", event, child),))


class _Stacks(msgspec.Struct):
    """When a child was told to log its stacks (monotonic), and whether by the signal, too."""

    asked_at: float
    signalled: bool = False


class Stuck(Rule):
    """A child that can do no work: its boot takes longer than ``boot_timeout`` seconds (0 is no
    limit), or its process lives although it has closed its pipes. One that boots logs its stacks
    before it is killed."""

    def __init__(self, boot_timeout: float) -> None:
        self._boot_timeout = boot_timeout
        self._closed_at: dict[ChildHandle, float] = {}
        self._stacks: dict[ChildHandle, _Stacks] = {}

    def look(self, children: Sequence[ChildHandle], now: float) -> None:
        for child in children:
            if child.report.eof:
                self._closed_at.setdefault(child, now)

    def due(self, child: ChildHandle) -> float | None:
        if child.killed:
            return None
        if child in self._closed_at:
            return self._closed_at[child] + _END_LIMIT
        if child.beat.state != "booting":
            return None
        if child.ordered.stop_at is not None:
            return child.ordered.stop_at + _END_LIMIT
        if (stacks := self._stacks.get(child)) is not None:
            return stacks.asked_at + (1 + stacks.signalled) * _STACKS_LIMIT
        return child.born + self._boot_timeout if self._boot_timeout else None

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        due = self.due(child)
        if due is None or now < due:
            return None
        if child in self._closed_at:
            return _unreachable(child)
        if child.ordered.stop_at is not None:
            # The import of the app keeps every other thread of the child from running, so the child
            # cannot read its orders. It holds no lease: there is nothing to wait for.
            event = "a child in its boot does not obey; killing it"
            return ChildVerdict("kill", (line("warning", event, child),))
        if child not in self._stacks:
            self._stacks[child] = _Stacks(now)
            return ChildVerdict("order stacks")
        if not self._stacks[child].signalled:
            self._stacks[child].signalled = True
            return ChildVerdict("signal stacks")
        return self._boots_too_long(child)

    def forget(self, child: ChildHandle) -> None:
        self._closed_at.pop(child, None)
        self._stacks.pop(child, None)

    def _boots_too_long(self, child: ChildHandle) -> ChildVerdict:
        said = line("error", "a child hangs in its boot; killing it", child)
        said.values["boot_timeout"] = self._boot_timeout
        why = f"it was not ready after {self._boot_timeout:g} s ([forkq] boot_timeout)"
        return ChildVerdict("kill", (said,), why)


def _unreachable(child: ChildHandle) -> ChildVerdict:
    """The verdict on a child that the master cannot reach: its jobs would wait until it ends."""
    said = line("error", "a child has closed its pipes, but lives; killing it", child)
    said.values["hint"] = "a job has called exec, or has closed descriptors that it had not opened"
    return ChildVerdict("kill", (said,))


class Silence(Rule):
    """A child is silent when no fact has come from it for ``limit`` seconds; that is logged once.

    A child that is not ready yet loads the app, and sends no facts meanwhile. Those of a child
    whose pipe is garbled cannot be read.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[ChildHandle, float] = {}
        self._looked_at = time.monotonic()
        self._awake_since = 0.0

    def has(self, child: ChildHandle) -> bool:
        """Whether the child is silent."""
        return child in self._since

    def since(self, child: ChildHandle) -> float | None:
        """When the last fact of a silent child arrived; None for one that is not silent."""
        return self._since.get(child)

    def inherit(self, child: ChildHandle, since: float | None) -> None:
        """Notes whether the program before this one has found the child silent."""
        if since is not None:
            self._since[child] = since

    def look(self, children: Sequence[ChildHandle], now: float) -> None:
        # The master itself was stopped, perhaps with all its children: they get time to report.
        if now - self._looked_at > self._limit / 2:
            self._awake_since = now
        self._looked_at = now

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        if child in self._since:
            return self._perhaps_back(child, self._since[child])
        heard_at = max(child.told.heard_at, self._awake_since)
        if not _sends_facts(child) or now - heard_at < self._limit:
            return None
        self._since[child] = heard_at
        state = kernel_state(child.pid)
        stopped = state in STOPPED
        said = line("warning", "child is silent", child)
        hint = f"kill -CONT {child.pid} lets it go on" if stopped else "its stacks follow"
        said.values.update(silent_for=round(now - heard_at), process=state, hint=hint)
        # A stopped child would write its stacks only when it goes on.
        return ChildVerdict("log" if stopped else "signal stacks", (said,))

    def forget(self, child: ChildHandle) -> None:
        self._since.pop(child, None)

    def _perhaps_back(self, child: ChildHandle, since: float) -> ChildVerdict | None:
        if child.told.heard_at <= since:
            return None
        del self._since[child]
        said = line("warning", "child is back", child)
        said.values["silent_for"] = round(child.told.heard_at - since)
        return ChildVerdict("log", (said,))


class _Answers(msgspec.Struct):
    """The answers of one Redis to any process: the ``last`` one (monotonic), and for how many
    ``seconds`` it has answered in all. A pause longer than between two heartbeats is an outage,
    which does not count."""

    last: float = 0.0
    seconds: float = 0.0

    def note(self, answer: float) -> None:
        pause = answer - self.last
        if 0 < pause <= _BETWEEN_ANSWERS:
            self.seconds += pause
        self.last = max(answer, self.last)


class _Heard(NamedTuple):
    """The last word of Redis to one child, at ``at`` (monotonic); Redis had answered for so many
    ``seconds`` then."""

    at: float
    seconds: float


class CutOff(Rule):
    """A child that does not reach Redis for ``limit`` seconds although other processes of the tree
    do; that is logged once.

    The master has no connection of its own while nothing has died. Each child and the clock report
    when Redis last answered them (``Beat.redis_at``). A child is cut off if others have been
    answered for so long since then, by the same Redis: such a child has perhaps no descriptor left,
    or a thread that hangs. An outage for all, or several, cuts off none.
    """

    def __init__(self, limit: float, silence: Silence) -> None:
        self._limit = limit
        self._silence = silence
        self._of_shard: dict[str, _Answers] = {}
        self._heard: dict[ChildHandle, _Heard] = {}
        self._seconds: dict[ChildHandle, float] = {}

    def seconds(self, child: ChildHandle) -> float:
        """For how long Redis has answered others, but not this child; 0 if it is not cut off."""
        return self._seconds.get(child, 0.0)

    def look(self, children: Sequence[ChildHandle], now: float) -> None:
        latest: dict[str, float] = {}
        for child in children:
            latest[child.shard] = max(latest.get(child.shard, 0.0), child.beat.redis_at)
        for shard, answer in latest.items():
            self._of_shard.setdefault(shard, _Answers()).note(answer)

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        if not _sends_facts(child) or self._silence.has(child):
            return None
        answered = self._of_shard[child.shard].seconds
        at = max(child.beat.redis_at, child.told.ready_at or 0.0)
        if child not in self._heard or self._heard[child].at < at:
            self._heard[child] = _Heard(at, answered)
        seconds = answered - self._heard[child].seconds - _BETWEEN_ANSWERS
        if child in self._seconds:
            return self._go_on(child, seconds)
        if seconds < self._limit:
            return None
        self._seconds[child] = seconds
        said = line("warning", "child does not reach redis, but others do", child)
        said.values.update(for_seconds=round(seconds), hint="its stacks follow")
        return ChildVerdict("order stacks", (said,))

    def forget(self, child: ChildHandle) -> None:
        self._heard.pop(child, None)
        self._seconds.pop(child, None)

    def _go_on(self, child: ChildHandle, seconds: float) -> ChildVerdict | None:
        if seconds > 0:
            self._seconds[child] = seconds
            return None
        del self._seconds[child]
        return ChildVerdict("log", (line("warning", "child reaches redis again", child),))


class Unhealthy(Rule):
    """What becomes of a child that stays silent or cut off from Redis: first another child takes
    its slot, and much later it is killed.

    The times are ``replace_silent_after`` and ``kill_silent_after``; 0 is never. A child that
    holds the interpreter in C code works, perhaps: killed, its jobs would run a second time."""

    def __init__(
        self, config: Config, silence: Silence, cut_off: CutOff, replacements: Replacements
    ) -> None:
        self._replace_after = config.replace_silent_after
        self._kill_after = config.kill_silent_after
        self._silence = silence
        self._cut_off = cut_off
        self._replacements = replacements
        self._in_slot: Counter[Slot] = Counter()

    def look(self, children: Sequence[ChildHandle], now: float) -> None:
        self._in_slot = Counter(child.slot for child in children if self._seconds(child, now))

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        seconds = self._seconds(child, now)
        if not seconds:
            return None
        why = f"{self._trouble(child)} for {seconds:.0f} s"
        if self._kill_after and seconds >= self._kill_after:
            return ChildVerdict("remove", why=why, crash=ProcessDeath(reason=why))
        if not self._replace_after or seconds < self._replace_after:
            return None
        # A slot has one child more at most: if the next one is silent as well, each job that hangs
        # would cost one more process.
        if self._in_slot[child.slot] > 1 or not self._replacements.may_begin(child):
            return None
        event = "replacing an unhealthy child; it ends when its jobs have"
        said = line("warning", event, child)
        said.values["why"] = why
        return ChildVerdict("replace", (said,), self._trouble(child))

    def _seconds(self, child: ChildHandle, now: float) -> float:
        """For how long the child has been unwell; 0 for one that is well."""
        since = self._silence.since(child)
        return self._cut_off.seconds(child) if since is None else now - since

    def _trouble(self, child: ChildHandle) -> str:
        return "silent" if self._silence.has(child) else "without an answer of redis"
