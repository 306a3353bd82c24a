"""Whether a server is one that forkq works with: each thing that forkq needs of it is tried, under
keys that no process uses, and the last line is the verdict. ``forkq doctor --conformance``.

It is safe on a server that runs jobs: its keys begin with a random name, expire by themselves, and
are deleted at the end, also after an interruption.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, TypeAlias

from ..child.fetch.plan import POLL_LONGEST
from ..config.config import Config
from ..default_client import default
from ..store.connection import (
    Call,
    RedisConnection,
    RedisError,
    ResponseError,
    connector,
)
from ..store.redis_py import exceptions
from ..store.refusals import RIGHTS
from ..store.scripts import script_of
from ..store.server_check import setting, unknown_commands
from ..units import format_duration, plural
from ..values import replace
from ..wire.keys import Keys
from ..wire.redis_url import database_of, is_cluster
from .examination import connected
from .finding import Finding, Level, examine, listed, unchecked
from .network import rights
from .redis_settings import clients
from .script_trials import trials, trials_by_hand
from .server import ExaminedServer, eviction, persistence, version
from .trial import Trial

# Seconds after which the server deletes keys that an end without warning has left.
_KEPT: Final = 600
# Seconds within which a server must report that a key has changed.
_REPORTED: Final = 2.0
_Check: TypeAlias = "Callable[[ExaminedServer], Finding]"
_Trials: TypeAlias = "Callable[[Keys, float], list[Trial]]"
# Seconds; the longest script of forkq takes a part of one.
_SHORT_SCRIPT: Final = 1.0
_ANY_PREFIX: Final = "{forkq}:"
# What Redis says in a script of a right that its user lacks, from 6.2 on.
_LACKS_RIGHTS: Final = re.compile(
    "can't run this command|no permission|can't access", re.IGNORECASE
)
_LUA: Final = script_of("lua", b"return _VERSION")

# Of the doctor's checks: what a setting can mend does not make a server unusable.
_SETTINGS: Final = {"eviction", "persistence", "clients"}
_START_FIRST: Final = "run `forkq start --redis embedded`, and this command beside it"
_UNTOLD: Final = "settings that it does not tell"
# How the verdict says what a server lacks that forkq can do without: where a check has warned, and
# where it could not be made.
_REMARKS: Final = {
    "rights": ("", "rights that were not checked"),
    "tracking": ("polling in place of tracking", "tracking that was not tried"),
    "transactions": ("no changes of jobs by hand", "transactions that were not tried"),
    "by-hand": ("no changes of jobs by hand", "scripts that were not tried"),
    "commands": ("no changes of jobs by hand", "commands that were not tried"),
    "script-time": ("a short time for scripts", _UNTOLD),
    "eviction": ("a policy that deletes keys", "an eviction policy that it does not tell"),
    "persistence": ("jobs that a crash may lose", _UNTOLD),
    "wait": ("pushes that cannot wait for replicas", "replicas that were not asked for"),
    "settings": (_UNTOLD, _UNTOLD),
    "clients": ("too few connections", "a number of connections that it does not tell"),
}


def conformance(config: Config) -> Iterator[Finding]:
    """One finding for each thing that was tried; the last is the verdict. Its level is ``fail`` if
    forkq cannot work with the server. Of several shards, those of each."""
    config = _with_a_prefix(config)
    for shard in config.shards:
        of_shard = _conformance(config.of_shard(shard.name))
        yield from (replace(one, check=f"{one.check}@{shard.name}") for one in of_shard)
    if not config.shards:
        yield from _conformance(config)


def _with_a_prefix(config: Config) -> Config:
    """Who tries a cluster has not chosen a prefix yet: any with a name in braces will do."""
    settings = config.redis
    if not is_cluster(settings.url) or settings.prefix:
        return config
    return replace(config, redis=replace(settings, prefix=_ANY_PREFIX))


def _conformance(config: Config) -> Iterator[Finding]:
    found: list[Finding] = []
    for one in _findings(config):
        found.append(one)
        yield one
    yield _verdict(found)


def _findings(config: Config) -> Iterator[Finding]:
    found, server = connected(config)
    if server is None:
        yield found
        return
    yield found
    with closing(server.connection), closing(default()):
        for name, check in _NEEDED.items():
            found = examine(name, partial(check, server))
            if not found.checked and not _is_for_rights(found):
                found = replace(found, level="fail", what="it cannot be told")
            yield found
            if found.level == "fail":
                return
        wished: dict[str, _Check] = {**_WISHED, "clients": partial(clients, config=config)}
        for name, check in wished.items():
            found = examine(name, partial(check, server))
            is_usable = found.level == "fail" and name in _SETTINGS
            yield replace(found, level="warn") if is_usable else found


def _is_for_rights(found: Finding) -> bool:
    """Whether `rights` decides what a check that could not be made means: without the right to INFO
    no version is told."""
    return found.check == "rights" or _LACKS_RIGHTS.search(found.why) is not None


def _verdict(found: list[Finding]) -> Finding:
    if not found[0].checked:
        return Finding("fail", "verdict", f"there is none: {found[0].why}", "", _START_FIRST)
    refusal = next((one for one in found if one.level == "fail"), None)
    if refusal is not None:
        because = "; ".join(part for part in (refusal.what, refusal.why) if part)
        return Finding("fail", "verdict", f"refused because of {refusal.check}: {because}")
    server = next(one.what for one in found if one.check == "version")
    remarks = [_remark(one) for one in found if one.level != "ok"]
    if not remarks:
        return Finding("ok", "verdict", f"works: {server}")
    return Finding("warn", "verdict", f"works with {', '.join(dict.fromkeys(remarks))}: {server}")


def _remark(found: Finding) -> str:
    lacks, untold = _REMARKS.get(found.check, ("", f"{found.check} that was not tried"))
    return lacks if found.checked else untold


class _OwnKeys:
    """Keys that no process uses, in a server that may run jobs. Who has the least rights has the
    right to them, and in a cluster they are in forkq's slot."""

    def __init__(self, server: ExaminedServer) -> None:
        self._server = server
        self.keys = Keys(f"{server.keys.prefix}forkq:conformance-{os.urandom(6).hex()}:")
        self._made: set[Any] = set()

    def note(self, *keys: Any) -> list[tuple[Any, ...]]:
        """Notes that a command makes these keys; returns what to send after that command."""
        self._made.update(keys)
        return [("EXPIRE", key, _KEPT) for key in keys]

    def close(self) -> None:
        """Deletes the keys, over a new connection: the other one may await a reply."""
        if self._made:
            with suppress(RedisError), closing(_another(self._server)) as last:
                last.pipeline([("DEL", key) for key in self._made])


