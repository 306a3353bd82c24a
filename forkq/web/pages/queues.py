"""All queues: how long they are, how far behind, and what holds them."""

from __future__ import annotations

from typing import Final

from ...screens.facts import Facts, drains_in
from ..paging import paging
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 20
NAV: Final = NavItem("Queues", "/queues", "q")


def queues(visit: Visit) -> View:
    facts = visit.observer.facts()
    states = sorted(facts.states, key=lambda state: (-_weight(facts, state.name), state.name))
    wanted = visit.query("match").lower()
    chosen = [state for state in states if wanted in state.name.lower()]
    shown = paging(visit, len(chosen))
    rows = chosen[shown.start : shown.stop]
    sizes = {state.name: visit.observer.sizes(state.name) for state in rows}
    trends = {name: drains_in(samples) for name, samples in sizes.items()}
    values = {"facts": facts, "rows": rows, "paging": shown, "sizes": sizes, "trends": trends}
    return View("queues.html", values)


def _weight(facts: Facts, name: str) -> float:
    """Queues with jobs that wait come first."""
    return facts.latency(name)


ROUTES: Final = [page("/queues", queues)]
