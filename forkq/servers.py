"""The Redis that ``forkq.api`` reads and changes: one, or several shards. Any process; no push
needs this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .errors import ServerUnavailable, no_such_shard
from .limits.rules import Rulebook
from .store.scripts import Script
from .wire.keys import Keys
from .wire.payload import Payload, PayloadBounds
from .wire.spread import part_of

if TYPE_CHECKING:
    from .store.connection import RedisConnection

Command: TypeAlias = "tuple[Any, ...]"
F = TypeVar("F")


def _no_shards(queue: str) -> tuple[str, ...]:
    return ("",)


@dataclass(frozen=True, eq=False)
class Server:
    """One Redis with one prefix. All of ``forkq.api`` reads and changes Redis through one of these.

    ``connection()`` lends a connected RedisConnection, and raises ServerUnavailable if Redis cannot
    be reached or refuses what is asked within. ``keys`` are the names of its keys. ``bounds`` say
    what a payload may have, ``rules`` are those of this process's configuration. ``push`` pushes a
    job to the shard of its queue. ``name`` is that of the shard, "" for the only Redis;
    ``parts_of`` tells which shards have a queue: several, in alphabetical order, if it is spread.
    """

    connection: Callable[[], AbstractContextManager[RedisConnection]]
    keys: Keys
    bounds: PayloadBounds
    rules: Rulebook
    push: Callable[[Payload], str | None]
    name: str = ""
    parts_of: Callable[[str], tuple[str, ...]] = _no_shards

    def has(self, queue: str) -> bool:
        """Whether jobs of ``queue`` may be pushed to here."""
        return self.name in self.parts_of(queue)

    def ask(self, *commands: Command) -> list[Any]:
        """The replies to ``commands``, in one round trip. Raises ServerUnavailable."""
        if not commands:
            return []
        with self.connection() as connection:
            replies = connection.pipeline(commands)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return replies

    def ask_at_once(self, *commands: Command) -> list[Any]:
        """The replies to ``commands``, which are done with nothing between them. Raises
        ServerUnavailable."""
        with self.connection() as connection:
            *queued, replies = connection.pipeline([("MULTI",), *commands, ("EXEC",)])
            for reply in (*queued, *(replies if isinstance(replies, list) else [replies])):
                if isinstance(reply, Exception):
                    raise reply
        return list(replies)

    def ask_leniently(self, *commands: Command, strict: int = 0) -> list[Any]:
        """The replies to ``commands``, with None for each key of another type, but for the keys of
        the first ``strict`` commands. Any other refusal is raised: without the right to read a key,
        zero would be a wrong answer."""
        if not commands:
            return []
        with self.connection() as connection:
            replies = connection.pipeline(commands)
            for at, reply in enumerate(replies):
                refused = isinstance(reply, Exception)
                if refused and (at < strict or "WRONGTYPE" not in str(reply)):
                    raise reply
        return [None if isinstance(reply, Exception) else reply for reply in replies]

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any] = ()) -> Any:
        """The reply of a script. Raises ServerUnavailable."""
        with self.connection() as connection:
            return connection.script(script, keys, arguments)

    def now(self) -> float:
        """Epoch seconds by the server's clock, which children and clocks follow. Raises
        ServerUnavailable."""
        [(seconds, microseconds)] = self.ask(("TIME",))
        return int(seconds) + int(microseconds) / 1e6


class Servers:
    """The servers that one client pushes to: the only Redis, or one for each shard. The default one
    is that of ``[redis] url``, or the one that the client's configuration is about."""

    def __init__(self, servers: Sequence[Server], default: str = "") -> None:
        self._servers = {server.name: server for server in servers}
        self._default = default

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers.values())

    @property
    def names(self) -> list[str]:
        """The names of the shards, in the order of the configuration; none without shards."""
        return [name for name in self._servers if name]

    @property
    def default(self) -> Server:
        """The server that is meant where none is named."""
        return self._servers[self._default]

    def parts_of(self, queue: str) -> list[Server]:
        """The servers to which jobs of ``queue`` are pushed: several if it is spread."""
        return [self._servers[name] for name in self.default.parts_of(queue)]

    def of_queue(self, queue: str, key: str) -> Server:
        """The server to which a job of ``queue`` is pushed; ``key`` chooses the part of a spread
        queue."""
        return self._servers[part_of(self.default.parts_of(queue), key)]

    def __getitem__(self, name: str) -> Server:
        """The server of the shard of that name. Raises ConfigError if there is none."""
        if name not in self._servers:
            raise no_such_shard(name, self.names)
        return self._servers[name]


def first_found(where: Server | Iterable[Server], look: Callable[[Server], F | None]) -> F | None:
    """What ``look`` finds on the first server where it finds something. A server that is down hides
    no other one; but if no other server has it, the ServerUnavailable of that server is raised.

    A job whose queue moves may go to a server where ``look`` has been already. So all servers are
    looked at once more if a queue has ever moved between them."""
    servers = (where,) if isinstance(where, Server) else tuple(where)
    found = _first_found(servers, look)
    if found is None and len(servers) > 1 and any(map(_has_moves, servers)):
        return _first_found(servers, look)
    return found


def _has_moves(server: Server) -> bool:
    [count] = server.ask_leniently(("HLEN", server.keys.moves))
    return bool(count)


def _first_found(servers: Iterable[Server], look: Callable[[Server], F | None]) -> F | None:
    down: ServerUnavailable | None = None
    for server in servers:
        try:
            found = look(server)
        except ServerUnavailable as error:
            down = down or error
            continue
        if found is not None:
            return found
    if down is not None:
        raise down
    return None