def _another(server: ExaminedServer) -> RedisConnection:
    """A further connection to the server."""
    first = server.connection
    another = RedisConnection(
        first.url, prefix=server.keys.prefix, password_source=first.password_source
    )
    another.connect()
    return another


def _tls(server: ExaminedServer) -> Finding:
    """What the connection is protected by. redis-py names the host in the handshake (SNI)."""
    first = server.connection
    raw = connector(first.url, server.keys.prefix, 5.0, 5.0, first.password_source).connect()
    try:
        if not isinstance(raw.socket, ssl.SSLSocket):
            return Finding("ok", "tls", "RESP3, without TLS")
        said, name = raw.socket.version(), raw.socket.server_hostname
        return Finding("ok", "tls", f"RESP3 over {said}; the host name {name} was sent (SNI)")
    finally:
        raw.close()


def _scripts(server: ExaminedServer) -> Finding:
    """Each script of a tree does a real task, and gets the reply that Redis gives."""
    return _tried(server, "scripts", trials, "fail")


def _scripts_by_hand(server: ExaminedServer) -> Finding:
    return _tried(server, "by-hand", trials_by_hand, "warn")


def _tried(server: ExaminedServer, check: str, make: _Trials, otherwise: Level) -> Finding:
    with closing(_OwnKeys(server)) as own:
        tried = make(own.keys, time.time())
        _load(server.connection, tried)
        for trial in tried:
            if problem := _problem(server.connection, trial, own):
                what = f"the script {trial.name} does not do its task"
                remedy = RIGHTS if _LACKS_RIGHTS.search(problem) else ""
                return Finding(otherwise, check, what, problem, remedy)
    count = len({trial.name for trial in tried if trial.is_script})
    return Finding("ok", check, f"each of {plural(count, 'script')} did a real task")


def _load(connection: RedisConnection, tried: list[Trial]) -> None:
    """Loads the scripts. One that is sent again because the server did not know it would make its
    keys after they were told to expire."""
    texts = {one.call.script.text for one in tried if isinstance(one.call, Call)}
    connection.pipeline([("SCRIPT", "LOAD", text) for text in texts])


def _problem(connection: RedisConnection, trial: Trial, own: _OwnKeys) -> str:
    reply, *_ = connection.exchange([trial.call, *own.note(*trial.keys)])
    return trial.problem(reply)


def _lua(server: ExaminedServer) -> Finding:
    said = server.connection.script(_LUA, (), ()).decode()
    return Finding("ok", "lua", f"scripts run in {said}")


