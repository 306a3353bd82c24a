"""What jobs remember of their steps, in a test without Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..child.failure.leased_payload import LeasedPayload
from ..features.iterable.parts import Iteration
from ..features.steps.parts import MOST, MOST_BYTES, STEPS, VERSION, RememberedStep, read_all

if TYPE_CHECKING:
    from ..child.job_run import JobRun


class MemoryOfTest:
    """What jobs remember, by jid: the cursors of iterable ones, and the steps of any, by name."""

    def __init__(self) -> None:
        self.cursors: dict[str, Iteration] = {}
        self.steps: dict[str, dict[str, bytes]] = {}


class RecordedSteps:
    """What a job has instead of ``child/failure/steps.py``: the test keeps it."""

    def __init__(self, kept: dict[str, dict[str, bytes]], run: JobRun) -> None:
        self._kept = kept
        self._run = run
        self._jid = str(run.jid)
        self._leased = LeasedPayload.of(run)

    def load(self) -> dict[str, RememberedStep]:
        """What the job remembers."""
        found = self._kept.get(self._jid, {})
        return read_all({name.encode(): raw for name, raw in found.items()})

    def note_unused(self, names: tuple[str, ...]) -> None:
        """Notes which steps the run has not come to, though the job remembers them."""
        self._run.unused_steps = names

    def gain(self) -> None:
        """Has the payload say that the job has steps."""
        self._leased.gain(STEPS, True, VERSION)

    def save(self, name: str, remembered: bytes) -> bool:
        """Remembers a step. Returns whether there was room for its value."""
        found = self._kept.setdefault(self._jid, {})
        size = sum(len(each) + len(raw) for each, raw in found.items())
        has_room = len(found) < MOST and size + len(name) + len(remembered) <= MOST_BYTES
        found[name] = remembered
        return has_room

    def check_lease(self) -> None:
        """Does nothing: no other process has the job."""
