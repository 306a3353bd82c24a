"""``password_file`` and ``password_command``: keys of ``[redis]`` and of each shard."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

from msgspec import Meta

from ..errors import ConfigError
from ..wire.password_source import PasswordSource
from ..wire.redis_url import EMBEDDED, split_url
from .schema import Key, Table, with_key
from .settings import Origin

FILE: Final = "password_file"
COMMAND: Final = "password_command"


def _words(items: tuple[str, ...]) -> tuple[str, ...]:
    """The program of a command and its arguments: a single string is split as a shell would, but no
    shell runs."""
    try:
        words = shlex.split(items[0]) if len(items) == 1 else list(items)
    except ValueError as error:
        raise ConfigError(f"cannot be split into words: {error}") from None
    if not words or not words[0]:
        raise ConfigError("expected a program, and its arguments")
    return tuple(words)


_COMMAND_HINT: Final = Meta(description="a command: a string, or a list of words")
PASSWORD_KEYS: Final[Table] = {
    FILE: Annotated[Path, Key(
        "A file with the password of Redis, read at each connect ([a new password](redis.md#a-new-"
        "password)); a relative path starts at the folder of forkq.toml.",
        ("FORKQ_REDIS_PASSWORD_FILE",), default="none",
    )],
    COMMAND: Annotated[tuple[str, ...], _COMMAND_HINT, _words, Key(
        "A command that prints the password of Redis, run at each connect, without a shell.",
        ("FORKQ_REDIS_PASSWORD_COMMAND",), default="none",
    )],
}  # fmt: skip
PASSWORD_KEYS_OF_SHARD: Final[Table] = {
    name: with_key(hint, Key(f"As `{name}`, for this server.", default="none"))
    for name, hint in PASSWORD_KEYS.items()
}


def password_source(
    table: Mapping[str, Any], url: str, given: Mapping[str, Origin], place: str, folder: Path
) -> PasswordSource | None:
    """The source that the keys of ``table`` name, if any, for the server at ``url``. ``place`` is
    the name of the table. Keys of forkq.toml do not count for a URL that a flag names: that may be
    another server. Raises ConfigError for a password that is given twice."""
    of_flag = _kind(given, f"{place}.url") == "flag"
    keys = [
        key
        for key in (FILE, COMMAND)
        if key in table and not (of_flag and _kind(given, f"{place}.{key}") == "file")
    ]
    if not keys:
        return None
    origin = given[f"{place}.{keys[0]}"]
    if len(keys) > 1:
        raise ConfigError(f"{origin}: {given[f'{place}.{COMMAND}']} is given, too; remove one")
    if url == EMBEDDED:
        raise ConfigError(f"{origin}: the embedded server has no password; remove this")
    if _has_password(url):
        of_url = given.get(f"{place}.url", "the URL")
        raise ConfigError(f"{origin}: {of_url} has a password, too; remove one")
    if keys == [FILE]:
        return PasswordSource(file=folder / table[FILE])
    return PasswordSource(command=table[COMMAND])


def _kind(given: Mapping[str, Origin], key: str) -> str:
    return given[key].kind if key in given else ""


def _has_password(url: str) -> bool:
    parts = split_url(url)
    return bool(parts.password or parse_qs(parts.query).get("password"))
