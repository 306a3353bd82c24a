"""Pages in place of the one that was asked for: Redis is gone, not found, not allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import ForkqError, ServerRefused, ServerUnavailable
from ..screens.problems import Problem
from ..wire.printable import printable
from .forms import Form
from .rendering import page_response
from .visit import View, Visit
from .worker import TooBusy

_RETRY_AFTER: Final = "5"  # seconds

_GOES_ON: Final = (
    "This action takes long: it goes on. Do not start it again.",
    "Look at the list again in a while. The log of forkq web says when it is done.",
)


class PageRefused(Exception):
    """A page that cannot be shown: the status, what is wrong, and the remedy."""

    def __init__(self, status: int, says: str, remedy: str = "") -> None:
        super().__init__(says)
        self.status = status
        self.says = says
        self.remedy = remedy


def _page(
    request: Request, status: int, says: str, remedy: str = "", problems: Sequence[Problem] = ()
) -> Response:
    """``says`` may name what is in the address, or in Redis."""
    values = {"says": printable(says), "remedy": printable(remedy), "problems": problems}
    return page_response(Visit(request, Form([])), View("refused.html", values, status))


async def _unavailable(request: Request, says: str, remedy: str = "") -> Response:
    """The page that this shard cannot be shown now; the others go on."""
    visit, shards = Visit(request, Form([])), request.app.state.shards
    others = await run_in_threadpool(shards.elsewhere, visit.shard, visit.shards)
    response = _page(request, 503, says, remedy, others)
    response.headers["Retry-After"] = _RETRY_AFTER
    return response


async def _refused(request: Request, error: Any) -> Response:
    return _page(request, error.status, error.says, error.remedy)


async def _http(request: Request, error: Any) -> Response:
    says = "There is no such page." if error.status_code == 404 else str(error.detail)
    return _page(request, error.status_code, says)


async def _wrong(request: Request, error: Any) -> Response:
    return _page(request, 400, str(error))


async def _gone(request: Request, error: Any) -> Response:
    remedy = "This page works again as soon as Redis does. Reload it."
    return await _unavailable(request, f"Redis does not answer: {error}", remedy)


async def _server_refused(request: Request, error: Any) -> Response:
    return await _unavailable(request, f"Redis refuses: {error}")


async def _busy(request: Request, error: Any) -> Response:
    if getattr(request.state, "acting", False):
        return _page(request, 202, *_GOES_ON)
    remedy = "Redis is slow, or there are many visitors."
    return await _unavailable(request, "This page took too long.", remedy)


HANDLERS: Final[dict[Any, Any]] = {
    PageRefused: _refused,
    HTTPException: _http,
    ServerUnavailable: _gone,
    ServerRefused: _server_refused,
    TooBusy: _busy,
    ForkqError: _wrong,
}
