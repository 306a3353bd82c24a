"""The URL of Redis: its check, and its form without the password. Any process."""

from __future__ import annotations

import binascii
import difflib
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

from ..errors import ConfigError, configuration

EMBEDDED = "embedded"
FORMS = (
    "redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH/TO/SOCKET, "
    "sentinel://HOST:PORT,HOST:PORT/MASTER-NAME/DB, cluster://HOST:PORT,HOST:PORT "
    "or embedded (a server that forkq starts itself)"
)
SENTINEL_PORT: Final = 26379
_NODE_PORT: Final = 6379
SLOTS: Final = 16384

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
# By each scheme of Redis Sentinel, the scheme of each of its servers.
_SENTINEL_SCHEMES: Final = {"sentinel": "redis", "sentinels": "rediss"}
# By each scheme of Redis Cluster, the scheme of each of its nodes.
_CLUSTER_SCHEMES: Final = {"cluster": "redis", "clusters": "rediss"}
_TLS_SCHEMES: Final = {"redis": "rediss", "sentinel": "sentinels", "cluster": "clusters"}
_SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
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
_PUBLIC: Final = frozenset(
    {*OPTIONS, *_SENTINEL_OPTIONS, *_INSTEAD} - {"password", "ssl_password", "sentinel_password"}
)


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
    return f"{name}{equals}***" if known in (*OPTIONS, *_SENTINEL_OPTIONS) else "***"


def _without_password(match: re.Match[str]) -> str:
    name, equals, _ = match.groups()
    return f"{name}=***" if equals and "password" in unquote(name).lower() else match[0]


def split_url(url: str) -> SplitResult:
    """The parts of a URL, as ``urlsplit`` gives them, also for a list of hosts with an IPv6 address
    in any place. Where that does not come first, Python since 2025 says that this is no URL
    (CVE-2025-0938)."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in {**_SENTINEL_SCHEMES, **_CLUSTER_SCHEMES}:
        return urlsplit(url)
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    login, at, _ = place.rpartition("@")
    one_host = urlsplit(f"{scheme}://{login}{at}host{rest.removeprefix(place)}")
    return one_host._replace(netloc=place)


class SentinelUrl(NamedTuple):
    """A ``sentinel://`` URL, taken apart: a URL for each Sentinel, the name that they know the
    master by, and the URL of the master with no host in it yet."""

    sentinels: tuple[str, ...]
    name: str
    before_host: str
    after_host: str

    def master_url(self, host: str, port: int) -> str:
        """The URL of the master, once a Sentinel has told where it is."""
        shown = f"[{host}]" if ":" in host else host
        return f"{self.before_host}{shown}:{port}{self.after_host}"


def sentinel_url(url: str) -> SentinelUrl | None:
    """The parts of ``url`` if it leads to Sentinels, else None. Raises ValueError if it has a form
    that cannot work, with the reason and the remedy."""
    parts = split_url(url)
    scheme = _SENTINEL_SCHEMES.get(parts.scheme)
    if scheme is None:
        return None
    credentials, at, hosts = parts.netloc.rpartition("@")
    name, database = _name_and_database(parts.path)
    login, tls, rest = _split_options(parts.query)
    places = [_host_and_port(host) for host in hosts.split(",")]
    sentinels = tuple(f"{scheme}://{login}{place}{tls}" for place in places)
    return SentinelUrl(sentinels, name, f"{scheme}://{credentials}{at}", f"/{database}{rest}")


class ClusterUrl(NamedTuple):
    """A ``cluster://`` URL, taken apart: the nodes that it names, and the URL of a node with no
    host in it yet."""

    nodes: tuple[tuple[str, int], ...]
    before_host: str
    after_host: str

    def node_url(self, host: str, port: int) -> str:
        """The URL of one node."""
        shown = f"[{host}]" if ":" in host else host
        return f"{self.before_host}{shown}:{port}{self.after_host}"


def is_cluster(url: str) -> bool:
    """Whether ``url`` leads to a Redis Cluster."""
    return split_url(url).scheme in _CLUSTER_SCHEMES


def cluster_url(url: str) -> ClusterUrl | None:
    """The parts of ``url`` if it leads to a Redis Cluster, else None. Raises ValueError if it has a
    form that cannot work, with the reason and the remedy."""
    parts = split_url(url)
    scheme = _CLUSTER_SCHEMES.get(parts.scheme)
    if scheme is None:
        return None
    if parts.path.strip("/") not in ("", "0") or "db" in parse_qs(parts.query):
        raise ValueError("a cluster has no databases but 0: end the URL after the last HOST:PORT")
    credentials, at, hosts = parts.netloc.rpartition("@")
    places = [urlsplit(f"//{_host_and_port(host, _NODE_PORT)}") for host in hosts.split(",")]
    nodes = tuple((place.hostname or "", place.port or _NODE_PORT) for place in places)
    query = f"?{parts.query}" if parts.query else ""
    return ClusterUrl(nodes, f"{scheme}://{credentials}{at}", f"/0{query}")


def check_prefix(url: str, prefix: str) -> None:
    """Raises ConfigError if ``url`` leads to a cluster in which the keys under ``prefix`` have no
    slot in common."""
    if is_cluster(url):
        slot_of(prefix)


def slot_of(prefix: str) -> int:
    """The slot of a Redis Cluster that has all keys under ``prefix``: the first name in braces
    decides. Raises ConfigError if they have none in common, and a script could not touch them."""
    tag, closed, _ = prefix.partition("{")[2].partition("}")
    if not tag or not closed:
        name = re.sub(r"[{}]", "", prefix).strip(":") or "forkq"
        raise ConfigError(
            "a Redis Cluster needs a prefix with a name in braces, so that one node has all keys, "
            f'not "{prefix}": write prefix = "{{{name}}}:" under [redis] in '
            f"{configuration.place} "
            f'(in code: prefix="{{{name}}}:")'
        )
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


def _split_options(query: str) -> tuple[str, str, str]:
    """The login before the host of a Sentinel, its options (those of TLS), and the master's."""
    options = parse_qsl(query)
    login = _login({name: value for name, value in options if name in _SENTINEL_OPTIONS})
    tls = urlencode([pair for pair in options if pair[0].startswith("ssl_")])
    rest = urlencode([pair for pair in options if pair[0] not in _SENTINEL_OPTIONS])
    return login, tls and f"?{tls}", rest and f"?{rest}"


