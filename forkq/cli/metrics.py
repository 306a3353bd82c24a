"""``forkq metrics`` serves figures to a monitoring system; ``forkq mark-deploy`` marks a deploy in
them."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any, Final

import click

from ..client import Client
from ..config.config import Config
from ..default_client import address, use
from ..errors import ForkqError, install
from ..store.deploys import mark
from ..wire.printable import printable
from .options import configuration, finds_redis
from .output import echo
from .shards import by_shard

# Seconds that one answer of Redis may take: a scrape must end before the scraper gives it up.
_TIMEOUT: Final = 2.0


@click.command()
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:9394", show_default=True,
    help="Where to serve /metrics, /livez and /readyz.",
)  # fmt: skip
@click.option("--allow-remote", is_flag=True, help="Listen beyond this host, without a password.")
@click.option("--once", is_flag=True, help="Print the metrics, and exit.")
@finds_redis
def metrics(listen: str, allow_remote: bool, once: bool, **flags: Any) -> int:
    """Serve metrics of all hosts for Prometheus, with the label `shard` where there are shards. Run
    one, on any host."""
    try:
        from ..metrics.exposition import Exposition  # noqa: PLC0415 - an extra may be missing
        from ..metrics.server import MetricsServer, address_of  # noqa: PLC0415 - as above
    except ModuleNotFoundError as missing:
        raise ForkqError(
            f"{missing.name} is missing: {install('metrics')}, and run it again"
        ) from None
    configs = by_shard(configuration(**flags))
    exposition = Exposition({shard: _Clients(config).get for shard, config in configs.items()})
    if once:
        click.echo(exposition.render().body.decode(), nl=False)
        return _failed(exposition.error) if exposition.error else 0
    with MetricsServer(address_of(listen, allow_remote=allow_remote), exposition) as server:
        signal.signal(signal.SIGTERM, _exit)
        host, port = server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else f"{host!s}"
        echo(f"serving http://{shown}:{port}/metrics", err=True)
        server.serve_forever()
    return 0


class _Clients:
    """The client of this process. The embedded server may start later than this process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._client: Client | None = None
        self._url = ""

    def get(self) -> Client:
        """The client of a shard. Raises ForkqError if there is no server yet."""
        url, settings = address(self._config), self._config.redis
        if self._client is None or url != self._url:
            timeout = min(_TIMEOUT, settings.timeout)
            connect = min(_TIMEOUT, settings.connect_timeout)
            self._url, self._client = (
                url,
                Client(
                    url,
                    prefix=settings.prefix,
                    timeout=timeout,
                    connect_timeout=connect,
                    password_source=settings.password_source,
                ),
            )
        return self._client


def _failed(why: str) -> int:
    echo(f"forkq: {why}", err=True)
    return 6


def _exit(number: int, frame: object) -> None:
    sys.exit(0)


@click.command("mark-deploy")
@click.argument("label", required=False)
@finds_redis
def mark_deploy(label: str | None, **flags: Any) -> int:
    """Mark a deploy for the graphs of metrics; LABEL is the latest commit's by default.

    Hosts that deploy together make one mark: the same label is not marked again for a minute. Other
    labels of the same minute are shown together. Exit code 0 in either case.
    """
    client = use(configuration(**flags))
    label = label or _latest_commit()
    with client.connection() as connection:
        marked = mark(connection, client.keys, label)
    if marked is None:
        echo(f"marked already, less than a minute ago, perhaps by another host: {printable(label)}")
    else:
        others = "" if marked == label else f" (this minute says: {printable(marked)})"
        echo(f"marked: {printable(label)}{others}")
    return 0


def _latest_commit() -> str:
    """Short hash and subject of HEAD in the working directory. Raises ForkqError."""
    remedy = "name the deploy: forkq mark-deploy LABEL"
    try:
        git = subprocess.run(
            ["git", "log", "-1", "--format=%h %s"],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise ForkqError(f"there is no git here to ask for the latest commit; {remedy}") from None
    if git.returncode or not git.stdout.strip():
        reason = (git.stderr.strip().splitlines() or ["no commit yet"])[0]
        raise ForkqError(f"the latest commit is not known (git: {reason}); {remedy}")
    return git.stdout.strip()
