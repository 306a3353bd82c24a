"""The picture of a flow as values: which steps stand in one box, and that no box lies over
another."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from forkq.api import StepReport
from forkq.screens.features.flow_shape import MOST, FlowShape, shape_of
from forkq.screens.features.flows import tree
from forkq.web.plots.flow_graph import flow_graph, sign_of
from forkq.web.plots.layers import Arrangement, arranged

STATES = ("waits", "started", "done", "dead", "otherwise", "cancelled")


def steps_of(after: dict[str, list[str]], **states: str) -> list[StepReport]:
    """The steps of a flow: what each comes after."""
    return [
        StepReport(name, at, states.get(name, "waits"), dict.fromkeys(before, "wait"))  # type: ignore[arg-type]
        for at, (name, before) in enumerate(after.items())
    ]


def names_in(shape: FlowShape) -> list[list[str]]:
    return [[step.name for step in group.steps] for group in shape.groups]


def fan(count: int, name: str = "page") -> dict[str, list[str]]:
    sides = [f"{name}-{number}" for number in range(count)]
    return {"begin": [], **{side: ["begin"] for side in sides}, "end": sides}


def chains(count: int, length: int, name: str) -> dict[str, list[str]]:
    return {
        name.format(one, at): [name.format(one, at - 1)] if at else []
        for one in range(count)
        for at in range(length)
    }


def test_few_steps_stand_alone() -> None:
    shape = shape_of(steps_of(fan(MOST - 2)))
    assert len(shape.groups) == MOST
    assert len(shape.edges) == 2 * (MOST - 2)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(fan(500), [1, 500, 1], id="the same before and behind"),
        pytest.param(
            chains(100, 3, "{1}x-{0}"), [100, 100, 100], id="chains, alike but for a number"
        ),
        pytest.param(chains(100, 3, "{0}:{1}x"), [100, 100, 100], id="a layer"),
    ],
)
def test_steps_that_are_alike_stand_together(
    after: dict[str, list[str]], expected: list[int]
) -> None:
    shape = shape_of(steps_of(after))
    found = [len(group.steps) for group in shape.groups]
    assert found == expected
    assert [(edge.before, edge.behind) for edge in shape.edges] == [(0, 1), (1, 2)]
    assert sum(found) == len(after)


def test_a_long_line_is_shown_in_parts() -> None:
    shape = shape_of(steps_of(chains(1, 10_000, "step-{1}")))
    assert len(shape.groups) <= MOST
    assert sum(len(group.steps) for group in shape.groups) == 10_000
    assert [(edge.before, edge.behind) for edge in shape.edges] == [*pairwise(range(MOST))]


def test_a_group_says_first_what_a_person_should_hear() -> None:
    states = {"page-3": "dead", "page-4": "started", "page-5": "done"}
    shape = shape_of(steps_of(fan(100), **states))
    group = shape.groups[1]
    assert (group.title, group.state) == ("page …", "dead")
    assert group.counts == {"dead": 1, "started": 1, "waits": 97, "done": 1}
    assert shape.group_of("page-77") is group
    assert shape.group_of("nothing") is None


def test_a_tree_counts_steps_by_the_states_that_its_lines_have() -> None:
    """A step that is retried is no ordinary one that has started."""
    steps = steps_of(
        {f"page-{n}": [] for n in range(20)}, **{f"page-{n}": "started" for n in range(20)}
    )
    for step in steps[:15]:
        step.is_retried = True
    assert [*tree(steps)][-1] == "... 8 more steps: 3 retried, 5 started"


def test_an_empty_flow_has_an_empty_picture() -> None:
    assert shape_of([]) == FlowShape([], [])
    assert "<svg" in flow_graph(shape_of([]), lambda group: "")


def test_no_box_lies_over_another_in_random_flows() -> None:
    for seed in range(30):
        after = random_flow(random.Random(seed))
        shape = shape_of(steps_of(after))
        edges = [(edge.before, edge.behind) for edge in shape.edges]
        found = arranged([group.layer for group in shape.groups], edges)
        check_places(found, edges)
        picture = flow_graph(shape, lambda group: group.steps[0].name)
        assert picture.count('class="step') == len(shape.groups)
        assert picture.count('class="edge') == len(edges)


def random_flow(chance: random.Random) -> dict[str, list[str]]:
    after: dict[str, list[str]] = {}
    for number in range(chance.choice([1, 5, 30, 60, 200])):
        known = [*after][-chance.choice([3, 10, 60]) :]
        after[f"s{number}"] = chance.sample(known, min(len(known), chance.choice([0, 1, 1, 2, 5])))
    return after


def check_places(found: Arrangement, edges: list[tuple[int, int]]) -> None:
    """All is within the picture, in its layer, apart from its neighbours; a line leads on."""
    rows: dict[int, list[float]] = {}
    for item, (layer, across) in found.at.items():
        assert 0 <= across <= found.width - 1 + 1e-9
        assert 0 <= layer < found.layers
        if isinstance(item, int):
            rows.setdefault(layer, []).append(across)
    for row in rows.values():
        assert all(abs(one - other) > 1 - 1e-9 for one, other in combinations(row, 2))
    assert [(line[0], line[-1]) for line in found.lines] == edges
    for line in found.lines:
        layers = [found.at[item][0] for item in line]
        assert layers == sorted(set(layers))


def test_each_state_has_a_sign_of_its_own() -> None:
    """A colour alone is not seen by all."""
    signs = [sign_of(state) for state in (*STATES, "retried")]
    assert len(set(signs)) == len(signs)
