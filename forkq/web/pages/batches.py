"""Batches: how far each has come; and one of them, what keeps it, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import RedirectResponse, Response

from ... import api
from ...api.features.batches import batch_reports
from ...errors import ForkqError, ServerUnavailable
from ...screens.features import batches as screen
from ...screens.features.batches import (
    BATCHES,
    CANCEL,
    PATH,
    PATH_OF_ONE,
    PAUSE,
    RESUME,
    SEAL,
    told,
)
from ...screens.features.flows import PATH_OF_ONE as PATH_OF_FLOW
from ...screens.plans import Plan
from ..refused import PageRefused
from ..routing import NavItem, action, page
from ..visit import View, Visit

ORDER: Final = 72
NAV: Final = NavItem("Batches", PATH, "t")
_MOST: Final = 100  # rows of a page
_FEW: Final = 25  # jobs that a page names


def batches(visit: Visit) -> View:
    wanted = visit.query("q")
    found = BATCHES.chosen(api.batches(visit.server), wanted)
    left_out = max(0, len(found) - _MOST)
    values = {"table": BATCHES.table("web", found[:_MOST], left_out), "wanted": wanted}
    return View("batches.html", values)


def batch(visit: Visit) -> View | Response:
    bid = visit.query("bid")
    try:
        report = api.Batch(bid, visit.server).report()
    except ServerUnavailable:
        raise
    except ForkqError as error:
        raise PageRefused(404, "There is no such batch.", str(error)) from None
    if isinstance(report, api.FlowReport):
        return RedirectResponse(visit.url(PATH_OF_FLOW, bid=bid), 303)
    within = batch_reports(report.children[:_MOST], visit.server)
    table = BATCHES.table("web", within, max(0, len(report.children) - len(within)))
    values = {"batch": report, "told": told(report), "within": table, "few": _FEW}
    return View("batch.html", values)


def on_named(act: Callable[[api.Server, str], Plan]) -> Callable[[Visit], Plan]:
    """Makes an action on the batch, or the flow, that the form names."""
    return lambda visit: act(visit.server, visit.form.get("bid"))


ROUTES: Final = [
    page(PATH, batches),
    page(PATH_OF_ONE, batch),
    action(f"{PATH_OF_ONE}/seal", SEAL, on_named(screen.seal)),
    action(f"{PATH_OF_ONE}/pause", PAUSE, on_named(screen.pause)),
    action(f"{PATH_OF_ONE}/resume", RESUME, on_named(screen.resume)),
    action(f"{PATH_OF_ONE}/cancel", CANCEL, on_named(screen.cancel)),
    action(f"{PATH_OF_ONE}/retry", "retry jobs", on_named(screen.retry)),
]
