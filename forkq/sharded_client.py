"""The client of a process whose configuration has shards. Any process.

``default_client`` makes it in place of a Client, and imports this module only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from .client import Client
from .config.shards import Shard, shard_of
from .errors import ServerUnavailable
from .servers import Servers
from .store.route import EncodedJob, Route

if TYPE_CHECKING:
    from .store.connection import RedisConnection


class ShardedClient(Client):
    """Pushes each job to the shard of its queue. ``connection`` leads to ``shard``, ``servers`` are
    all shards."""

    def __init__(self, shards: Sequence[Shard], shard: str, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.shards = tuple(shards)
        self._shard = shard
        self._routes = {
            one.name: self._route
            if one.name == shard
            else self._route.to(one.url, one.prefix, one.password_source)
            for one in shards
        }

    def shard_of(self, queue: str) -> str:
        """The name of the shard that has this queue."""
        return shard_of(self.shards, queue).name

    def connection(self) -> AbstractContextManager[RedisConnection]:
        return self._routes[self._shard].channel().connection()

    def close(self) -> None:
        for route in self._routes.values():
            route.close()

    def _made_servers(self) -> Servers:
        made = [
            self._server(partial(_connection, route), route.keys, name=name, shard_of=self.shard_of)
            for name, route in self._routes.items()
        ]
        return Servers(made, self._shard)

    def _write(self, jobs: Sequence[EncodedJob], route: Route | None = None) -> None:
        """Pushes to each shard the jobs of its queues. A shard that fails keeps no other one from
        its jobs."""
        by_shard: dict[str, list[EncodedJob]] = {}
        for job in jobs:
            by_shard.setdefault(self.shard_of(job.queue), []).append(job)
        failed: list[tuple[str, ServerUnavailable]] = []
        pushed: list[str] = []
        for name, part in by_shard.items():
            try:
                super()._write(part, self._routes[name])
                pushed += [job.jid for job in part]
            except ServerUnavailable as error:
                failed.append((name, error))
        if failed:
            raise _as_one(failed, pushed, len(jobs))


def _connection(route: Route) -> AbstractContextManager[RedisConnection]:
    return route.channel().connection()


def _as_one(
    failed: Sequence[tuple[str, ServerUnavailable]], pushed: Sequence[str], total: int
) -> ServerUnavailable:
    """One error for several: the first, with the texts of all and the jids of all shards."""
    first = failed[0][1]
    inside = [*pushed, *(jid for _, error in failed for jid in error.pushed)]
    text = "; ".join(f"shard {name}: {error}" for name, error in failed)
    if pushed or len(failed) > 1:
        text += f"; over all shards {len(inside):,} of {total:,} jobs were pushed"
    first.args = (text,)
    first.pushed = tuple(inside)
    first.unknown = tuple(jid for _, error in failed for jid in error.unknown)
    return first
