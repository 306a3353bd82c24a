"""What jobs remember of their steps, in a test without Redis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from ..child.failure.leased_payload import LeasedPayload
from ..features.iterable.parts import Iteration
from ..features.steps.parts import (
    MOST,
    MOST_BYTES,
    STEPS,
    VERSION,
    Pause,
    RememberedStep,
    Signal,
    SignalWait,
    done_without_value,
    read,
    read_all,
)
from ..wire.times import now

if TYPE_CHECKING:
    from ..child.job_run import JobRun


class MemoryOfTest:
    """What jobs remember, by jid: the cursors of iterable ones, and the steps of any, by name."""

    def __init__(self) -> None:
        self.cursors: dict[str, Iteration] = {}
        self.steps: dict[str, dict[str, bytes]] = {}
        self._signals: dict[str, tuple[Signal, float, bool]] = {}
        self._waiting: dict[str, dict[str, Pause]] = {}  # by event and jid

    def pause(self, jid: str, pause: Pause) -> None:
        """Notes that the job sleeps, or waits."""
        self.steps.setdefault(jid, {})[pause.name] = pause.remembered
        if pause.event:
            self._waiting.setdefault(pause.event, {})[jid] = pause

    def end(self, jid: str) -> None:
        """Forgets what a job remembers that has ended."""
        self.steps.pop(jid, None)
        for waiting in self._waiting.values():
            waiting.pop(jid, None)

    def signal(self, event: str, data: bytes, stays: float, *, for_one: bool) -> list[str] | None:
        """Sends a signal. Returns the jids of the jobs that go on; None if another one stands
        there."""
        at = now()
        if event in self._signals and self._signals[event][1] >= at:
            return None
        sent = Signal(at, msgspec.json.decode(data))
        self._signals[event] = sent, at + stays, for_one
        found = sorted(self._waiting.get(event, {}).items(), key=lambda item: item[1].since)
        return [jid for jid, pause in found if self.take(event, jid, pause.name, pause.until)]

    def take(self, event: str, jid: str, name: str, until: float) -> bool:
        """Gives the job the signal, if there is one that has come in time."""
        sent, stays, for_one = self._signals.get(event, (None, 0.0, False))
        if sent is None or stays < now() or sent.at > until:
            return False
        if for_one:
            del self._signals[event]
        self._waiting.get(event, {}).pop(jid, None)
        self.steps.setdefault(jid, {})[name] = msgspec.json.encode({"at": now(), "signal": sent})
        return True


class RecordedSteps:
    """What a job has instead of ``child/failure/steps.py``: the test keeps it."""

    def __init__(self, memory: MemoryOfTest, run: JobRun) -> None:
        self._memory = memory
        self._kept = memory.steps
        self._run = run
        self._jid = str(run.jid)
        self._leased = LeasedPayload.of(run)

    def load(self) -> dict[str, RememberedStep]:
        """What the job remembers."""
        found = self._kept.get(self._jid, {})
        if found:
            self.gain()
        return read_all({name.encode(): raw for name, raw in found.items()})

    def note_unused(self, unused: Callable[[], list[str]]) -> None:
        """Notes what tells which steps the run has not come to, though the job remembers them."""
        self._run.unused_steps = unused

    def in_progress(self, name: str) -> AbstractContextManager[None]:
        """Around a step: no process dies in it."""
        return nullcontext()

    def gain(self) -> None:
        """Has the payload say that the job has steps."""
        self._leased.gain(STEPS, True, VERSION)

    def save(self, name: str, remembered: bytes) -> bool:
        """Remembers a step. Returns whether there was room for its value."""
        found = self._kept.setdefault(self._jid, {})
        size = sum(len(each) + len(raw) for each, raw in found.items())
        has_room = len(found) < MOST and size + len(name) + len(remembered) <= MOST_BYTES
        found[name] = remembered if has_room else done_without_value()
        return has_room

    def wait(self, wait: SignalWait) -> RememberedStep | None:
        """How a wait has ended; None if it goes on."""
        until = now() + wait.seconds if wait.begun is None else wait.begun.until
        if not self._memory.take(wait.event, self._jid, wait.name, until):
            if now() < until:
                return None
            ended = msgspec.json.encode({"at": now(), "timed_out": True})
            self._memory.steps.setdefault(self._jid, {})[wait.name] = ended
        return read(self._memory.steps[self._jid][wait.name])

    def check_lease(self) -> None:
        """Does nothing: no other process has the job."""
