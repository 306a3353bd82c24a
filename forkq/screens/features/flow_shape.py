"""The shape of a flow for its picture: layers, and steps that are alike as one group."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ...api import StepReport
from ...features.flow.parts import OnFailure
from ..texts import name as shown
from .flows import DEEPEST, counts_of, counts_text

# How many boxes a picture has at most.
MOST: Final = 60
_NUMBER: Final = re.compile(r"[\W_]*\d+$")


class AlikeSteps(msgspec.Struct, frozen=True):
    """Steps that a picture shows in one box: mostly one. ``layer``: how many others stand before
    it, one behind the other."""

    steps: tuple[StepReport, ...]
    layer: int

    @property
    def title(self) -> str:
        """The name of its only step, or what the names of all begin with."""
        names = [step.name for step in self.steps]
        if len(names) == 1:
            return names[0]
        stem = stem_of(names[0])
        return f"{stem} …" if stem and all(name.startswith(stem) for name in names) else "steps"

    @property
    def counts(self) -> dict[str, int]:
        """How many of its steps are in which state, what a person should hear of first in front."""
        return counts_of(self.steps)

    @property
    def state(self) -> str:
        """The state of its only step; of several, the one that a person should hear of first."""
        return next(iter(self.counts))

    @property
    def said(self) -> str:
        """The state of its only step, or how many of its steps are in which state."""
        if len(self.steps) == 1:
            return "held up" if self.steps[0].held_by else self.state
        return counts_text(self.counts)


class Edge(NamedTuple):
    """A line from one box to another, by their places in the shape. ``how``: what a bad end of the
    one before means."""

    before: int
    behind: int
    how: OnFailure


class FlowShape(NamedTuple):
    """What a picture shows."""

    groups: list[AlikeSteps]
    edges: list[Edge]

    def group_of(self, name: str) -> AlikeSteps | None:
        """The box in which the step of this name stands; None if it is not there."""
        return next((g for g in self.groups if any(s.name == name for s in g.steps)), None)


def shape_of(steps: Sequence[StepReport]) -> FlowShape:
    """The shape of a flow. ``steps``: each behind those that it comes after. If there are more
    than MOST, those are shown in one box that are alike."""
    layers = _layers(steps)
    found: Mapping[Hashable, list[StepReport]] = {}
    for key in _ways(steps, layers):
        found = _by(steps, key)
        if len(found) <= MOST:
            break
    box = {step.name: at for at, group in enumerate(found.values()) for step in group}
    groups = [
        AlikeSteps(tuple(each), min(layers[step.name] for step in each)) for each in found.values()
    ]
    return FlowShape(groups, _edges(steps, box))


def folded_lines(shape: FlowShape) -> Iterator[str]:
    """The shape as text: a line for each box, moved to the right by its layer, with how many steps
    it has in which state."""
    for group in sorted(shape.groups, key=lambda group: group.layer):
        counts = counts_text(group.counts)
        said = group.state if len(group.steps) == 1 else f"{len(group.steps):,} steps: {counts}"
        yield f"{'  ' * min(group.layer, DEEPEST)}{shown(group.title)}  {said}"


def stem_of(name: str) -> str:
    """A name without the number at its end: "page" of "page-12"."""
    return _NUMBER.sub("", name)


def _ways(
    steps: Sequence[StepReport], layers: Mapping[str, int]
) -> Iterator[Callable[[StepReport], Hashable]]:
    """What steps in one box have in common, the finest way first: each stands alone; the same
    steps stand before and behind them; their layer, and their name but for its number; their
    layer; one of MOST parts of all layers."""
    yield lambda step: step.name
    behind = _behind(steps)
    yield lambda step: (frozenset(step.after.items()), behind[step.name])
    yield lambda step: (layers[step.name], stem_of(step.name))
    yield lambda step: layers[step.name]
    deepest = max(layers.values()) + 1
    yield lambda step: layers[step.name] * MOST // deepest


def _by(
    steps: Sequence[StepReport], key: Callable[[StepReport], Hashable]
) -> dict[Hashable, list[StepReport]]:
    found: dict[Hashable, list[StepReport]] = {}
    for step in steps:
        found.setdefault(key(step), []).append(step)
    return found


def _behind(steps: Sequence[StepReport]) -> dict[str, frozenset[tuple[str, OnFailure]]]:
    """The steps behind each step."""
    found: dict[str, list[tuple[str, OnFailure]]] = {step.name: [] for step in steps}
    for step in steps:
        for name, how in step.after.items():
            found[name].append((step.name, how))
    return {name: frozenset(pairs) for name, pairs in found.items()}


def _layers(steps: Sequence[StepReport]) -> dict[str, int]:
    found = dict[str, int]()
    for step in steps:
        found[step.name] = 1 + max((found[name] for name in step.after), default=-1)
    return found


def _edges(steps: Sequence[StepReport], box: Mapping[str, int]) -> list[Edge]:
    """Each line once."""
    found = {
        Edge(box[name], box[step.name], how): None
        for step in steps
        for name, how in step.after.items()
        if box[name] != box[step.name]
    }
    return [*found]
