"""Actions: what one would do is asked of Redis in a thread, then a person says yes, then it is done
in a thread. One at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ..errors import ForkqError
from ..screens import cron_acts, job_acts, queue_acts
from ..screens.plans import Done, Plan


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an action was not planned, or not done."""

    says: str


Outcome: TypeAlias = "Plan | Done | Failed | Exception"

# The actions that undo another, by their path in the web UI.
_UNDO: Final[dict[str, Callable[..., Plan]]] = {
    "/undo": job_acts.undo,
    "/queue/resume": queue_acts.resume,
    "/cron/resume": cron_acts.resume,
}


def undo_plan(undo: tuple[str, dict[str, str]]) -> Plan:
    """What ``Done.undo`` names."""
    path, fields = undo
    return _UNDO[path](**fields)


class Acting:
    """``tell`` is called in a thread with each step: the plan, then what was done."""

    def __init__(self, tell: Callable[[Outcome], None]) -> None:
        self._tell = tell
        self._thread: threading.Thread | None = None
        self.busy = False

    def run(self, step: Callable[[], Plan | Done]) -> None:
        """In a daemon thread: the program may end while Redis hangs."""
        self.busy = True
        self._thread = threading.Thread(
            target=self._step, args=(step,), name="forkq top action", daemon=True
        )
        self._thread.start()

    def join(self, patience: float) -> None:
        if self._thread is not None:
            self._thread.join(patience)

    def _step(self, step: Callable[[], Plan | Done]) -> None:
        told = _outcome(step)
        self.busy = False
        self._tell(told)


def _outcome(step: Callable[[], Plan | Done]) -> Outcome:
    try:
        return step()
    except ForkqError as error:
        return Failed(str(error))
    except Exception as error:  # noqa: BLE001 - the app shows its traceback, and ends
        return error
