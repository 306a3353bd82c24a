"""What was deleted is put back."""

from __future__ import annotations

from typing import Final

from ...screens import job_acts
from ...screens.plans import Plan
from ...values import replace
from ..routing import action
from ..visit import Visit


def undo(visit: Visit) -> Plan:
    """The plan to undo a deletion. The form has the token, and the page to return to."""
    back = _own(visit.form.get("back", "/"))
    return replace(job_acts.undo(visit.server, visit.form.get("token")), back=back)


def _own(path: str) -> str:
    """The path if it lies on this site, else "/": a form must not lead to another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


ROUTES: Final = [action("/undo", "undo", undo)]
