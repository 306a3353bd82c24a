"""This process as one whose forkq.toml has two shards, with a Redis each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from forkq import default_client
from forkq.config.load import load
from forkq.sharded_client import ShardedClient
from tests.support.server import Server
from tests.support.waiting import wait_until

NAMES = ("default", "mail")
# A server that hangs holds up for a minute what waits for it.
TEXT = """
[redis]
url = "{}"
timeout = 60
[[redis.shards]]
name = "mail"
url = "{}"
queues = ["mail"]
"""


@dataclass(frozen=True, slots=True)
class TwoShards:
    """``client`` is this process's; ``mail`` is the server of the shard of that name."""

    client: ShardedClient
    mail: Server

    def push(self, queue: str) -> str:
        jid = self.client.push({"class": "Letter", "args": [], "queue": queue})
        assert jid is not None
        return jid


@contextmanager
def two_shards(folder: Path) -> Iterator[TwoShards]:
    with ExitStack() as stack:
        servers = [stack.enter_context(closing(Server().start())) for _ in NAMES]
        (folder / "forkq.toml").write_text(TEXT.format(*(server.url for server in servers)))
        stack.callback(default_client.swap, default_client.swap(None))
        client = default_client.use(load(None, {}, {}, folder))
        assert isinstance(client, ShardedClient)
        stack.callback(client.close)
        yield TwoShards(client, servers[1])
        wait_until(_none_is_asked, what="the end of the questions to other shards")


def _none_is_asked() -> bool:
    """The screens ask the shards that they do not show in threads."""
    return all(thread.name != "forkq shard" for thread in threading.enumerate())
