"""Which shard of ``[[redis.shards]]`` a request is about: the path says so, behind one sign-in."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from ..api import shards
from ..errors import ForkqError

_PREFIX: Final = "/shards/"


class ShardOfPath:
    """A layer that reads the shard in the path. Below /shards/NAME are the pages of that shard, all
    else is about the first one. ``only``: the name of the one that is shown; "" shows all. Without
    shards it changes nothing."""

    def __init__(self, app: ASGIApp, only: str) -> None:
        self._app = app
        self._only = only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = [self._only] if self._only else _names()
        below = _below(scope)
        shard = below if below in names else next(iter(names), "")
        root = scope.get("root_path", "") + (path_to(shard) if below == shard else "")
        told = {"root_path": root, "forkq.shards": names, "forkq.shard": shard}
        await self._app({**scope, **told}, receive, send)


def path_to(shard: str) -> str:
    """The path of the pages of a shard, below those of the first one."""
    return f"{_PREFIX}{shard}" if shard else ""


def _below(scope: Scope) -> str:
    """The name of the shard in the path, after /shards/; "" if there is none."""
    path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
    name, slash, _ = path.removeprefix(_PREFIX).partition("/")
    return name if slash and path.startswith(_PREFIX) else ""


def _names() -> list[str]:
    """The names of the shards; none if this process cannot know them yet: then the pages say
    why."""
    with suppress(ForkqError):
        return shards()
    return []
