"""The client that job classes push with, and its configuration. Any process.

``config`` takes longer to import than a program that only pushes should wait for, so it is loaded
when the first address is looked up. A fork waits for that import (``_LATE`` in store/route.py).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import registry
from .client import Client
from .errors import ConfigError, ServerUnavailable, configuration, note_nothing_pushed
from .store.route import is_diverted, reaches_redis
from .wire.keys import Keys
from .wire.redis_url import EMBEDDED
from .wire.validation import first_foreign_value

if TYPE_CHECKING:
    from .config.config import Config
    from .wire.validation import StrictArgs

_default: Client | None = None
_server_config: Config | None = None
_announced = False
_lock = threading.Lock()


def configure(
    url: str | None = None,
    *,
    prefix: str | None = None,
    strict_args: StrictArgs | None = None,
    environ: Mapping[str, str] | None = None,
) -> Client:
    """Sets where job classes of this process push to, and returns that client.

    What is not given here comes from the environment (``FORKQ_REDIS``, ``REDIS_URL``, ...), a
    forkq.toml (upwards from the working directory, then from the modules that define jobs and the
    program), and the defaults, as for the server. In a child it comes from the server's
    configuration. Raises ConfigError.
    """
    config = _server_config
    if url is not None or config is None:
        config = _load_config(url, os.environ if environ is None else environ)
        announce_localhost(config)
    client = use(config, prefix=prefix, strict_args=strict_args)
    _warn_of_unserved_queues(client, config)
    return client


def use(
    config: Config, *, prefix: str | None = None, strict_args: StrictArgs | None = None
) -> Client:
    """Sets the process's client from a loaded configuration, and returns it. Raises ConfigError for
    a prefix where there are shards, which have one each."""
    global _default  # noqa: PLW0603 - a process has one default client
    settings = config.redis
    if config.shards and prefix not in (None, settings.prefix):
        raise ConfigError(
            f'prefix="{prefix}" is of one Redis, and {config.source or "the configuration"} has '
            "several shards: set `prefix` under [redis] there"
        )
    client = _client_class(config)(
        address(config),
        prefix=settings.prefix if prefix is None else prefix,
        pool=settings.pool,
        timeout=settings.timeout,
        connect_timeout=settings.connect_timeout,
        strict_args=strict_args or config.strict_args,
        max_payload_size=config.max_payload_size,
        max_nesting=config.max_nesting,
        rules=config.rules,
        password_source=settings.password_source,
        wait=settings.wait,
        wait_timeout=settings.wait_timeout,
        expire=config.expire,
    )
    registry.type_all(on=config.typed_args)
    _default = client
    return client


def know_types(args: Iterable[Any]) -> None:
    """Reads whether all jobs are typed, where no push has needed the configuration so far, and the
    arguments of a job that is prepared are no plain JSON."""
    if registry.types_all is None and first_foreign_value([*args]) is not None:
        registry.type_all(on=_load_config(None, os.environ).typed_args)


def _client_class(config: Config) -> Callable[..., Client]:
    """The class of the client for a configuration: one for several shards, or for one Redis."""
    if not config.shards:
        return Client
    from .sharded_client import ShardedClient  # noqa: PLC0415 - see the module's docstring

    return partial(ShardedClient, config.shards, config.shard)


def serve(config: Config) -> None:
    """Makes job classes push, in a child, to the server that it fetches from, or to the shards of
    their queues, unless the app calls ``configure`` with another URL."""
    global _server_config  # noqa: PLW0603 - the master gives it to this process once
    if config.shards:  # for the app, forkq.api is about the default shard in each process
        config = config.of_shard(config.shards[0].name)
    _server_config = config
    _warn_of_unserved_queues(use(config), config)


def default() -> Client:
    """The client that job classes push with. The first call configures it if the app has not."""
    client = _default
    if client is None:
        with _lock:
            client = _default or configure()
    return client


async def adefault() -> Client:
    """``default``, for an event loop: a thread reads the configuration, if it must be read."""
    if _default is not None:
        return _default
    from .store.loop.in_thread import once_in_thread  # noqa: PLC0415 - needs asyncio, which runs here

    try:
        return await once_in_thread(default)
    except BaseException as error:
        note_nothing_pushed(error)
        raise


def swap(client: Client | None) -> Client | None:
    """Makes ``client`` the process's client; None lets the next push configure one. Returns the one
    before. For ``forkq.testing``."""
    global _default
    before, _default = _default, client
    return before


def server_config() -> Config | None:
    """The configuration of the server; None if this process is no child."""
    return _server_config


def forget() -> None:
    """The settings of this process have changed: the next push looks the address up again."""
    global _default
    client, _default = _default, None
    if client is not None:
        client.close()


def address(config: Config) -> str:
    """The URL to connect to. For ``embedded`` it is the one that the running master has noted.

    Raises ServerUnavailable if no embedded server of this configuration is running, ConfigError if
    another user wrote the note.
    """
    if config.redis.url != EMBEDDED:
        return config.redis.url
    if not hasattr(os, "fork"):
        raise ConfigError("the embedded server needs a Unix; give the URL of a Redis server")
    from .config.private_files import read_trusted  # noqa: PLC0415 - see the module's docstring

    note = config.url_file
    try:
        return read_trusted(note).decode().strip()
    except FileNotFoundError:
        if is_diverted():  # a test may push while no server runs: this is where it would listen
            return f"unix://{config.state_dir}/server/redis.sock"
        raise ServerUnavailable(
            f"the embedded server is not running: {note} does not exist; run `forkq start` in the "
            "same working directory (with `--redis embedded`, if no forkq.toml says so)"
        ) from None


def _load_config(url: str | None, environ: Mapping[str, str]) -> Config:
    from .config.load import load  # noqa: PLC0415 - see the module's docstring

    return load(None, {"redis": url} if url else {}, environ, Path.cwd(), _app_folders())


def _app_folders() -> Iterator[Path]:
    """The folders of the modules that define jobs, in their order, and that of the program."""
    for name in (*registry.modules(), "__main__"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            yield Path(file).absolute().parent


def announce_localhost(config: Config) -> None:
    """Logs once that this process was not told where Redis is, if that is so."""
    global _announced  # noqa: PLW0603 - said once in a process
    if _announced or config.source is not None or config.origin("redis.url").kind != "default":
        return
    if not reaches_redis(config.redis.url):
        return
    _announced = True
    logging.getLogger("forkq").warning(
        "there is no %s, FORKQ_REDIS or REDIS_URL: jobs are pushed to %s",
        configuration.place,
        config.redis.url,
    )


def _warn_of_unserved_queues(client: Client, config: Config) -> None:
    """Makes the client warn once of each queue that no capsule and no living process serves."""
    from .store.unserved_queues import UnservedQueues  # noqa: PLC0415 - see the module's docstring

    names = config.queue_names if _has_capsules(config) else ()
    checks = {
        shard.name: UnservedQueues(
            shard.url, Keys(shard.prefix), names, shard.password_source
        ).look_for
        for shard in config.shards
    }
    if not checks:
        source = config.redis.password_source
        checks = {"": UnservedQueues(address(config), client.keys, names, source).look_for}
    client.pushed_to = checks[""] if not config.shards else partial(_check_queues, config, checks)


def _check_queues(
    config: Config, checks: Mapping[str, Callable[[Iterable[str]], None]], queues: Iterable[str]
) -> None:
    """Asks for each queue the shards that have it."""
    from .config.shards import parts_of  # noqa: PLC0415 - see the module's docstring

    for queue in queues:
        for shard in parts_of(config.shards, queue):
            checks[shard.name]([queue])


def _has_capsules(config: Config) -> bool:
    """Whether the configuration says which queues are worked on. Without a file, another process
    may have one that says so."""
    return config.source is not None or config is _server_config


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held the old one
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
