"""Flows: how far each has come; and one of them: its picture, its steps, and why each waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import RedirectResponse, Response

from ... import api
from ...api import FlowReport, StepReport
from ...api.features.flows import step_end
from ...errors import ForkqError, ServerUnavailable
from ...screens.features import flows as screen
from ...screens.features.flow_shape import AlikeSteps, FlowShape, shape_of
from ...screens.features.flows import (
    CANCEL,
    FLOW_STEPS,
    FLOWS,
    PATH,
    PATH_OF_ONE,
    of_steps,
    state_of,
    told,
)
from ...screens.features.results import result_text
from ..paging import paging
from ..plots.flow_graph import flow_graph, kind_of, sign_of
from ..refused import PageRefused
from ..routing import NavItem, action, page
from ..visit import View, Visit
from .batches import on_named

ORDER: Final = 73
NAV: Final = NavItem("Flows", PATH, "w")
_MOST: Final = 100  # rows of a page
_ENDED: Final = ("finished", "succeeded", "cancelled")


def flows(visit: Visit) -> View:
    wanted = visit.query("q")
    found = FLOWS.chosen(api.flows(visit.server), wanted)
    left_out = max(0, len(found) - _MOST)
    return View("flows.html", {"table": FLOWS.table("web", found[:_MOST], left_out)})


def flow(visit: Visit) -> View | Response:
    bid = visit.query("bid")
    try:
        report = api.Batch(bid, visit.server).report()
        if not isinstance(report, FlowReport):
            return RedirectResponse(visit.url("/batch", bid=bid), 303)
        steps = api.Flow(bid, visit.server).steps()
    except ServerUnavailable:
        raise
    except ForkqError as error:
        raise PageRefused(404, "There is no such flow.", str(error)) from None
    shape = shape_of(steps)
    values = {
        "flow": report,
        "told": told(report, steps),
        "counts": Counter(map(state_of, steps)),
        "kind_of": kind_of,
        "sign_of": sign_of,
        "folded": len(shape.groups) < len(steps),
        "ended": report.state in _ENDED,
        **_picture(visit, shape),
        **_table(visit, bid, shape, steps),
        "ending": _ending(visit, bid, steps),
    }
    return View("flow.html", values)


def _picture(visit: Visit, shape: FlowShape) -> dict[str, Any]:
    chosen = shape.group_of(visit.query("step"))

    def link(group: AlikeSteps) -> str:
        path = visit.here(step=group.steps[0].name, state=None, page=None)
        return f"{path}#steps"

    return {"picture": flow_graph(shape, link, chosen), "hows": {edge.how for edge in shape.edges}}


def _table(visit: Visit, bid: str, shape: FlowShape, steps: Sequence[StepReport]) -> dict[str, Any]:
    """The steps that were chosen in the picture, or by a state; all if none were."""
    name, state = visit.query("step"), visit.query("state")
    group = shape.group_of(name)
    among = steps if group is None else group.steps
    found = [step for step in among if state in ("", state_of(step))]
    shown = paging(visit, len(found))
    table = FLOW_STEPS.table("web", of_steps(bid, found[shown.start : shown.stop]))
    return {"table": table, "paging": shown, "group": group, "state": state}


def _ending(visit: Visit, bid: str, steps: Sequence[StepReport]) -> str:
    """What the step has returned that was chosen, or why it has not; "" if it has not ended."""
    chosen = [step for step in steps if step.name == visit.query("step") and step.ended_at]
    found = step_end(visit.server, bid, chosen[0]) if chosen else None
    return "" if found is None else result_text(found)


ROUTES: Final = [
    page(PATH, flows),
    page(PATH_OF_ONE, flow),
    action(f"{PATH_OF_ONE}/cancel", CANCEL, on_named(screen.cancel)),
    action(f"{PATH_OF_ONE}/retry", "retry jobs", on_named(screen.retry)),
]
