"""The other shards, as a clock reaches them: a connection to each, opened when it is needed."""

from __future__ import annotations

from typing import Final

from ..config.config import Config
from ..errors import no_such_shard
from ..store.connection import RedisConnection
from ..wire.keys import Keys

# Seconds. The clock waits for another shard, and for nothing else meanwhile: so it waits shortly.
_CONNECT: Final = 0.5
_REPLY: Final = 2.0


class OtherShards:
    """Lends connections to the shards of a configuration. Not thread-safe."""

    def __init__(self, config: Config) -> None:
        self._timeouts = (
            min(config.redis.timeout, _REPLY),
            min(config.redis.connect_timeout, _CONNECT),
        )
        self.own = config.shard
        self._shards = {shard.name: shard for shard in config.shards}
        self._connections: dict[str, RedisConnection] = {}

    def keys(self, name: str) -> Keys:
        """The names of the keys of that shard. Raises ConfigError if there is none."""
        if name not in self._shards:
            raise no_such_shard(name, [*self._shards])
        return Keys(self._shards[name].prefix)

    def connection(self, name: str) -> RedisConnection:
        """A connection to that shard. Raises ConfigError, ConnectionLost and RedisError."""
        keys = self.keys(name)
        found = self._connections.get(name)
        if found is None:
            shard, (timeout, connect_timeout) = self._shards[name], self._timeouts
            found = self._connections[name] = RedisConnection(
                shard.url,
                prefix=keys.prefix,
                timeout=timeout,
                connect_timeout=connect_timeout,
                password_source=shard.password_source,
            )
        if found.stale():
            found.close()
            found.connect()
        return found

    def names(self) -> list[str]:
        """The names of all other shards."""
        return [name for name in self._shards if name != self.own]

    def close(self) -> None:
        """Closes what is open."""
        for connection in self._connections.values():
            connection.close()
