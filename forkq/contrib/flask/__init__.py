"""Flask: each job runs in the app's context, and ``app.config`` configures forkq."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from flask import Flask

from forkq import default_client
from forkq.config import provided
from forkq.config.config import Config
from forkq.config.load import load
from forkq.config.schema import KeyPath, shown_path
from forkq.contrib.surround import surround
from forkq.errors import ConfigError, a_type

APP: Final = "forkq.contrib.flask.app"  # what a child imports first
PLACE: Final = "FORKQ in app.config"
_KEYS: Final = ("FORKQ", "FORKQ_REDIS")


class Forkq:
    """The extension: ``Forkq(app)``, or ``forkq = Forkq()`` and ``forkq.init_app(app)`` in a
    factory.

    ``app.config["FORKQ"]`` has the tables and keys of forkq.toml, ``app.config["FORKQ_REDIS"]`` the
    address of Redis alone. The jobs of a process run in the context of the app that was initialised
    last.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Takes the configuration from ``app.config``, which must be complete, and gives each job
        the app's context. Raises ConfigError for a key or a value that is wrong."""
        _configure(settings_of(app))
        app.extensions["forkq"] = self
        _use(app)


_apps: list[Flask] = []  # the one whose context jobs get; none before the first ``init_app``


def _use(app: Flask) -> None:
    if not _apps:
        surround(_app_context)
    _apps[:] = [app]


def _app_context() -> AbstractContextManager[object]:
    return _apps[0].app_context()


def _configure(given: dict[str, Any]) -> None:
    provided.use(provided.Provided(PLACE, lambda: given, APP, _command))
    server = default_client.server_config()
    if server is None:
        load(None, {}, os.environ, Path.cwd())
        default_client.forget()
    else:
        _check_server(server, given)


def _command(app: str) -> tuple[list[str], dict[str, str]] | None:
    """``flask forkq start``, of what Flask can load: a module with the app, or a factory. A
    module of jobs alone is started without Flask, as before."""
    if app and ":" not in app:
        return None
    return ["-m", "flask", *(["--app", app] if app else []), "forkq", "start"], {}


def _check_server(server: Config, given: Mapping[str, Any]) -> None:
    """Raises ConfigError in a child of ``forkq start``, which has not read ``app.config``, if that
    names a Redis: the web processes would push to one server, and this tree fetch from another."""
    origin = server.origin("redis.url")
    unread = origin.kind in ("file", "default") and str(origin.file) != PLACE
    if unread and (given.get("redis") or {}).get("url") not in (None, server.redis.url):
        raise ConfigError(
            f"{PLACE} names another Redis than this tree fetches from: start it with "
            "`flask forkq start`, which reads app.config"
        )


def settings_of(app: Flask) -> dict[str, Any]:
    """What ``app.config`` says of forkq, as tables of forkq.toml. Raises ConfigError."""
    for key in app.config:
        if key.startswith("FORKQ") and key not in _KEYS:
            near = get_close_matches(key, _KEYS, 1, 0.0)[0]
            raise ConfigError(f"{key} in app.config: there is no such key, the nearest is {near}")
    given = app.config.get("FORKQ") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{PLACE}: expected a dict of tables, found {a_type(type(given))}")
    url, redis = app.config.get("FORKQ_REDIS"), given.get("redis") or {}
    if url is None or not isinstance(redis, Mapping):
        return dict(_plain(given, ()))
    return dict(_plain({**given, "redis": {**redis, "url": url}}, ()))


def _plain(value: Any, path: KeyPath) -> Any:
    """Returns ``value`` as TOML has it: tuples are lists, paths are texts, and None is not given.
    Raises ConfigError for what TOML cannot say."""
    if isinstance(value, Mapping):
        items = ((str(key), item) for key, item in value.items() if item is not None)
        return {key: _plain(item, (*path, key)) for key, item in items}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, number)) for number, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str | int | float):
        where = f"{PLACE}: {shown_path(path)}"
        raise ConfigError(f"{where}: {a_type(type(value))} is no value of a setting")
    return value
