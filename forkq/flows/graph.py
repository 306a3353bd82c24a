"""The graph of a flow: its steps, which of them each comes after, and what is wrong with that.
Values, without I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..batches.callbacks import check_options
from ..errors import InvalidJob, nearest, shown
from ..features.flow.parts import LONGEST_NAME, MOST, ON_FAILURE, OnFailure
from ..wire.prepared import PreparedJob, StepChain, StepGroup, StepResult, Steps

# What a step cannot have: it is pushed once, by the end of the steps before it.
_REFUSED: Final = ("unique_for", "debounce", "throttle", "once")


class FlowStep(NamedTuple):
    """A step as it was added. ``after``: the names of the steps before it, each with what a bad end
    of that one means."""

    name: str
    job: PreparedJob
    after: Mapping[str, OnFailure]


class Graph:
    """The steps of a flow by their names, in the order in which they were added."""

    def __init__(self) -> None:
        self.steps: dict[str, FlowStep] = {}
        self._counts: dict[str, int] = {}  # of the names that were made for short forms

    def add(self, name: str, job: PreparedJob, after: Mapping[str, OnFailure]) -> None:
        """Adds a step behind those called ``after``, each with what a bad end of that one means.
        Raises InvalidJob for a name that is taken or odd, and for a job that can be no step."""
        _check_name(name)
        if name in self.steps:
            raise InvalidJob(f"the flow has a step {shown(name)} already: choose another name")
        names = tuple(after)
        result = StepResult(names[0] if len(names) == 1 else names) if names else None
        self._put(name, job, after, result)

    def add_all(self, steps: Steps) -> None:
        """Adds the steps of a short form. Raises InvalidJob."""
        self._join(steps, (), None)

    def _join(
        self, steps: Steps, before: tuple[str, ...], result: StepResult | None
    ) -> tuple[tuple[str, ...], StepResult | None]:
        """Adds these steps behind others, which have this ``result``; None: there are none. Returns
        the names of their last ones, and the result of these."""
        if isinstance(steps, StepChain):
            for part in steps.parts:
                before, result = self._join(part, before, result)
            return before, result
        if isinstance(steps, StepGroup):
            ends = [self._join(part, before, result)[0] for part in steps.parts]
            last = tuple(dict.fromkeys(name for names in ends for name in names))
            return last or before, StepResult(last)
        if not isinstance(steps, PreparedJob):
            raise InvalidJob(f"{shown(steps)} is no step: pass jobs with arguments, as add.s(1, 2)")
        name = self._free_name(str(steps.payload["class"]).rpartition(".")[2])
        after: dict[str, OnFailure] = dict.fromkeys(before, "wait")
        self._put(name, steps, after, result)
        return (name,), StepResult(name)

    def _put(
        self, name: str, job: PreparedJob, after: Mapping[str, OnFailure], result: StepResult | None
    ) -> None:
        """Adds a step, in whose arguments ``BEFORE`` means ``result``."""
        _check_job(name, job)
        if len(self.steps) == MOST:
            raise InvalidJob(f"a flow has {MOST:,} steps at most: {shown(name)} is one more")

        args = with_results(job.payload["args"], lambda found: _known(name, found, result))
        self.steps[name] = FlowStep(name, PreparedJob({**job.payload, "args": args}), after)

    def _free_name(self, name: str) -> str:
        """``name``, or that with a number behind it."""
        name = name[: LONGEST_NAME - 8] or "step"
        count = self._counts[name] = self._counts.get(name, 0) + 1
        found = name if count == 1 else f"{name}-{count}"
        return self._free_name(name) if found in self.steps else found

    def ordered(self, *, is_part: bool = False) -> list[str]:
        """The names of all steps, each behind those that it comes after. Raises InvalidJob for a
        name that no step has, for a circle, and for a step that takes the result of one that it
        does not come after. ``is_part``: there are more steps, which are not known here."""
        for step in self.steps.values() if not is_part else ():
            self._check_names(step)
        left = {name: sum(one in self.steps for one in s.after) for name, s in self.steps.items()}
        ready, found = deque(name for name, count in left.items() if not count), list[str]()
        behind = self.behind()
        while ready:
            found.append(name := ready.popleft())
            for after in behind[name]:
                left[after] -= 1
                if not left[after]:
                    ready.append(after)
        self._check(found)
        return found

    def _check(self, found: Collection[str]) -> None:
        """Raises InvalidJob if not all steps were ``found`` behind others, and for a result that no
        step has by then."""
        if len(found) < len(self.steps):
            raise InvalidJob(f"the steps are in a circle: {self._circle({*self.steps} - {*found})}")
        for step in self.steps.values():
            self._check_results(step)

    def behind(self) -> dict[str, list[str]]:
        """The names of the steps behind each step."""
        found: dict[str, list[str]] = {name: [] for name in self.steps}
        for step in self.steps.values():
            for name in step.after:
                if name in found:
                    found[name].append(step.name)
        return found

    def _check_names(self, step: FlowStep) -> None:
        for name in step.after:
            if name not in self.steps:
                like = nearest(name, self.steps)
                hint = f"; did you mean {like!r}?" if like else ""
                raise InvalidJob(
                    f"step {shown(step.name)} comes after {shown(name)}, and the flow has no such "
                    f"step{hint}"
                )

    def _check_results(self, step: FlowStep) -> None:
        for name in names_in(step.job.payload["args"]):
            if name not in step.after and not self._comes_after(step, name):
                raise InvalidJob(
                    f"step {shown(step.name)} takes the result of {shown(name)}, and does not come "
                    f"after it: write after=[{name!r}]"
                )

    def _comes_after(self, step: FlowStep, name: str) -> bool:
        """Whether a step called ``name`` is somewhere before this one. What is before a step that
        is in the flow already is not known here."""
        seen, ahead = set[str](), [*step.after]
        while ahead:
            one = ahead.pop()
            if one == name or one not in self.steps:
                return True
            if one not in seen:
                seen.add(one)
                ahead += self.steps[one].after
        return False

    def _circle(self, names: Collection[str]) -> str:
        """The steps of one circle among these, each of which is in one, or behind one."""
        path = [min(names)]
        while path[-1] not in path[:-1]:
            path.append(next(name for name in self.steps[path[-1]].after if name in names))
        return " after ".join(map(shown, path[path.index(path[-1]) :]))


def _known(name: str, found: StepResult, before: StepResult | None) -> StepResult:
    """The result that ``found`` means in the step of that name, which comes after others with the
    result ``before``. Raises InvalidJob for ``BEFORE`` in a step that comes after none."""
    if found.names is not None:
        return found
    if before is None:
        raise InvalidJob(
            f"step {shown(name)}: BEFORE is the result of the steps before it, and there is none: "
            "write after=[...]"
        )
    return before


def with_results(value: Any, change: Callable[[StepResult], Any]) -> Any:
    """A copy of ``value``, arguments of a step, in which each result of another step is changed."""
    if isinstance(value, StepResult):
        return change(value)
    if type(value) is list:
        return [with_results(each, change) for each in value]
    if type(value) is dict:
        return {key: with_results(each, change) for key, each in value.items()}
    return value


def names_in(value: Any) -> list[str]:
    """The names of the steps whose results these arguments have."""
    found: list[str] = []

    def note(result: StepResult) -> None:
        found.extend((result.names,) if isinstance(result.names, str) else result.names or ())

    with_results(value, note)
    return found


def count_of_results(value: Any) -> int:
    """How many results of other steps these arguments have."""
    found: list[StepResult] = []
    with_results(value, found.append)
    return len(found)


def _check_name(name: object) -> None:
    if type(name) is not str or not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise InvalidJob(
            f"{shown(name)} is no name of a step: pass a text of 1 to {LONGEST_NAME} characters"
        )


def _check_job(name: str, job: object) -> None:
    if not isinstance(job, PreparedJob):
        raise InvalidJob(
            f"step {shown(name)} takes a job with its arguments, as resize.s(200), not {shown(job)}"
        )
    check_options(f"step {shown(name)}", "a step of a flow", job, _REFUSED)


def edges_of(name: str, after: object, on_failure: object) -> dict[str, OnFailure]:
    """The steps that the one called ``name`` comes after, each with what a bad end of that one
    means. Raises InvalidJob."""
    before = _names_of(name, after)
    said: Mapping[Any, Any] = dict.fromkeys(before, on_failure)
    if isinstance(on_failure, Mapping):
        said = on_failure
    if odd := [one for one in said if one not in before]:
        raise InvalidJob(f"step {shown(name)}: on_failure= names {shown(odd[0])}, after= does not")
    if wrong := [one for one in (*said.values(), on_failure) if not _is_said(one)]:
        known = ", ".join(f'"{one}"' for one in ON_FAILURE)
        raise InvalidJob(f"step {shown(name)}: on_failure is {shown(wrong[0])}: write {known}")
    return {one: said.get(one, "wait") for one in before}


def _names_of(name: str, after: object) -> Sequence[str]:
    before = [after] if isinstance(after, str) else after
    if not isinstance(before, list | tuple) or not all(type(one) is str for one in before):
        raise InvalidJob(
            f"step {shown(name)}: after= is {shown(after)}; pass a list of the names of steps"
        )
    if len(set(before)) < len(before):
        double = next(one for one in before if before.count(one) > 1)
        raise InvalidJob(f"step {shown(name)}: after= has {shown(double)} twice")
    return before


def _is_said(on_failure: object) -> bool:
    return isinstance(on_failure, Mapping) or on_failure in ON_FAILURE
