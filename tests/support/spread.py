"""This process as one whose forkq.toml spreads the queue imports over three servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkq import default_client
from forkq.config.load import load
from forkq.sharded_client import ShardedClient
from forkq.wire.spread import part_of
from tests.support.server import Server

PARTS = ("b", "c", "default")
QUEUE = "imports"
JOB: Mapping[str, Any] = {"class": "Quick", "queue": QUEUE}


def config_of(servers: Mapping[str, Server], more: str = "") -> str:
    """A forkq.toml with a shard for each server; the first is the default one."""
    (_, first), *others = servers.items()
    rows = "".join(
        f'[[redis.shards]]\nname = "{name}"\nurl = "{server.url}"\nqueues = ["{name}-*"]\n'
        for name, server in others
    )
    return f'[redis]\nurl = "{first.url}"\n{rows}[spread]\n{QUEUE} = {len(servers)}\n{more}'


def jids_for(part: str, count: int, word: str = "job") -> list[str]:
    """Jids of jobs that go to that part."""
    found = []
    for number in range(100 * count + 100):
        jid = f"{word}-{number}"
        if part_of(PARTS, jid) == part:
            found.append(jid)
    return found[:count]


@dataclass(frozen=True, slots=True)
class Spread:
    """``client`` is this process's; ``servers`` have the parts, by the name of the shard."""

    client: ShardedClient
    servers: Mapping[str, Server]

    def push(self, *args: object, **more: object) -> str:
        jid = self.client.push({**JOB, "args": [*args], **more})
        assert jid is not None
        return jid

    def push_to(self, part: str, count: int = 1, **more: object) -> list[str]:
        """Pushes jobs whose jids lead to that part."""
        return [self.push(0.0, jid=jid, **more) for jid in jids_for(part, count)]

    def payloads(self, part: str, key: str = f"queue:{QUEUE}") -> list[bytes]:
        """What is in a list of that part."""
        with closing(self.servers[part].client()) as redis:
            found: Any = redis.lrange(key, 0, -1)
            return list(found)

    def sizes(self) -> dict[str, int]:
        """How many jobs each part has."""
        return {part: len(self.payloads(part)) for part in PARTS}


@contextmanager
def three_parts(folder: Path, more: str = "") -> Iterator[Spread]:
    with ExitStack() as stack:
        names = ("default", "b", "c")
        servers = {name: stack.enter_context(closing(Server().start())) for name in names}
        (folder / "forkq.toml").write_text(config_of(servers, more))
        stack.callback(default_client.swap, default_client.swap(None))
        client = default_client.use(load(None, {}, {}, folder))
        assert isinstance(client, ShardedClient)
        stack.callback(client.close)
        yield Spread(client, servers)
