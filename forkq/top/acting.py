"""Actions: what one would do is asked of Redis in a thread, then a person says yes, then it is done
in a thread. One at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import msgspec
from rich.text import Text

from ..api import Server
from ..errors import ForkqError
from ..screens import cron_acts, job_acts, queue_acts
from ..screens.plans import ActionDone, Plan
from .cells import BAD, GOOD, QUIET, words
from .shards import ShardWatchers


class Failed(msgspec.Struct, frozen=True):
    """Why an action was not planned, or not done."""

    says: str


Step: TypeAlias = "Callable[[Server], Plan | ActionDone]"
Outcome: TypeAlias = "Plan | ActionDone | Failed | Exception"

# The actions that undo another, by their path in the web UI.
_UNDO: Final[dict[str, Callable[..., Plan]]] = {
    "/undo": job_acts.undo,
    "/queue/resume": queue_acts.resume,
    "/cron/resume": cron_acts.resume,
}


class Person(Protocol):
    """The one who is told and asked: the app. ``hear`` is called in a thread, and passes the
    outcome of a step to ``Acting.take`` in the app's own."""

    def say(self, text: Text) -> None: ...

    def ask(self, plan: Plan, answered: Callable[[bool | None], None]) -> None: ...

    def hear(self, outcome: Outcome) -> None: ...


class Acting:
    """One action at a time."""

    def __init__(self, person: Person, watchers: ShardWatchers) -> None:
        self._person = person
        self._watchers = watchers
        self._shard = self._undo_shard = watchers.shard
        self._thread: threading.Thread | None = None
        self._undo: tuple[str, dict[str, str]] | None = None
        self.busy = False

    @property
    def can_undo(self) -> bool:
        return self._undo is not None

    def begin(self, step: Step, shard: str = "") -> None:
        """Begins an action. ``step`` makes the plan, for that shard, or for the one that is looked
        at."""
        if self.busy:
            self._say("One action at a time: the last one goes on.", BAD)
            return
        self._shard = shard or self._watchers.shard
        self._say("Asking Redis ...", QUIET)
        self._run(step)

    def undo(self) -> None:
        """Undoes what was done last."""
        if self._undo is not None:
            (path, fields) = self._undo
            self.begin(lambda server: _UNDO[path](server, **fields), self._undo_shard)

    def take(self, outcome: Plan | ActionDone | Failed) -> None:
        """Takes the outcome of a step, and does the next one, if there is one."""
        if isinstance(outcome, Failed):
            self._say(outcome.says, BAD)
        elif isinstance(outcome, ActionDone):
            self._undo, self._undo_shard = outcome.undo, self._shard
            then = "  u undoes it" if outcome.undo else ""
            self._person.say(words((outcome.text, GOOD), (then, QUIET)))
        elif outcome.ask:
            self._person.say(Text())
            self._person.ask(outcome, lambda yes: self._answered(outcome, bool(yes)))
        else:
            self._run(lambda _: self._do(outcome))

    def join(self, patience: float) -> None:
        if self._thread is not None:
            self._thread.join(patience)

    def _answered(self, plan: Plan, yes: bool) -> None:
        if not yes:
            self._say("Nothing was changed.", QUIET)
            return
        self._say(f"{plan.button} ...", QUIET)
        self._run(lambda _: self._do(plan))

    def _do(self, plan: Plan) -> ActionDone:
        """Does the plan in a thread: the observer may be waiting for Redis."""
        done = plan.do()
        self._watchers.observers[self._shard].forget()
        return done

    def _run(self, step: Step) -> None:
        """Runs a step in a daemon thread: the program may end while Redis hangs."""
        self.busy = True
        self._thread = threading.Thread(
            target=self._step, args=(step,), name="forkq top action", daemon=True
        )
        self._thread.start()

    def _step(self, step: Step) -> None:
        outcome = self._outcome(step)
        self.busy = False
        self._person.hear(outcome)

    def _say(self, text: str, style: str) -> None:
        self._person.say(words((text, style)))

    def _outcome(self, step: Step) -> Outcome:
        try:
            return step(self._watchers.observers[self._shard].server)
        except ForkqError as error:
            return Failed(str(error))
        except Exception as error:  # noqa: BLE001 - the app shows its traceback, and ends
            return error
