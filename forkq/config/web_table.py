"""``[web]``: where ``forkq web`` listens, and who may see it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta

from ..errors import ConfigError
from .schema import Key

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[^\s:\[\]]+)):(?P<port>\d{1,5})"
)
_HASH: Final = re.compile(r"scrypt(:[A-Za-z0-9+/=]+){5}")
_CALLABLE: Final = re.compile(r"[\w.]+:[\w.]+")
_HIGHEST_PORT: Final = 65535
_HEADER: Final = Meta(pattern=r"\A[A-Za-z0-9-]*\Z", description="the name of a header")


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


def _check_networks(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ConfigError(
                f'expected addresses or networks, such as "10.0.0.5" or "10.0.0.0/24", found '
                f'"{text}"'
            ) from None
    return texts


@dataclass(frozen=True, slots=True, kw_only=True)
class WebTable:
    """``[web]``. An empty string is a setting that is not there."""

    listen: Annotated[str, check_address, Key(
        "Where `forkq web` listens, `HOST:PORT`; beyond the loopback it needs an authentication.",
        ("FORKQ_WEB_LISTEN",), "--listen",
    )] = "127.0.0.1:9293"  # fmt: skip
    password_hash: Annotated[str, _check_hash, Key(
        "The password of `forkq web`, as `forkq web hash-password` prints it.",
        ("FORKQ_WEB_PASSWORD_HASH",),
    )] = field(default="", repr=False)  # fmt: skip
    user_header: Annotated[str, _HEADER, Key(
        "The header in which a reverse proxy names the user; it is believed from `proxies` alone."
    )] = ""  # fmt: skip
    proxies: Annotated[tuple[str, ...], _check_networks, Key(
        "The addresses or networks of the reverse proxies whose `user_header` is believed."
    )] = ("127.0.0.1", "::1")  # fmt: skip
    authenticate: Annotated[str, _check_callable, Key(
        "A function `module:name` of your own: it gets the request, and returns the name of the "
        "user, or None."
    )] = ""  # fmt: skip
    authorize: Annotated[str, _check_callable, Key(
        "A function `module:name` of your own: it gets the user and an action, and returns whether "
        "the user may do it."
    )] = ""  # fmt: skip
    hosts: Annotated[tuple[str, ...], Key(
        "The host names under which the web UI is served, beside the loopback."
    )] = ()  # fmt: skip
    read_only: Annotated[
        bool, Key("Whether the web UI offers no actions.", flag="--read-only")
    ] = False  # fmt: skip
