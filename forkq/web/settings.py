"""What the owner of a web UI decides: who may see it, who may act, and under which names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from starlette.requests import HTTPConnection

# Returns the name of the user; None if the request is refused. Runs in a thread, or is async.
Authenticate: TypeAlias = "Callable[[HTTPConnection], str | Awaitable[str | None] | None]"
# Whether the user of that name may do the action of that name.
Authorize: TypeAlias = "Callable[[str, str], bool]"


class TooManyTries(Exception):
    """Raised by an ``authenticate``: this client has tried too often. It may try again later."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:.0f} s")
        self.seconds = seconds


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``authenticate`` names the user of a request. Without it, only requests from this very host
    are served. ``authorize`` decides on each action; without it, every user may act.
    ``read_only`` removes all actions. ``hosts`` are the host names under which the UI is served,
    beside those of the loopback; empty: any, if there is an ``authenticate``. ``shard`` is the only
    one of ``[[redis.shards]]`` that is shown; "" shows them all.
    """

    authenticate: Authenticate | None = None
    authorize: Authorize | None = None
    read_only: bool = False
    hosts: tuple[str, ...] = ()
    shard: str = ""