def _script_time(server: ExaminedServer) -> Finding:
    """After which time the server refuses all others while a script runs."""
    names = ("busy-reply-threshold", "lua-time-limit")
    value = next(filter(None, (setting(server.connection, name) for name in names)), None)
    if value is None:
        return unchecked("script-time", "CONFIG GET busy-reply-threshold is refused")
    seconds = int(value) / 1000
    what = "a script may run for as long as it takes"
    if seconds:
        what = f"others are refused (BUSY) once a script has run for {format_duration(seconds)}"
    if not seconds or seconds >= _SHORT_SCRIPT:
        return Finding("ok", "script-time", what)
    why = "a script of forkq may take some tenths of a second where many jobs are due"
    return Finding("warn", "script-time", what, why, f"set {names[0]} 5000")


def _tracking(server: ExaminedServer) -> Finding:
    """Whether the server reports that a key has changed; children wait for that."""
    pause = f"an idle child polls, at last every {format_duration(POLL_LONGEST)}"
    why = f"{pause}, which is also how long a job may wait for it"
    with closing(_OwnKeys(server)) as own, closing(_another(server)) as watcher:
        key, changed = own.keys.queue("tracked"), []
        watcher.on_change(lambda keys: changed.extend(keys or [key.encode()]))
        try:
            watcher.track()
            replies = watcher.pipeline([("CLIENT", "CACHING", "YES"), ("EXISTS", key)])
            refused = next((one for one in replies if isinstance(one, ResponseError)), None)
        except ResponseError as error:
            refused = error
        if refused is not None:
            return Finding("warn", "tracking", f"it is refused ({refused})", why)
        server.connection.pipeline([("LPUSH", key, "job"), *own.note(key)])
        if watcher.wait(_REPORTED):
            watcher.read_changes()
    if changed:
        return Finding("ok", "tracking", "the server reports at once that a key has changed")
    return Finding("fail", "tracking", "it is taken, and no change is reported", why)


def _transactions(server: ExaminedServer) -> Finding:
    """What the API changes in steps: WATCH, MULTI and EXEC."""
    with closing(_OwnKeys(server)) as own, closing(_another(server)) as another:
        key = own.keys.queue("watched")
        watches = [("WATCH", key), ("MULTI",), ("LPUSH", key, "job"), *own.note(key), ("EXEC",)]
        for reply in (replies := another.pipeline(watches)):
            if isinstance(reply, Exception):
                return Finding("warn", "transactions", f"they are refused ({reply})")
    if replies[-1] != [1, 1]:
        return Finding("warn", "transactions", f"EXEC replies {replies[-1]!r}")
    return Finding("ok", "transactions", "WATCH, MULTI and EXEC do as they should")


def _commands(server: ExaminedServer) -> Finding:
    unknown = unknown_commands(_another(server), server.keys)
    if not unknown:
        return Finding("ok", "commands", "the server knows every command that forkq uses")
    why = "what uses them will fail"
    return Finding("warn", "commands", f"the server does not know {listed(unknown)}", why)


def _wait(server: ExaminedServer) -> Finding:
    try:
        reached = server.connection.call("WAIT", 0, 1)
    except ResponseError as error:
        return Finding("warn", "wait", f"WAIT is refused ({error})", "see `wait` in docs/redis.md")
    return Finding("ok", "wait", f"{plural(int(reached), 'replica')} can be waited for")


def _settings(server: ExaminedServer) -> Finding:
    if setting(server.connection, "timeout") is not None:
        return Finding("ok", "settings", "CONFIG GET tells them")
    why = "doctor cannot tell of snapshots, appendfsync, timeout and buffers"
    return Finding("warn", "settings", "CONFIG GET is refused", why, "grant +config|get")


def _databases(server: ExaminedServer) -> Finding:
    """Whether another program may have a database of its own here."""
    used = database_of(server.connection.url)
    with closing(_another(server)) as another:
        try:
            another.call("SELECT", int(not used))
        except exceptions.NoPermissionError:
            return Finding("ok", "databases", f"database {used}; this user may not look for others")
        except ResponseError:
            what = f"only database {used}: programs that share it need prefixes"
            return Finding("ok", "databases", what)
    return Finding("ok", "databases", f"database {used}, of several")


def _cluster(server: ExaminedServer) -> Finding:
    if not server.connection.in_cluster:
        return Finding("ok", "cluster", "no cluster")
    what = f'with prefix = "{server.keys.prefix}" all keys are on one of its nodes'
    return Finding("ok", "cluster", what)


# Without one of these forkq cannot work. Each needs those before.
_NEEDED: Final[dict[str, _Check]] = {
    "version": version,
    "rights": rights,
    "tls": _tls,
    "scripts": _scripts,
}
_WISHED: Final[dict[str, _Check]] = {
    "by-hand": _scripts_by_hand,
    "lua": _lua,
    "script-time": _script_time,
    "tracking": _tracking,
    "transactions": _transactions,
    "commands": _commands,
    "wait": _wait,
    "eviction": eviction,
    "persistence": persistence,
    "settings": _settings,
    "databases": _databases,
    "cluster": _cluster,
}
