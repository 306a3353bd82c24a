"""A kill of the process while a job runs, as a test plays it: the run ends, and nothing that it
would write from then on is written."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import JobDecision
from ..steps.run import Kind, StepsOfRun

if TYPE_CHECKING:
    from ..features.steps.parts import RememberedStep, SignalWait


class Killed(BaseException):
    """The process of the job is killed here, in a test.

    It derives from BaseException: ``except Exception`` in a job must not swallow it.
    """


class Kills:
    """Where the runs of one job are killed: by default after each run that does not fail, before
    its end is written. ``has_struck``: whether one was killed."""

    def __init__(self) -> None:
        self.has_struck = False

    def reach(self, point: str) -> None:
        """Raises Killed if the run is killed at this point, or was before."""

    def at_end(self, error: BaseException | None) -> bool:
        """Whether the run is killed that has come to ``error``, before that is written."""
        self.has_struck = error is None or isinstance(error, JobDecision)
        return self.has_struck


class KillAt(Kills):
    """Kills one run: at the point of this number, counted from 0 over all runs of the job. Without
    a number it only notes the ``points``."""

    def __init__(self, number: int | None = None) -> None:
        super().__init__()
        self.points: list[str] = []
        self._number = number
        self._lock = threading.Lock()  # threads of the job may push

    def reach(self, point: str) -> None:
        """Notes the point. Raises Killed at the one of that number, and at each that the rest of
        the run comes to: it may have caught the first Killed."""
        with self._lock:
            if not self.has_struck:
                self.has_struck = len(self.points) == self._number
                self.points.append(point)
            if self.has_struck:
                raise Killed(point)

    def at_end(self, error: BaseException | None) -> bool:
        """Whether the run is killed: somewhere in it, or at its end, before that is written."""
        if not self.has_struck and (error is None or isinstance(error, JobDecision)):
            end = "it is acknowledged" if error is None else f"its {type(error).__name__} is noted"
            with suppress(Killed):
                self.reach(f"before {end}")
        return self.has_struck


class KilledSteps(StepsOfRun):
    """The steps of a run that may be killed before and after each of them."""

    def __init__(self, jid: str, store: Any, kills: Kills) -> None:
        super().__init__(jid, store)
        self._kills = kills

    def begin(self, name: str, call: Kind) -> RememberedStep | None:
        """Comes to a step, which is a point unless the job remembers it."""
        found = super().begin(name, call)
        if found is None:
            self._kills.reach(f"before {call} '{name}'")
        return found

    def save(self, name: str, remembered: bytes) -> Any:
        """Remembers a step, and is a point before and after that."""
        self._kills.reach(f"in step '{name}', before it is remembered")
        value = super().save(name, remembered)
        self._kills.reach(f"after step '{name}'")
        return value

    def look(self, wait: SignalWait) -> RememberedStep | None:
        """Looks how a wait has ended, which is remembered then: a point."""
        ended = super().look(wait)
        if ended is not None:
            self._kills.reach(f"after wait_for '{wait.name}'")
        return ended
