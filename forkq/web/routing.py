"""From a page function to a route: threads, rendering, live messages, and actions in two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ..screens.plans import ActionDone, Plan
from . import audit
from .flash import set_flash, take_flash
from .forms import Form, read_form
from .live import stream, wants_live
from .refused import PageRefused
from .rendering import page_response
from .visit import View, Visit
from .worker import PATIENCE

PageFunction: TypeAlias = "Callable[[Visit], View | Response]"

_REFUSALS: Final = audit.Refusals()
ACTION_PATIENCE: Final = 55.0  # seconds; many a proxy cuts a connection after 60


class NavItem(msgspec.Struct, frozen=True):
    """A page in the navigation: ``key`` follows g on the keyboard."""

    title: str
    path: str
    key: str = ""


def page(path: str, function: PageFunction) -> Route:
    """Makes the route of a page. Its function runs in a thread; it may raise any error of forkq."""

    async def serve(request: Request) -> Response:
        visit = Visit(request, Form([]))
        if wants_live(request):
            return stream(visit, function)
        return await _in_thread(visit, lambda: _response(visit, function(visit)))

    return Route(path, serve, methods=["GET"], name=path)


def action(path: str, name: str, plan: Callable[[Visit], Plan]) -> Route:
    """Makes the route of an action, for POST. ``name`` ("pause queue") is what ``authorize`` and
    the audit log are told. ``plan`` reads the form and says what would be done."""

    async def serve(request: Request) -> Response:
        visit = Visit(request, await read_form(request))
        return await _in_thread(visit, lambda: _act(visit, name, plan), ACTION_PATIENCE)

    return Route(path, serve, methods=["POST"], name=path)


async def _in_thread(
    visit: Visit, make: Callable[[], Response], patience: float = PATIENCE
) -> Response:
    return await visit.worker.run(make, patience)


def _response(visit: Visit, made: View | Response) -> Response:
    if isinstance(made, Response):
        return made
    return page_response(visit, made, take_flash(visit.server, visit.request))


def _act(visit: Visit, name: str, plan: Callable[[Visit], Plan]) -> Response:
    _check(visit, name)
    planned = plan(visit)
    if planned.ask and not visit.form.get("confirmed"):
        fields = visit.form.without("csrf")
        return page_response(visit, View("confirm.html", {"plan": planned, "fields": fields}))
    visit.request.state.acting = True
    done = _do(visit, name, planned)
    visit.observer.forget()
    response = RedirectResponse(visit.url(planned.back), 303)
    set_flash(visit.server, response, done.text, _undo(done, planned.back))
    return response


def _do(visit: Visit, name: str, planned: Plan) -> ActionDone:
    """Does what a plan says, with a line in the audit log: also if it failed, since part may be
    done then."""
    try:
        done = planned.do()
    except Exception as error:
        audit.failed(_who(visit), name, error)
        raise
    token = done.undo[1].get("token", "") if done.undo else ""
    audit.done(_who(visit), name, done.text, done.jids, done.count, token)
    return done


def _who(visit: Visit) -> audit.Who:
    return audit.Who(visit.user, visit.shard)


def _undo(done: ActionDone, back: str) -> tuple[str, dict[str, str]] | None:
    """The path and the fields of the form that undoes an action, and returns to the same page."""
    return None if done.undo is None else (done.undo[0], {**done.undo[1], "back": back})


def _check(visit: Visit, name: str) -> None:
    if visit.form.get("csrf") != visit.csrf:
        raise PageRefused(403, "The form is too old.", "Go back, reload the page, and try again.")
    if not visit.may(name):
        _REFUSALS.log("action", _who(visit), action=name)
        raise PageRefused(403, f"You may not do this here: {name}.", "")
