"""The steps of one run of a job: which names it has used, and what it remembers of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TypeAlias

from ..current_job import CurrentJob, job_for, run_of
from ..errors import Asleep, Dead, ForkqError, InvalidJob, JobDecision
from ..features.steps.parts import (
    MOST,
    TOO_MANY,
    Pause,
    RememberedStep,
    SignalWait,
    check_name,
    done,
    key_of,
    pause,
    read,
)
from ..wire.times import now

Kind: TypeAlias = Literal["step", "sleep", "wait_for"]
# So many seconds too early a sleep is over, too: the clock that moves the job may be ahead of that
# of the child.
_EARLY: Final = 0.5


class StepStore(Protocol):
    """Where the steps of a job are remembered. ``load`` returns them, ``save`` whether there was
    room for the value; each may wait, and may raise what ends the run. ``in_progress`` stands
    around a step from its begin until it is remembered. ``gain`` has the payload say that there are
    steps. ``note_unused`` gets a function that returns the names to which the run has not come."""

    def load(self) -> dict[str, RememberedStep]: ...
    def note_unused(self, unused: Callable[[], list[str]]) -> None: ...
    def in_progress(self, name: str) -> AbstractContextManager[None]: ...
    def gain(self) -> None: ...
    def save(self, name: str, remembered: bytes) -> bool: ...
    def wait(self, wait: SignalWait) -> RememberedStep | None: ...
    def check_lease(self) -> None: ...


class StepsOfRun:
    """What ``forkq.step`` needs of one run. Threads of the job may share it."""

    def __init__(self, jid: str, store: StepStore) -> None:
        self.jid = jid
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, RememberedStep] | None = None
        self._used: set[str] = set()

    @property
    def is_loaded(self) -> bool:
        """Whether Redis was asked what the job remembers."""
        return self._known is not None

    def load(self) -> None:
        """Asks Redis what the job remembers, at its first step."""
        with self._lock:
            if self._known is None:
                self._known = self._store.load()
                self._store.note_unused(self.unused)

    def unused(self) -> list[str]:
        """The steps that the job remembers, and the run has not come to."""
        return [name for name in self._known or () if name not in self._used]

    def begin(self, name: str, call: Kind) -> RememberedStep | None:
        """What is remembered of the step to which the run has come; None if it is to be done.
        Raises InvalidJob for a name that the run has used, or that another kind of step has, and
        Dead if the step is done and what it has returned is not kept."""
        self.load()
        known = self._known or {}
        self._use(check_name(name))
        self._store.check_lease()
        if (found := known.get(name)) is not None:
            return _as_asked(name, call, found)
        if call != "step":
            _refuse_inside(call, name)
        _refuse_in_transaction(name)
        return None

    def _use(self, name: str) -> None:
        """Notes that the run has come to this name. Raises InvalidJob if it has before."""
        with self._lock:
            if name in self._used:
                raise InvalidJob(
                    f'two steps of one run are called "{name}": give each a name of its own, such '
                    f'as f"{name}:{{number}}" in a loop'
                )
            self._used.add(name)

    def in_progress(self, name: str) -> AbstractContextManager[None]:
        """Around a step until it is remembered: a crash meanwhile is told with its name."""
        return self._store.in_progress(name)

    def sleep(self, name: str, seconds: float) -> None:
        """Returns if the time is over. Else it raises Asleep."""
        found = self.begin(name, "sleep")
        if found is None:
            self._fall_asleep(pause(name, now() + seconds))
        elif found.until - now() > _EARLY:
            self._fall_asleep(pause(name, found.until, since=found.at))

    def begin_wait(self, name: str, event: str, seconds: float) -> SignalWait | RememberedStep:
        """How a wait has ended, or the wait, whose end is not known."""
        found = self.begin(name, "wait_for")
        if found is not None and not found.until:
            return found
        return SignalWait(name, event, seconds, found)

    def look(self, wait: SignalWait) -> RememberedStep | None:
        """How a wait has ended, as Redis says; None if it goes on."""
        return self._store.wait(wait)

    def wait(self, wait: SignalWait) -> None:
        """Raises Asleep: the signal has not come."""
        self._fall_asleep(wait.pause())

    def _fall_asleep(self, pause: Pause) -> None:
        if len(self._known or ()) + 1 > MOST:
            raise Dead(TOO_MANY)
        self._store.gain()
        raise Asleep(pause, pause.until)

    def written(self, value: Any) -> bytes:
        """What is remembered of a step that has returned ``value``."""
        self._store.gain()
        return done(value)

    def save(self, name: str, remembered: bytes) -> Any:
        """Remembers the step. Returns its value, as a later run gets it. Raises Dead if that cannot
        be kept."""
        has_room = self._store.save(name, remembered)
        found = read(remembered)
        if not has_room:
            found = RememberedStep(found.at, problem=TOO_MANY)
        return _kept(name, found).value


def _kept(name: str, found: RememberedStep) -> RememberedStep:
    if found.problem:
        raise Dead(
            f'the step "{name}" is done, and will not be done again, but its value is not kept: '
            f"{found.problem}. Return less, such as an id; under another name the step is done anew"
        )
    return found


def _as_asked(name: str, call: Kind, found: RememberedStep) -> RememberedStep:
    """What is remembered, if it is of this kind, and its value is kept."""
    if found.kind != call:
        raise InvalidJob(
            f'the job remembers "{name}" as one of forkq.{found.kind}, and not of forkq.{call}: '
            "give this one another name"
        )
    return _kept(name, found)


def _refuse_in_transaction(name: str) -> None:
    """Raises ForkqError while a transaction is open that an integration knows of."""
    if why := JobDecision.refusal():
        raise ForkqError(
            f'the step "{name}" cannot be done here: {why}. The step would be remembered all the '
            "same: open the transaction in its function, or do the step before it"
        )


def _refuse_inside(call: str, name: str) -> None:
    """Raises InvalidJob inside the function of a step: that would be called again after the
    pause."""
    if (around := _names.get()) is not None:
        raise InvalidJob(
            f'forkq.{call}("{name}") was called in the function of the step "{around[1]}", which '
            "would be done again after it: call it between two steps"
        )


_names: Final[ContextVar[tuple[str, str] | None]] = ContextVar("forkq_step", default=None)


@contextmanager
def inside(steps: StepsOfRun, name: str) -> Iterator[None]:
    """Around the function of a step: ``forkq.step.key`` is that of the step."""
    token = _names.set((steps.jid, name))
    try:
        yield
    finally:
        _names.reset(token)


def current_key() -> str:
    """The key of the step whose function runs. Raises ForkqError outside of one."""
    found = _names.get()
    if found is None:
        raise ForkqError("forkq.step.key was asked outside of the function of a step")
    return key_of(*found)


def steps_here(call: str) -> StepsOfRun:
    """The steps of the job that this thread or task performs. Raises ForkqError outside of one."""
    view = job_for(f"forkq.{call}")
    found = getattr(view, "steps", None)
    if not isinstance(found, StepsOfRun):
        found = view.steps = StepsOfRun(view.jid, _store_of(view, call))
    return found


def _store_of(view: CurrentJob, call: str) -> StepStore:
    run = run_of(view)
    if run is None:
        raise ForkqError(f"forkq.{call} was called in a job that no child of forkq runs")
    store: StepStore = run.step_store()
    return store
