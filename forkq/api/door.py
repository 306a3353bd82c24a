"""Which Redis is meant where a caller names none: that of the client of this process.

This is the one place where the API looks that client up. All else is given a ``Server``, or holds
one. With ``[[redis.shards]]`` each shard has queues, sets, processes and counts of its own.
"""

from __future__ import annotations

from ..default_client import default
from ..errors import ConfigError
from ..servers import Server, Servers


def servers() -> Servers:
    """All servers to which this process pushes (``forkq.configure``): the only Redis, or each of
    ``[[redis.shards]]``, the default one first."""
    return default().servers


def server(name: str = "") -> Server:
    """The shard of that name; without a name the default one, or the only Redis. Raises ConfigError
    if there is none of that name."""
    found = servers()
    return found[name] if name else found.default


def shards() -> list[str]:
    """The names of all shards, the default first; none if the configuration has no shards."""
    return servers().names


def shards_of(queue: str) -> list[str]:
    """The names of the shards that jobs of ``queue`` are pushed to: one, or several if it is spread
    over them (``[spread]``); none if there are no shards."""
    return [name for name in servers().default.parts_of(queue) if name]


def refuse_other_shard(here: Server, queue: str) -> None:
    """Raises ConfigError if ``queue`` is on another shard: no step moves a job from one Redis to
    another."""
    if not here.has(queue):
        there = " and ".join(here.parts_of(queue))
        raise ConfigError(
            f'the queue "{queue}" is on the shard {there}, the jobs are on {here.name}: jobs move '
            "within one Redis only; push them again"
        )


class OnServer:
    """What reads and changes one Redis: ``server``. It is looked up when it is used if none is
    given, so that an app may make a ``Queue`` before it calls ``forkq.configure``."""

    __slots__ = ("_server",)

    def __init__(self, server: Server | None = None) -> None:
        self._server = server

    @property
    def server(self) -> Server:
        """The Redis that this object reads and changes."""
        return self._server or self._usual_server()

    def _usual_server(self) -> Server:
        return server()
