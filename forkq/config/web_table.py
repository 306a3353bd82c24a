"""``[web]``: where ``forkq web`` listens, and who may see it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta

from ..errors import ConfigError

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[^\s:\[\]]+)):(?P<port>\d{1,5})"
)
_HASH: Final = re.compile(r"scrypt(:[A-Za-z0-9+/=]+){5}")
_CALLABLE: Final = re.compile(r"[\w.]+:[\w.]+")
_HIGHEST_PORT: Final = 65535


def check_address(text: str) -> str:
    """Raises ConfigError unless it is HOST:PORT."""
    address_of(text)
    return text


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPv6]:PORT``. Raises ConfigError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > _HIGHEST_PORT:
        raise ConfigError(f'expected HOST:PORT, such as "127.0.0.1:9293", found "{text}"')
    return match["v6"] or match["host"], int(match["port"])


def _check_hash(text: str) -> str:
    if text and not _HASH.fullmatch(text):
        raise ConfigError("expected what `forkq web hash-password` prints")
    return text


def _check_callable(text: str) -> str:
    if text and not _CALLABLE.fullmatch(text):
        raise ConfigError(f'expected "module:function", found "{text}"')
    return text


Callable = Annotated[str, _check_callable]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebTable:
    """``[web]``. An empty string is a setting that is not there."""

    listen: Annotated[str, check_address] = "127.0.0.1:9293"
    password_hash: Annotated[str, _check_hash] = field(default="", repr=False)
    user_header: Annotated[
        str, Meta(pattern=r"\A[A-Za-z0-9-]*\Z", description="the name of a header")
    ] = ""
    authenticate: Callable = ""
    authorize: Callable = ""
    hosts: tuple[str, ...] = ()
    read_only: bool = False
