"""The message about what an action did, carried to the next page in a cookie."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

_COOKIE: Final = "forkq_message"
_SECONDS: Final = 60
_LONGEST: Final = 300  # characters; a cookie holds 4 KB


@dataclass(frozen=True, slots=True)
class Flash:
    """``undo`` is the path and the fields of the form that undoes what was done."""

    text: str
    undo: tuple[str, dict[str, str]] | None = None


def set_flash(response: Response, text: str, undo: tuple[str, dict[str, str]] | None) -> None:
    """Gives the message to the browser for its next page."""
    raw = msgspec.json.encode(Flash(text[:_LONGEST], undo))
    value = base64.urlsafe_b64encode(raw).decode()
    response.set_cookie(_COOKIE, value, max_age=_SECONDS, httponly=True, samesite="strict")


def get_flash(request: Request) -> Flash | None:
    """The message for this page, if there is one. The template escapes it."""
    try:
        raw = base64.urlsafe_b64decode(request.cookies.get(_COOKIE, ""))
        return msgspec.json.decode(raw, type=Flash)
    except (ValueError, msgspec.DecodeError):
        return None


def end_flash(response: Response) -> None:
    """The message was shown."""
    response.delete_cookie(_COOKIE, httponly=True, samesite="strict")
