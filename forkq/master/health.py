"""The health of the children: rules that say what is wrong with a child, and the one place that
acts on what they say.

The master asks its table of rules (``health_table`` in loop.py) once in each turn of its loop. A
rule is an object with what it remembers of each child. It looks at what the child has told and at
its process, and gives a verdict. It changes no child.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from ..runtime.pipe import DumpStacks, Stop, Unbootable
from ..store.crash_record import ProcessDeath
from .child_handle import ChildHandle
from .children import Children
from .replacement import Removals, Replacements

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Act: TypeAlias = Literal[
    "log", "order stacks", "signal stacks", "leave slot", "retire", "replace", "remove", "kill"
]


class Line(NamedTuple):
    """One line of the log."""

    level: Literal["info", "warning", "error"]
    event: str
    values: dict[str, object]


def line(level: Literal["info", "warning", "error"], event: str, child: ChildHandle) -> Line:
    """A line about ``child``, to which a rule may add values."""
    return Line(level, event, {"child": child.name, "pid": child.pid})


class ChildVerdict(msgspec.Struct, frozen=True):
    """What is to happen to a child, and the ``lines`` that say so, which are logged first.

    log            no more than that
    order stacks   the child logs its stacks
    signal stacks  the child writes them from a signal handler, even while its interpreter hangs
    leave slot     another child gets its slot at once, and it ends when its jobs have
    retire         it fetches no more, and ends when its jobs have
    replace        it retires as soon as another child is ready for its slot; ``why`` is counted
    remove         it is frozen; its jobs go back with the record ``crash``, or, if they are
                   ``overdue``, as failed; then it is killed. ``why`` is logged
    kill           SIGKILL; ``why`` tells what kept it from its boot
    """

    act: Act
    lines: tuple[Line, ...] = ()
    why: str = ""
    crash: ProcessDeath | None = None
    overdue: bool = False


class Rule:
    """One way in which a child may be unwell. Times are monotonic."""

    def look(self, children: Sequence[ChildHandle], now: float) -> None:
        """Called once in each turn, before the verdicts: notes what concerns all children."""

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        """What is to happen to ``child`` now; None: nothing. Not asked about a frozen child."""
        raise NotImplementedError

    def due(self, child: ChildHandle) -> float | None:
        """When there may be another verdict although nothing happens before; None: never."""
        return None

    def forget(self, child: ChildHandle) -> None:
        """Forgets a child that has been reaped."""


class RuleTable(NamedTuple):
    """The rules in the order in which they are asked. ``always``: also while the tree stops;
    ``until_stop``: until then; ``until_quiet``: also not while it is quiet."""

    always: tuple[Rule, ...] = ()
    until_stop: tuple[Rule, ...] = ()
    until_quiet: tuple[Rule, ...] = ()

    def in_force(self, *, stopping: bool, quiet: bool) -> Iterator[Rule]:
        """The rules that are asked now."""
        yield from self.always
        if not stopping:
            yield from self.until_stop
            if not quiet:
                yield from self.until_quiet


class Health:
    """Asks the rules about each child, and does what they say."""

    def __init__(
        self,
        table: RuleTable,
        children: Children,
        replacements: Replacements,
        removals: Removals,
        log: FilteringBoundLogger,
    ) -> None:
        self._table = table
        self._children = children
        self._replacements = replacements
        self._removals = removals
        self._log = log
        self._known: set[ChildHandle] = set()

    def due(self, *, stopping: bool) -> float | None:
        """When ``check`` has something to do (monotonic), if nothing happens before."""
        rules = list(self._table.in_force(stopping=stopping, quiet=False))
        living = [child for child in self._children if not child.frozen]
        moments = (rule.due(child) for rule in rules for child in living)
        return min((moment for moment in moments if moment is not None), default=None)

    def check(self, *, stopping: bool = False, quiet: bool = False) -> None:
        """Asks each rule about each child. Called by the loop, after it has read the facts."""
        children, now = list(self._children), time.monotonic()
        self._forget_all_but(children)
        for rule in self._table.in_force(stopping=stopping, quiet=quiet):
            rule.look(children, now)
            for child in children:
                verdict = None if child.frozen else rule.verdict(child, now)
                if verdict is not None:
                    self._carry_out(child, verdict)

    def _forget_all_but(self, children: Sequence[ChildHandle]) -> None:
        living = set(children)
        for child in self._known - living:
            for rule in self._table.in_force(stopping=False, quiet=False):
                rule.forget(child)
        self._known = living

    def _carry_out(self, child: ChildHandle, verdict: ChildVerdict) -> None:
        for level, event, values in verdict.lines:
            getattr(self._log, level)(event, **values)
        act = _ACTS.get(verdict.act)
        if act is not None:
            act(self, child, verdict)

    def _leave_slot(self, child: ChildHandle, _: ChildVerdict) -> None:
        child.send(Stop(None))
        child.told.beat = msgspec.structs.replace(child.beat, state="retiring")
        self._children.slots.empty(child)

    def _remove(self, child: ChildHandle, verdict: ChildVerdict) -> None:
        self._removals.begin(child, verdict.crash, verdict.why, overdue=verdict.overdue)

    def _kill(self, child: ChildHandle, verdict: ChildVerdict) -> None:
        if verdict.why:
            child.told.unbootable = Unbootable(verdict.why)
        child.kill()


_ACTS: Final[dict[Act, Callable[[Health, ChildHandle, ChildVerdict], object]]] = {
    "order stacks": lambda _, child, __: child.send(DumpStacks()),
    "signal stacks": lambda _, child, __: child.signal_stacks(),
    "leave slot": Health._leave_slot,
    "retire": lambda health, child, _: health._replacements.retire(child),
    "replace": lambda health, child, verdict: health._replacements.begin(child, verdict.why),
    "remove": Health._remove,
    "kill": Health._kill,
}
