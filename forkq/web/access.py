"""From ``[web]`` of the configuration to who may see the web UI, and what they may do."""

from __future__ import annotations

import importlib
import ipaddress
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from starlette.requests import HTTPConnection

from ..config.web_table import WebTable, address_of
from ..errors import ConfigError
from .settings import Authenticate, WebSettings
from .sign_in import BasicPassword

_Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"


def settings_of(table: WebTable) -> WebSettings:
    """The WebSettings that ``[web]`` means. Raises ConfigError, also for an address beyond the
    loopback without an authentication."""
    authenticate = _authenticate(table)
    host, _ = address_of(table.listen)
    if authenticate is None and not is_loopback(host):
        raise ConfigError(
            f"web.listen: {table.listen} serves other hosts, and nothing asks for the user; set "
            "web.password_hash (forkq web hash-password), web.user_header or web.authenticate"
        )
    return WebSettings(
        authenticate=authenticate,
        authorize=_function("web.authorize", table.authorize) if table.authorize else None,
        read_only=table.read_only,
        hosts=table.hosts,
    )


def is_loopback(host: str) -> bool:
    """Whether only programs of this host reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _authenticate(table: WebTable) -> Authenticate | None:
    ways = [key for key in ("password_hash", "user_header", "authenticate") if getattr(table, key)]
    if len(ways) > 1:
        raise ConfigError(f"web: {' and '.join(ways)} both say who the user is; keep one of them")
    if table.authenticate:
        return _function("web.authenticate", table.authenticate)
    if table.user_header:
        return by_header(table.user_header, table.proxies)
    return BasicPassword(table.password_hash) if table.password_hash else None


def by_header(name: str, proxies: Iterable[str]) -> Authenticate:
    """The user that a reverse proxy names in the header ``name``. None if it names none or two, and
    if the request does not come from one of ``proxies`` (addresses or networks): any client can
    send a header."""
    networks = [ipaddress.ip_network(each, strict=False) for each in proxies]

    async def user_of(request: HTTPConnection) -> str | None:
        if not _is_within(request.client.host if request.client else "", networks):
            return None
        found = request.headers.getlist(name)
        return found[0] if len(found) == 1 and found[0] else None

    return user_of


def _is_within(host: str, networks: Iterable[_Network]) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a Unix socket has none
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def _function(key: str, target: str) -> Callable[..., Any]:
    """The function that ``module:name`` names. Raises ConfigError."""
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f'{key}: "{target}": {error}') from None
    if not callable(found):
        raise ConfigError(f'{key}: "{target}" is no function')
    function: Callable[..., Any] = found
    return function
