"""The setting FORKQ: what forkq.toml has elsewhere, with the same tables and keys.

Django itself is not set up here: the master reads the settings, and nothing else of the project.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import Promise

from ...config import provided
from ...errors import CannotBoot, ConfigError, a_type
from ...wire.printable import traceback_of

APP: Final = "forkq.contrib.django.app"
# The names of the databases of a test, as JSON.
DATABASES_VARIABLE: Final = "_FORKQ_DATABASES"
_PLACE: Final = "settings.FORKQ"
_MISSING: Final = (
    f"{ENVIRONMENT_VARIABLE} is not set: use `manage.py forkq`, which sets it, or set it to the "
    "module of your settings, such as mysite.settings"
)


def provide() -> None:
    """Configures this process by the setting FORKQ from now on."""
    provided.use(provided.Provided(_PLACE, read, APP, _command))


def is_provided() -> bool:
    """Whether this process is configured by the setting FORKQ."""
    return provided.source is not None and provided.source.app == APP


def read() -> dict[str, Any]:
    """FORKQ as a file's document; empty if there is no such setting. Raises ConfigError."""
    found = _setting()
    if not isinstance(found, Mapping):
        raise ConfigError(f"{_PLACE}: expected a dict, found {a_type(type(found))}")
    document: dict[str, Any] = _plain(found, _PLACE)
    return document


def require_settings() -> None:
    """Raises ConfigError if nothing says which settings the project has."""
    if not settings.configured and not os.environ.get(ENVIRONMENT_VARIABLE):
        raise ConfigError(_MISSING)


def _command(app: str) -> tuple[list[str], dict[str, str]]:
    """What ``manage.py forkq start`` becomes, on the databases of this test."""
    from django.db import connections  # noqa: PLC0415 - the master reads settings alone

    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
    for alias, name in names.items():
        if "mode=memory" in name or name == ":memory:":
            raise CannotBoot(
                f"the test's database {alias!r} is in the memory of this process, and children "
                f"cannot see it: set DATABASES[{alias!r}]['TEST'] = {{'NAME': a file}}"
            )
    modules = ["-r", app] if app else []
    found = {DATABASES_VARIABLE: msgspec.json.encode(names).decode()}
    return ["-m", "forkq.contrib.django", "start", *modules], found


def use_databases_of_test() -> None:
    """In a process that a test has started: the project's databases are those of the test."""
    given = os.environ.get(DATABASES_VARIABLE)
    for alias, name in (msgspec.json.decode(given) if given else {}).items():
        settings.DATABASES[alias]["NAME"] = name


def _setting() -> Any:
    """Imports the settings, which may fail in any way."""
    require_settings()
    try:
        return getattr(settings, "FORKQ", {})
    except ModuleNotFoundError as error:
        raise ConfigError(_not_found(error)) from None
    except ImproperlyConfigured as error:
        raise ConfigError(f"the settings: {error}") from None
    except Exception as error:  # noqa: BLE001 - the settings are the app's code
        raise ConfigError(f"the settings cannot be imported:\n{traceback_of(error)}") from None


def _not_found(error: ModuleNotFoundError) -> str:
    module = os.environ.get(ENVIRONMENT_VARIABLE)
    return (
        f"{ENVIRONMENT_VARIABLE} is {module}: {error} (looked in {Path.cwd()} and the Python "
        "path); start forkq in the folder of manage.py"
    )


def _plain(value: Any, place: str) -> Any:
    """Returns ``value`` as TOML would have it. Raises ConfigError, naming the place."""
    if isinstance(value, Mapping):
        return {_key(key, place): _plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, Path | Promise):
        return str(value)
    if isinstance(value, str | int | float):
        return value
    raise ConfigError(
        f"{place}: expected a string, a number, a list or a dict, found {a_type(type(value))}"
    )


def _key(key: Any, place: str) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"{place}: the key {key!r} is {a_type(type(key))}, not a string")
    return key
