"""The URL of Redis: its check, and its form without the password. Any process."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import ConfigError

EMBEDDED = "embedded"
FORMS = (
    "redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH/TO/SOCKET or embedded "
    "(a server that forkq starts itself)"
)

_TRUTH: Final = frozenset({"true", "false", "yes", "no", "1", "0"})
_CHECKS: Final[dict[str, tuple[str, Callable[[str], bool]]]] = {
    "db": ("a whole number", str.isdecimal),
    "protocol": ("3, since forkq needs the messages of RESP3", "3".__eq__),
    "ssl_cert_reqs": ("required, optional or none", ("required", "optional", "none").__contains__),
    "ssl_check_hostname": ("true or false", lambda text: text.lower() in _TRUTH),
    "ssl_min_version": ("771 (TLS 1.2) or 772 (TLS 1.3)", ("771", "772").__contains__),
}
_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_TLS: Final = (*_FILES, "ssl_ca_data", "ssl_password", "ssl_ciphers")
# The options after the "?" of a URL. redis-py has more; forkq cannot work with those.
OPTIONS: Final = tuple(dict.fromkeys(("username", "password", "client_name", *_CHECKS, *_TLS)))
_INSTEAD: Final = {
    "timeout": "set `timeout` under [redis] instead",
    "socket_timeout": "set `timeout` under [redis] instead",
    "socket_connect_timeout": "set `connect_timeout` under [redis] instead",
    "max_connections": "set `pool` under [redis] instead",
    "retry_on_timeout": "forkq itself decides what may be sent again",
    "retry_on_error": "forkq itself decides what may be sent again",
    "decode_responses": "payloads are bytes",
}

# Up to the last @: a password with an unescaped / or @ makes no valid URL, but the error that shows
# the URL must hide it all the same.
_CREDENTIALS = re.compile(r"(?is)^([a-z+]+://|(?![a-z+]+://))([^:]*?):.*@")
_PARAMETER = re.compile(r"(?s)(?<=[?&])([^=&#]*)(=?)([^&#]*)")
_FRAGMENT = re.compile(r"(?s)#.*")
# The options whose values forkq prints. Of any other one it may be a misspelt password's.
_PUBLIC: Final = frozenset({*OPTIONS, *_INSTEAD} - {"password", "ssl_password"})


def redacted_url(url: str) -> str:
    """``redis://user:secret@host`` -> ``redis://user:***@host``: forkq prints no other form. Of a
    text that is no URL, only what looks like a password is hidden."""
    shown = _CREDENTIALS.sub(r"\1\2:***@", url)
    if "://" in shown:
        shown = _FRAGMENT.sub("#***", shown)
    return _PARAMETER.sub(_without_secret if "://" in shown else _without_password, shown)


def _without_secret(match: re.Match[str]) -> str:
    name, equals, _ = match.groups()
    known = unquote(name).lower()
    if known in _PUBLIC:
        return match[0]
    return f"{name}{equals}***" if known in OPTIONS else "***"


def _without_password(match: re.Match[str]) -> str:
    name, equals, _ = match.groups()
    return f"{name}=***" if equals and "password" in unquote(name).lower() else match[0]


def checked_url(url: str) -> str:
    """``url`` if it is an address that forkq can connect to, else ConfigError.

    For a database that it cannot read (``redis://host/ten``) redis-py takes 0; this refuses it.
    """
    if url != EMBEDDED:
        if not _is_address(url):
            raise ConfigError(f'expected {FORMS}, found "{redacted_url(url)}"')
        problem = next(_wrong_options(url), None)
        if problem is not None:
            raise ConfigError(f'{problem}, in "{redacted_url(url)}"')
    return url


def files_of(url: str) -> dict[str, str]:
    """The files and folders that the options of ``url`` name, by option."""
    return {name: value for name, value in parse_qsl(urlsplit(url).query) if name in _FILES}


def _wrong_options(url: str) -> Iterator[str]:
    """The problems of the options. redis-py would raise a TypeError at the first connection."""
    parts = urlsplit(url)
    # The rest of a password with an & or a ? in it looks like an option, too.
    secret = "@" in parts.query
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        secret = secret or "password" in name.lower()
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1, 0.75)
            hint = f"the nearest one is {near[0]}" if near else f"use one of {', '.join(OPTIONS)}"
            shown = "***" if secret else name
            yield f'a Redis URL has no option "{shown}": {_INSTEAD.get(name, hint)}'
        elif not value:
            yield f'the option "{name}" of a Redis URL has no value'
        elif name.startswith("ssl_") and parts.scheme != "rediss":
            yield f'the option "{name}" is about TLS: the URL must begin with rediss://'
        elif name in _CHECKS and not _CHECKS[name][1](value):
            found = "***" if secret else value
            yield f'the option "{name}" of a Redis URL must be {_CHECKS[name][0]}, not "{found}"'


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as a look-up of the name does
    except ValueError:  # a port that is no number, half an IPv6 address, a name like a..b
        return False
    if parts.fragment or any(character.isspace() for character in url):
        return False
    if parts.scheme == "unix":
        return len(parts.path) > 1
    database = re.fullmatch(r"(/[0-9]*)?", parts.path)
    return parts.scheme in ("redis", "rediss") and database is not None and port != 0
