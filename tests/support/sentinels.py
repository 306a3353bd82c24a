"""Redis Sentinels for the tests: a master, a replica, and three Sentinels that watch them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from .server import Server
from .waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "main"
# Milliseconds until a Sentinel takes a silent server for dead: above what a busy machine needs.
DOWN_AFTER = 1500


class Sentinel(Server):
    """One Sentinel, which takes few of a server's settings."""

    def __init__(
        self,
        monitored: Server,
        quorum: int = 1,
        more: Sequence[str] = (),
        *,
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(tcp=True, extra=extra)
        self._conf = self.folder / "sentinel.conf"
        lines = [f"sentinel monitor {NAME} 127.0.0.1 {monitored.port} {quorum}", *more]
        self._conf.write_text("\n".join(lines) + "\n")

    def _arguments(self, port: int) -> list[str]:
        return [str(self._conf), "--sentinel", "--port", str(port), "--bind", "127.0.0.1",
                "--unixsocket", str(self.socket), "--logfile", str(self.log),
                *self._extra]  # fmt: skip

    def view(self) -> dict[str, str]:
        """What it knows of the master."""
        found: Any = self.cli("SENTINEL", "MASTER", NAME)
        if not isinstance(found, dict):
            found = dict(zip(found[::2], found[1::2], strict=True))
        return {name.decode(): value.decode() for name, value in found.items()}


class SentinelGroup:
    """Three Sentinels, a master and its replica. ``old`` and ``new`` are the two servers: the
    master of the beginning, and the one that a failover makes the master."""

    def __init__(self) -> None:
        fast = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
        self.old = Server(tcp=True, aof=True, extra=fast).start()
        master = ("--replicaof", "127.0.0.1", str(self.old.port))
        self.new = Server(tcp=True, aof=True, extra=(*fast, *master)).start()
        more = (
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER}",
            f"sentinel failover-timeout {NAME} 10000",
        )
        self.sentinels = [Sentinel(self.old, 2, more).start() for _ in range(3)]

    @property
    def url(self) -> str:
        """Where forkq finds the master."""
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"sentinel://{places}/{NAME}/0"

    def wait_complete(self) -> Self:
        """Waits until all know each other, and the replica has all data."""
        wait_until(self._complete, deadline=60, every=0.1, what="Sentinels that know each other")
        return self

    def replicate(self) -> None:
        """Waits until the replica has all that was written up to now."""
        client = self.old.client()
        client.set("forkq-test:replicated", 1)
        assert client.wait(1, 10_000) == 1

    def promoted(self) -> bool:
        """Whether the new server is the master."""
        return _role(self.new) == b"master"

    def demoted(self) -> bool:
        """Whether the old master is a replica by now."""
        return _role(self.old) == b"slave"

    def close(self) -> None:
        """Ends all of them."""
        for each in (*self.sentinels, self.new, self.old):
            each.close()

    def _complete(self) -> bool:
        views = [each.view() for each in self.sentinels]
        told = all(
            (view["num-other-sentinels"], view["num-slaves"], view["flags"]) == ("2", "1", "master")
            for view in views
        )
        return told and self.new.cli("ROLE")[3] == b"connected"


def _role(server: Server) -> bytes:
    """The role that the server tells. In a failover Sentinels end connections."""
    with suppress(RedisError):
        role: bytes = server.cli("ROLE")[0]
        return role
    return b""
