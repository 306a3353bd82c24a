"""What fails, and since when: failed jobs by class and error."""

from __future__ import annotations

from typing import Final

from ... import api
from ...screens.failures import GROUPS, FailureLine, looked_at
from ...wire.printable import cut
from ...wire.times import now
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 35
NAV: Final = NavItem("Failures", "/failures", "f")
_MOST_READ: Final = 1000  # jobs of each set, the latest: so the page takes some 40 ms
_MOST: Final = 100
_MOST_MARKS: Final = 20
_DAY: Final = 86_400


def failures(visit: Visit) -> View:
    found, begin = api.failures(most=_MOST_READ, server=visit.server), now() - _DAY
    deploys = [one for one in api.Metrics(visit.server).deploys(2) if one.at >= begin][
        -_MOST_MARKS:
    ]
    marks = [((one.at - begin) / _DAY, f"deployed {cut(one.label)}") for one in deploys]
    lines = [
        FailureLine(group, marks=marks, is_sample=found.is_sample) for group in found.groups[:_MOST]
    ]
    table = GROUPS.table("web", lines, len(found.groups) - len(lines))
    values = {"looked_at": looked_at(found), "table": table, "deploys": deploys[::-1][:3]}
    return View("failures.html", values)


ROUTES: Final = [page("/failures", failures)]
