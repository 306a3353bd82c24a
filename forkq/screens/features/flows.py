"""Flows: as a table, one of them in words and as a tree, and what can be done with one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from ...api import Flow, FlowReport, Server, StepReport
from ...units import format_count, plural
from ..plans import ActionDone, Plan
from ..table import (
    BROWSER,
    COMMAND,
    LIVE,
    Cell,
    Column,
    Empty,
    Moment,
    PageLink,
    Phrase,
    Sheet,
    Tone,
    note,
)
from ..texts import name as shown
from .batches import as_object, count_column, pause_text, progress_cell, retry_dead, state_cell

PATH: Final = "/flows"
PATH_OF_ONE: Final = "/flow"
CANCEL: Final = "cancel flow"
# Steps side by side that a tree shows one by one; of more it says how many there are.
_MOST_ALIKE: Final = 12
_MOST_NAMES: Final = 3  # that a sentence has
DEEPEST: Final = 20  # levels by which a line is moved to the right
# The states that a person should hear of first.
FIRST: Final = ("dead", "retried", "started", "waits")
TONES: Final[dict[str, Tone]] = {"done": "good", "dead": "bad", "retried": "warn", "waits": "quiet"}


def _flow(flow: FlowReport) -> Cell:
    link = PageLink(PATH_OF_ONE, {"bid": flow.bid})
    return Phrase(flow.name or flow.bid, link=link), Phrase(flow.bid, kind="copy")


FLOWS: Final[Sheet[FlowReport]] = Sheet(
    "Flows",
    (
        Column("bid", "Flow", lambda b: (Phrase(b.bid, kind="id"),), whole=True, on=COMMAND),
        Column("name", "Name", lambda b: (Phrase(b.name),) if b.name else (), on=COMMAND),
        Column("flow", "Flow", _flow, least=12, on=LIVE),
        Column("state", "State", state_cell),
        count_column("total", "Steps"),
        count_column("waiting", "Waiting"),
        count_column("done", "Done"),
        count_column("dead", "Dead"),
        count_column("otherwise", "Otherwise"),
        Column("progress", "Ended", progress_cell("step"), on=BROWSER),
        Column("made_at", "Made", lambda b: (Moment(b.made_at),)),
    ),
    lambda flow: f"{flow.shard} {flow.bid}",
    Empty(
        "There is no flow.",
        '`forkq.Flow("report")` makes one (docs/flows.md).',
        "there is no flow",
    ),
    facts=as_object,
    words=lambda flow: (flow.bid, flow.name, flow.state),
    label=lambda flow: flow.name or flow.bid,
    heading="flow",
    command="forkq flows",
)


def object_of_step(step: StepReport) -> dict[str, Any]:
    """A step as programs get it."""
    return dataclasses.asdict(step)


def state_of(step: StepReport) -> str:
    """The state of a step in a word."""
    if step.is_retried:
        return "retried"
    return step.outcome if step.state == "otherwise" else step.state


def counts_of(steps: Iterable[StepReport]) -> dict[str, int]:
    """How many of these steps are in which state, what a person should hear of first in front."""
    found = Counter(map(state_of, steps))
    return {name: found[name] for name in sorted(found, key=rank)}


def counts_text(counts: Mapping[str, int]) -> str:
    """The counts of steps by their states, in words."""
    return ", ".join(f"{format_count(count)} {state}" for state, count in counts.items())


class StepLine(msgspec.Struct, frozen=True):
    """A step, and the id of its flow."""

    bid: str
    step: StepReport


def of_steps(bid: str, steps: Iterable[StepReport]) -> list[StepLine]:
    """The lines of these steps of a flow."""
    return [StepLine(bid, step) for step in steps]


def rank(state: str) -> int:
    """The place of a state among others: what a person should hear of comes first."""
    return FIRST.index(state) if state in FIRST else len(FIRST)


def _name(line: StepLine) -> Cell:
    link = PageLink(PATH_OF_ONE, {"bid": line.bid, "step": line.step.name})
    return (Phrase(line.step.name, "name", link=link),)


def _state(line: StepLine) -> Cell:
    said = state_of(line.step)
    return (Phrase(said, TONES.get(said, "")),)


def _why(line: StepLine) -> Cell:
    if not line.step.waits_for:
        return ()
    held = held_text(line.step)
    return Phrase(f"waits for {_names(line.step.waits_for)}"), *(
        [note(held, "bad")] if held else []
    )


def held_text(step: StepReport) -> str:
    """Which dead steps hold up a step that waits; "" if none does."""
    return f"held up by {_all_dead(step.held_by)}" if step.held_by else ""


def _all_dead(names: Sequence[str]) -> str:
    return f"{_names(names)}, {'which is' if len(names) == 1 else 'all'} dead"


def _after(line: StepLine) -> Cell:
    return (Phrase(_names([*line.step.after])),) if line.step.after else ()


def _ended(line: StepLine) -> Cell:
    return (Moment(line.step.ended_at),) if line.step.ended_at else ()


def _job(line: StepLine) -> Cell:
    step = line.step
    if step.jid:
        return (Phrase(step.job or "its job", link=PageLink("/job", {"jid": step.jid})),)
    return (Phrase(step.job),) if step.job else ()


FLOW_STEPS: Final[Sheet[StepLine]] = Sheet(
    "Steps",
    (
        Column("name", "Step", _name, least=12),
        Column("state", "State", _state),
        Column("why", "Why it waits", _why, least=12),
        Column("after", "After", _after, on=BROWSER),
        Column("ended_at", "Ended", _ended),
        Column("job", "Job", _job, wide=True),
    ),
    lambda line: str(line.step.index),
    Empty("No step is in this state."),
    facts=lambda line: object_of_step(line.step),
    words=lambda line: (line.step.name, state_of(line.step), line.step.job),
    order=lambda line: rank(state_of(line.step)),
    label=lambda line: line.step.name,
    heading="name",
)


def told(flow: FlowReport, steps: Sequence[StepReport] = ()) -> list[str]:
    """What a person should know of a flow beside its numbers, and what to do about it."""
    said = pause_text(flow, "steps")
    if flow.may_be_abandoned:
        said.append(f"its push has not ended: push it again, or `forkq flows cancel {flow.bid}`")
    if flow.dead and flow.state != "cancelled":
        again = f"`forkq flows retry {flow.bid}` tries those again that are still kept"
        said.append(f"{plural(flow.dead, 'step')} died: {again}")
    held = [step for step in steps if step.held_by]
    if held:
        dead = list(dict.fromkeys(name for step in held for name in step.held_by))
        waiting = plural(len(held), "step waits", "steps wait")
        said.append(f"{waiting} behind {_all_dead(dead)}: retried and done, the flow goes on")
    return said


def cancel(server: Server, bid: str) -> Plan:
    """The plan that cancels a flow."""
    report = Flow(bid, server).report()

    def do() -> ActionDone:
        Flow(bid, server).cancel()
        done = f"{shown(bid)} is cancelled: no further step starts, and those that wait or run end."
        return ActionDone(done, count=report.waiting)

    says = f"Cancel the flow {shown(bid)}, and {plural(report.waiting, 'step')} that did not end?"
    details = ("No further step starts. What runs gets forkq.Cancelled.",)
    return Plan(says, do, "Cancel", path_of(bid), details=details, danger=True)


def retry(server: Server, bid: str) -> Plan:
    """The plan that sends the dead steps of a flow to their queues."""
    says = "Once they are done, it goes on."
    return retry_dead(Flow(bid, server), "step", "flow", path_of(bid), says)


def path_of(bid: str) -> str:
    """The page of a flow in the web UI."""
    return f"{PATH_OF_ONE}?{urlencode({'bid': bid})}"


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
        indent = "  " * min(len(ahead) - 1, DEEPEST)
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
    said = state_of(step)
    if step.waits_for:
        said = f"waits for {_names(step.waits_for)}"
    held = held_text(step) if set(step.held_by) - set(step.waits_for) else ""
    return f"{step.name}  {said}{held and '; '}{held}"


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
    each = counts_text(counts_of(folded))
    rest = [step for step in steps if step.name not in names]
    return [*rest, f"... {plural(len(folded), 'more step')}: {each}"]


def _names(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    said = ", ".join(map(shown, names[:_MOST_NAMES]))
    more = len(names) - _MOST_NAMES
    return f"{said} and {format_count(more)} more" if more > 0 else said
