"""The message about what an action did, for the next page: Redis keeps it for a minute, under a
random name that only this browser has. So no page shows what a client has made up."""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..api import Server
from ..errors import ForkqError

_COOKIE: Final = "forkq_message"
_SECONDS: Final = 60
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{32}")


class Flash(msgspec.Struct, frozen=True):
    """``undo`` is the path and the fields of the form that undoes what was done."""

    text: str
    undo: tuple[str, dict[str, str]] | None = None


def set_flash(
    server: Server, response: Response, text: str, undo: tuple[str, dict[str, str]] | None
) -> None:
    """Keeps the message for the next page of this browser. An action that was done is no error
    because Redis does not take its message."""
    name = secrets.token_urlsafe(24)
    raw = msgspec.json.encode(Flash(text, undo))
    with suppress(ForkqError):
        server.ask(("SET", server.keys.web_message(name), raw, "EX", _SECONDS))
    response.set_cookie(_COOKIE, name, max_age=_SECONDS, httponly=True, samesite="strict")


def take_flash(server: Server, request: Request) -> Flash | None:
    """The message for this page, if there is one; the next page has none. The template escapes
    it."""
    name = request.cookies.get(_COOKIE, "")
    if not _NAME.fullmatch(name):
        return None
    [raw] = server.ask_leniently(("GETDEL", server.keys.web_message(name)))
    try:
        return None if raw is None else msgspec.json.decode(raw, type=Flash)
    except (ValueError, msgspec.DecodeError):
        return None


def end_flash(response: Response) -> None:
    """Removes the message: it was shown."""
    response.delete_cookie(_COOKIE, httponly=True, samesite="strict")
