"""Turns what redis-py raises into an error of forkq, with its remedy. Any process."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from ..errors import (
    BatchFinished,
    CannotSave,
    NotPermitted,
    ServerFull,
    ServerReadOnly,
    ServerRefused,
    ServerUnavailable,
    TooFewReplicas,
    WrongPassword,
    WrongType,
    configuration,
    led_to,
)
from ..wire.redis_url import redacted_url, speaks_tls
from .redis_py import NoPassword, exceptions

RIGHTS: Final = "docs/redis.md of forkq lists the rights that it needs"

# By redis-py's class, or by the word with which the server's answer begins.
_BY_CLASS: Final[tuple[tuple[type[Exception], type[ServerRefused]], ...]] = (
    (exceptions.OutOfMemoryError, ServerFull),
    (exceptions.ReadOnlyError, ServerReadOnly),
    (exceptions.NoPermissionError, NotPermitted),
    (exceptions.AuthenticationError, WrongPassword),
    (exceptions.AuthorizationError, WrongPassword),
    (exceptions.AuthenticationWrongNumberOfArgsError, WrongPassword),
)
_BY_WORD: Final[dict[str, type[ServerRefused]]] = {
    "OOM": ServerFull,
    "READONLY": ServerReadOnly,
    "NOPERM": NotPermitted,
    "WRONGPASS": WrongPassword,
    "NOAUTH": WrongPassword,
    "WRONGTYPE": WrongType,
    "NOREPLICAS": TooFewReplicas,
    "MISCONF": CannotSave,
    "BATCHFINISHED": BatchFinished,
}
_REMEDY: Final[dict[type[ServerRefused], str]] = {
    ServerFull: "raise maxmemory, let jobs run, or delete some (Redis still allows that)",
    ServerReadOnly: "it is a replica: give the address of the master",
    NotPermitted: RIGHTS,
    WrongPassword: "give the right password, and user if any, in the URL "
    "(redis://USER:PASSWORD@HOST), or the password by password_file or password_command",
    WrongType: "a key holds another type than forkq keeps there: check it with TYPE, and rename it",
    TooFewReplicas: "connect the replicas that min-replicas-to-write asks for, or lower it",
    BatchFinished: "its block or the member that pushes has ended, or it was cancelled: push in "
    "its block, or in a member that still runs",
    CannotSave: "it cannot write its snapshot to disk: see the log of Redis",
}
_STOPS_JOBS: Final = (ServerReadOnly, NotPermitted, WrongPassword, TooFewReplicas, CannotSave)
# What says that no server listens at the address: at a port, at a Unix socket, or no such host.
_NO_SERVER: Final = (ConnectionRefusedError, FileNotFoundError, socket.gaierror)
_SILENT: Final = (
    "the server is busy or stopped, or a firewall is before it: look at its host and log"
)
_SILENT_TLS: Final = f"does that port speak TLS, as the address says? Else {_SILENT}"
_START_IT: Final = (
    "start a server there, or give the address of another one (--redis, REDIS_URL, or url in "
    "[redis] of {place})"
)


def failure(error: Exception, url: str, outcome: str = "") -> ServerUnavailable:
    """The error to raise for what redis-py raised: a ServerRefused of the fitting kind, or
    ServerUnavailable. ``outcome`` says which jobs of a push are in Redis."""
    rest = f"; {outcome}" if outcome else ""
    shown, said = redacted_url(url), str(error).rstrip(".")
    if isinstance(error, NoPassword):
        return WrongPassword(f"no password for Redis at {shown}: {said}{rest}")
    kind = _kind(error)
    if kind is not None:
        return kind(f"Redis at {shown} refuses: {in_words(error)}{rest}")
    if refuses(error):
        said += "; Redis and forkq do not agree on TLS: see the options ssl_... in docs/redis.md"
    elif any(isinstance(cause, _NO_SERVER) for cause in led_to(error)):
        said += f"; {_START_IT.format(place=configuration.place)}"
    elif isinstance(error, exceptions.TimeoutError):
        said += f"; {_SILENT_TLS if speaks_tls(url) else _SILENT}"
    return ServerUnavailable(f"Redis at {shown}: {said}{rest}")


def in_words(error: BaseException) -> str:
    """What the server said when it refused something, and the remedy, if one is known."""
    said, kind = str(error).rstrip("."), _kind(error)
    if isinstance(error, exceptions.InvalidResponse):
        return f"{said}; what listens there does not speak Redis's protocol: look for another port"
    return f"{said}; {_REMEDY[kind]}" if kind in _REMEDY else said


def stops_jobs(error: BaseException) -> bool:
    """Whether no job can run before a person has acted. A full server goes on giving jobs out, and
    a damaged key concerns one queue."""
    return _kind(error) in _STOPS_JOBS


def refuses(error: BaseException) -> bool:
    """Whether the server is there but refuses the login or TLS: to wait will not help.

    redis-py makes a failed login, and a failure of TLS, a kind of connection error.
    """
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return True
    return any(_breaks_tls(cause) for cause in led_to(error))


def _kind(error: BaseException) -> type[ServerRefused] | None:
    for theirs, ours in _BY_CLASS:
        if isinstance(error, theirs):
            return ours
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError):
        return None
    return _BY_WORD.get(str(error).partition(" ")[0], ServerRefused)


def _breaks_tls(cause: BaseException) -> bool:
    """Whether TLS itself failed. An ended connection is an outage instead."""
    gone = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(cause, ssl.SSLError) and not isinstance(cause, gone)