def _name_and_database(path: str) -> tuple[str, str]:
    name, _, database = path.removeprefix("/").partition("/")
    if not name:
        raise ValueError(
            "it lacks the name of the master that the Sentinels watch: "
            "sentinel://HOST:PORT,HOST:PORT/MASTER-NAME/DB"
        )
    if database and not re.fullmatch("[0-9]+", database):
        raise ValueError(f'the database after the name of the master is a number, not "{database}"')
    return name, database or "0"


def _login(options: dict[str, str]) -> str:
    """User and password before the host, in the URL of a Sentinel."""
    user = quote(options.get("sentinel_username", ""), safe="")
    password = quote(options.get("sentinel_password", ""), safe="")
    if user and not password:
        raise ValueError("sentinel_username needs a sentinel_password")
    return f"{user}:{password}@" if password else ""


def _host_and_port(text: str, default: int = SENTINEL_PORT) -> str:
    """``text`` with a port. Raises ValueError if it is not the address of one server."""
    try:
        parts = urlsplit(f"//{text}")
        port = default if parts.port is None else parts.port
        good = bool(parts.hostname) and port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        good = False
    if not good:
        what = "a Sentinel" if default == SENTINEL_PORT else "a node"
        raise ValueError(f'"{text}" is not the address of {what}: write HOST or HOST:PORT')
    return f"{text.removesuffix(f':{port}')}:{port}"


def database_of(url: str) -> int:
    """The number of the database that ``url``, which was checked, asks for. As in redis-py, the
    first option ``db`` counts more than the path."""
    if is_cluster(url):
        return 0
    sentinel = sentinel_url(url)
    parts = urlsplit(sentinel.after_host if sentinel else url)
    path = "" if parts.scheme == "unix" else parts.path.strip("/")
    return int(parse_qs(parts.query).get("db", [path])[0] or 0)


def checked_url(url: str) -> str:
    """``url`` if it is an address that forkq can connect to, else ConfigError.

    For a database that it cannot read (``redis://host/ten``) redis-py takes 0; this refuses it.
    """
    if url != EMBEDDED:
        if not _is_address(url):
            raise ConfigError(f'expected {FORMS}, found "{redacted_url(url)}"')
        problem = next(_wrong_options(url), None) or _list_problem(url)
        if problem is not None:
            raise ConfigError(f'{problem}, in "{redacted_url(url)}"')
    return url


def _list_problem(url: str) -> str | None:
    """What is wrong with the URL of Sentinels or of a cluster."""
    kind = "cluster" if is_cluster(url) else "Sentinel"
    try:
        sentinel_url(url)
        cluster_url(url)
    except ValueError as error:
        return f"a {kind} URL cannot be used: {error}"
    return None


def files_of(url: str) -> dict[str, str]:
    """The files and folders that the options of ``url`` name, by option."""
    return {name: value for name, value in parse_qsl(split_url(url).query) if name in _FILES}


def _wrong_options(url: str) -> Iterator[str]:
    """The problems of the options of a URL. redis-py would raise a TypeError at the first
    connection."""
    parts = split_url(url)
    # The rest of a password with an & or a ? in it looks like an option, too.
    secret = "@" in parts.query
    options = (*OPTIONS, *_SENTINEL_OPTIONS) if parts.scheme in _SENTINEL_SCHEMES else OPTIONS
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        secret = secret or "password" in name.lower()
        if name not in options:
            near = difflib.get_close_matches(name, options, 1, 0.75)
            hint = f"the nearest one is {near[0]}" if near else f"use one of {', '.join(options)}"
            shown = "***" if secret else name
            yield f'a Redis URL has no option "{shown}": {_INSTEAD.get(name, hint)}'
        elif not value:
            yield f'the option "{name}" of a Redis URL has no value'
        elif name.startswith("ssl_") and not speaks_tls(url):
            tls = _TLS_SCHEMES.get(parts.scheme, "rediss")
            yield f'the option "{name}" is about TLS: the URL must begin with {tls}://'
        elif name in _CHECKS and not _CHECKS[name][1](value):
            found = "***" if secret else value
            yield f'the option "{name}" of a Redis URL must be {_CHECKS[name][0]}, not "{found}"'


def speaks_tls(url: str) -> bool:
    """Whether the scheme of this URL is one with TLS."""
    return url.partition(":")[0].lower() in _TLS_SCHEMES.values()


def _is_address(url: str) -> bool:
    try:
        parts = split_url(url)
        if parts.scheme in {
            **_SENTINEL_SCHEMES,
            **_CLUSTER_SCHEMES,
        }:  # _list_problem checks the rest
            cut = "@" in parts.path or re.match("[^=]*@", parts.query)  # a / or ? in the password
            return not (cut or parts.fragment or any(map(str.isspace, url)))
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
