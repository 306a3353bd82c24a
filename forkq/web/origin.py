"""Where a request comes from, by what its client and the programs between say of it."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import HTTPConnection

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SAME_SITE: Final = frozenset({"same-origin", "none"})
_HOST: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9_.-]{1,255}))(?::[0-9]{1,5})?"
)
# What a proxy adds. Any name that begins with x-forwarded- counts, too.
_FORWARDED: Final = frozenset(
    {
        "cf-connecting-ip", "client-ip", "fastly-client-ip", "forwarded", "true-client-ip", "via",
        "x-client-ip", "x-cluster-client-ip", "x-envoy-external-address", "x-original-host",
        "x-original-url", "x-real-ip",
    }
)  # fmt: skip


def host_of(request: HTTPConnection) -> str | None:
    """The name in the Host header, in lower case, without its port; "" if there is none. None for a
    header that is no host name, and for two of them."""
    found = request.headers.getlist("host")
    if not found or found == [""]:
        return ""
    match = _HOST.fullmatch(found[0]) if len(found) == 1 else None
    return None if match is None else (match["v6"] or match["name"]).lower()


def is_same_origin(request: HTTPConnection) -> bool:
    """Whether a form comes from a page of ours, by what the browser says of it."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in _SAME_SITE
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def is_local(request: HTTPConnection) -> bool:
    """Whether a program of this host asks, and no proxy for another host."""
    client = request.client
    if client is None or client.host not in LOOPBACK:
        return False
    return not any(
        name in _FORWARDED or name.startswith("x-forwarded-") for name in request.headers
    )
