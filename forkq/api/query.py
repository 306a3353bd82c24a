"""Asking Redis: all of the API sends its commands through this module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from ..default_client import default
from ..limits.patterns import decoded_names
from ..session import Session
from ..wire.keys import Keys

Command: TypeAlias = "tuple[Any, ...]"


def session() -> Session:
    """The session of this process's client: the API reaches its server by no other way."""
    return default().session


def keys() -> Keys:
    """The names of the keys there."""
    return session().keys


def ask(*commands: Command) -> list[Any]:
    """The replies to ``commands``, in one round trip. Raises ServerUnavailable."""
    if not commands:
        return []
    with session().connection() as connection:
        replies = connection.pipeline(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
    return replies


def ask_at_once(*commands: Command) -> list[Any]:
    """The replies to ``commands``, which are done with nothing between them. Raises
    ServerUnavailable."""
    with session().connection() as connection:
        *queued, replies = connection.pipeline([("MULTI",), *commands, ("EXEC",)])
        for reply in (*queued, *(replies if isinstance(replies, list) else [replies])):
            if isinstance(reply, Exception):
                raise reply
    return list(replies)


def ask_leniently(*commands: Command, strict: int = 0) -> list[Any]:
    """As ``ask``, with None for each key of another type, but for those of the first ``strict``
    commands. Any other refusal is raised: without the right to read a key, zero would be a wrong
    answer."""
    if not commands:
        return []
    with session().connection() as connection:
        replies = connection.pipeline(commands)
        for at, reply in enumerate(replies):
            refused = isinstance(reply, Exception)
            if refused and (at < strict or "WRONGTYPE" not in str(reply)):
                raise reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


def server_now() -> float:
    """Epoch seconds by the server's clock, which children and clocks follow. Raises
    ServerUnavailable."""
    [(seconds, microseconds)] = ask(("TIME",))
    return int(seconds) + int(microseconds) / 1e6


def suspects_among(names: Iterable[str], index: Iterable[bytes] | None) -> list[str]:
    """Those of the queues ``names`` that may have suspects: all of them if ``index``, the members
    of ``Keys.suspected``, is None, because that key is damaged."""
    if index is None:
        return list(names)
    having = set(decoded_names(index))
    return [name for name in names if name in having]


def texts(values: Iterable[bytes]) -> list[str]:
    """Names as text, sorted. Names that are not UTF-8 are left out."""
    return sorted(decoded_names(values))
