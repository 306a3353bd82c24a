"""Flows: as a table, and the steps of one as a tree."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ...api import FlowReport, StepReport
from ...units import format_count, plural
from ..table import COMMAND, Column, Empty, Moment, Phrase, Sheet
from .batches import as_object, count_column, state_cell

# Steps side by side that a tree shows one by one; of more it says how many there are.
_MOST_ALIKE: Final = 12
_MOST_NAMES: Final = 3  # that a sentence has
_DEEPEST: Final = 20  # levels by which a line is moved to the right

FLOWS: Final[Sheet[FlowReport]] = Sheet(
    "Flows",
    (
        Column("bid", "Flow", lambda b: (Phrase(b.bid, kind="id"),), whole=True, on=COMMAND),
        Column("name", "Name", lambda b: (Phrase(b.name),) if b.name else (), least=12),
        Column("state", "State", state_cell),
        count_column("total", "Steps"),
        count_column("waiting", "Waiting"),
        count_column("done", "Done"),
        count_column("dead", "Dead"),
        count_column("otherwise", "Otherwise"),
        Column("made_at", "Made", lambda b: (Moment(b.made_at),)),
    ),
    lambda flow: f"{flow.shard} {flow.bid}",
    Empty(
        "There is no flow.",
        '`forkq.Flow("report")` makes one (docs/flows.md).',
        "there is no flow",
    ),
    facts=as_object,
    words=lambda flow: (flow.bid, flow.name),
    command="forkq flows",
)


def object_of_step(step: StepReport) -> dict[str, Any]:
    """A step as programs get it."""
    return dataclasses.asdict(step)


def told(flow: FlowReport) -> list[str]:
    """What a person should know of a flow beside its numbers, and what to do about it."""
    said = []
    if flow.may_be_abandoned:
        said.append(f"its push has not ended: push it again, or `forkq flows cancel {flow.bid}`")
    if flow.dead and flow.state != "cancelled":
        again = f"`forkq flows retry {flow.bid}` tries those again that are still kept"
        said.append(f"{plural(flow.dead, 'step')} died: {again}")
    return said


def tree(steps: Sequence[StepReport]) -> Iterator[str]:
    """The steps as lines, each once, below the last one of those that it comes after. ``steps``:
    each behind those."""
    below = _below(steps)
    ahead = [iter(_shown(below[""], below))]
    while ahead:
        found = next(ahead[-1], None)
        if found is None:
            ahead.pop()
            continue
        indent = "  " * min(len(ahead) - 1, _DEEPEST)
        yield f"{indent}{found if isinstance(found, str) else line(found)}"
        if not isinstance(found, str):
            ahead.append(iter(_shown(below[found.name], below)))


def _below(steps: Sequence[StepReport]) -> dict[str, list[StepReport]]:
    """What stands below each step, by its name; "" has what stands below none."""
    depth, below = dict[str, int](), {"": list[StepReport]()}
    for step in steps:
        above = max(step.after, key=lambda name: depth[name], default="")
        depth[step.name] = depth[above] + 1 if above else 0
        below[step.name] = []
        below[above].append(step)
    return below


def line(step: StepReport) -> str:
    """What a tree says of one step."""
    said = step.outcome if step.state == "otherwise" else step.state
    if step.waits_for:
        said = f"waits for {_names(step.waits_for)}"
    return f"{step.name}  {said}"


def _shown(
    steps: Sequence[StepReport], below: dict[str, list[StepReport]]
) -> list[StepReport | str]:
    """What stands below one step: of many steps with nothing below only how many there are in each
    state, behind the first ones."""
    leaves = [step for step in steps if not below[step.name]]
    if len(leaves) <= _MOST_ALIKE:
        return [*steps]
    folded = leaves[_MOST_ALIKE:]
    names = {step.name for step in folded}
    counts = Counter(step.state for step in folded)
    each = ", ".join(f"{format_count(count)} {state}" for state, count in counts.items())
    rest = [step for step in steps if step.name not in names]
    return [*rest, f"... {plural(len(folded), 'more step')}: {each}"]


def _names(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMES])} and {format_count(len(names) - _MOST_NAMES)} more"
