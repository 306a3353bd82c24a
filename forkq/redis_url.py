"""The address of Redis as text: is it one, and how to show it without its password. Any process."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from .errors import ConfigError

EMBEDDED = "embedded"
FORMS = (
    "redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH/TO/SOCKET or embedded "
    "(a server that forkq starts itself)"
)

# Up to the last @: a password with an unescaped / or @ in it makes no valid URL, but it is still a
# password, and this is the very URL that an error message is about to show.
_CREDENTIALS = re.compile(r"(?is)^([a-z+]+://|(?![a-z+]+://))([^:]*?):.*@")
_PASSWORD_PARAMETER = re.compile(r"([?&]password=)[^&#]*", re.IGNORECASE)


def redacted_url(url: str) -> str:
    """``redis://user:secret@host`` -> ``redis://user:***@host``: the only form that is printed."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _CREDENTIALS.sub(r"\1\2:***@", url))


def checked_url(url: str) -> str:
    """``url`` if it is an address that forkq can connect to, else ConfigError.

    redis-py takes database 0 for one that it cannot read (``redis://host/ten``): refused here.
    """
    if url == EMBEDDED or _is_address(url):
        return url
    raise ConfigError(f'expected {FORMS}, found "{redacted_url(url)}"')


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port that is no number, or an IPv6 address without its end
        return False
    if parts.fragment or any(character.isspace() for character in url):
        return False
    if parts.scheme == "unix":
        return len(parts.path) > 1
    database = re.fullmatch(r"(/[0-9]*)?", parts.path)
    return parts.scheme in ("redis", "rediss") and database is not None and port != 0
