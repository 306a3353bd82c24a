"""What was deleted is put back."""

from __future__ import annotations

from typing import Final

from ... import api
from ..routing import Done, Plan, action
from ..texts import plural
from ..visit import Visit


def undo(visit: Visit) -> Plan:
    """The form has the token, and the page to return to."""
    token, back = visit.form.get("token"), visit.form.get("back", "/")

    def do() -> Done:
        outcome = api.undo(token)
        return Done(f"Put {plural(outcome.done, 'job')} back.", count=outcome.done)

    return Plan("Put the deleted jobs back?", do, back=_own(back), ask=False)


def _own(path: str) -> str:
    """A path of this UI: never another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


ROUTES: Final = [action("/undo", "undo", undo)]
