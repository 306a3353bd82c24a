"""Shards on one server, each with a prefix of its own: they cost a test no further server."""

from __future__ import annotations

from pathlib import Path

from forkq.config.config import Config, RedisSettings
from forkq.config.shards import Shard

NOWHERE = Path("/nonexistent")


def shards_at(url: str) -> tuple[Shard, ...]:
    """The default shard, and two with prefixes of their own and parts of the queue ``wide``."""
    return (
        Shard("default", url),
        Shard("mail", url, ("mail",), prefix="mail:", has_url=False, spread=("wide",)),
        Shard("files", url, ("files",), prefix="files:", has_url=False, spread=("wide",)),
    )


DOWN = Shard("down", "redis://127.0.0.1:1", ("down",))


def config_at(url: str, shard: str = "default", *more: Shard) -> Config:
    """The configuration of a process of that shard; ``more`` shards there may be."""
    redis, shards = RedisSettings(url=url), (*shards_at(url), *more)
    config = Config(pidfile=NOWHERE, state_dir=NOWHERE, redis=redis, shards=shards, shard="default")
    return config.of_shard(shard)
