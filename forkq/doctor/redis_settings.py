"""Checks of what Redis and its host are set to: connections, their limits, memory of the host."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from ..config.config import Config
from ..store.process_info import UNREADABLE, ProcessInfo, process_info
from ..store.server_check import setting
from ..units import format_size, plural
from .finding import Finding, unchecked
from .server import ExaminedServer

# Of a child: one to fetch with and one for its heartbeat. Of a tree: the clock's, the rescue's.
_OF_A_CHILD: Final = 2
_OF_A_TREE: Final = 2
# Of a processor: it settles a failed job on one, and pushes on another one.
_OF_A_PROCESSOR: Final = 2
_LITTLE_ROOM: Final = 0.7
# Seconds: a connection of a heartbeat is idle for half as long.
_SHORT_TIMEOUT: Final = 20
# Bytes that a fetch or a move brings besides its last job.
_BESIDE: Final = 1 << 20
_CONFIG_RIGHT: Final = "grant +config|get"
_THP: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_OVERCOMMIT: Final = Path("/proc/sys/vm/overcommit_memory")
_PROC: Final = Path("/proc")
# Seconds that INFO's uptime and the age of a process may differ.
_TOLERANCE: Final = 5.0


def clients(server: ExaminedServer, config: Config) -> Finding:
    """maxclients against the connections of this tree, and of all processes that live elsewhere."""
    if "maxclients" not in server.info:
        return unchecked("clients", "INFO does not tell maxclients")
    limit = int(server.info["maxclients"])
    known, host = list(_living(server)), socket.gethostname()
    here = _connections(each.all_threads for each in known if each.hostname == host)
    elsewhere = _connections(each.all_threads for each in known if each.hostname != host)
    own = _connections(c.job_threads for c in config.capsules for _ in range(c.workers))
    needed = elsewhere + max(here, own) + _OF_A_TREE
    connected = int(server.info.get("connected_clients", 0))
    what = f"maxclients is {limit:,}; forkq's processes of all hosts open up to {needed:,} of these"
    what += f"; {plural(connected, 'is', 'are')} open now, those of other programs included"
    why = "Redis refuses further connections: of children, and of the programs that push"
    remedy = "raise maxclients (and LimitNOFILE= of Redis), or lower workers or concurrency"
    if needed > limit:
        return Finding("fail", "clients", what, why, remedy)
    if max(needed, connected) > _LITTLE_ROOM * limit:
        why = "the programs that push, and a rolling restart, need connections as well"
        return Finding("warn", "clients", what, why, remedy)
    return Finding("ok", "clients", what)


def idle_timeout(server: ExaminedServer) -> Finding:
    """The time after which Redis ends idle connections."""
    value = setting(server.connection, "timeout")
    if value is None:
        return unchecked("timeout", "CONFIG GET timeout is refused", _CONFIG_RIGHT)
    seconds = int(value)
    if not seconds:
        return Finding("ok", "timeout", "Redis ends no idle connection")
    what = f"timeout is {seconds}: Redis ends connections that are idle for so many seconds"
    if seconds > _SHORT_TIMEOUT:
        return Finding("ok", "timeout", what)
    why = "each heartbeat, and each push after a pause, then makes a connection"
    return Finding("warn", "timeout", what, why, "set timeout 0, or 300")


def output_buffers(server: ExaminedServer, config: Config) -> Finding:
    """What Redis may hold back of a reply, against the largest that a child asks for."""
    value = setting(server.connection, "client-output-buffer-limit")
    if value is None:
        why = "CONFIG GET client-output-buffer-limit is refused"
        return unchecked("buffers", why, _CONFIG_RIGHT)
    hard, soft, seconds = _limits_of("normal", value)
    largest, needed = format_size(config.max_payload_size), config.max_payload_size + _BESIDE
    what = f"client-output-buffer-limit is normal {hard} {soft} {seconds}"
    remedy = 'set client-output-buffer-limit "normal 0 0 0"'
    if 0 < hard < needed:
        why = f"Redis cuts off who fetches a job of {largest}"
        why += " (max_payload_size), and the job is never run"
        return Finding("fail", "buffers", what, why, remedy)
    if 0 < soft < needed:
        why = f"Redis cuts off who reads a large job for longer than {seconds} s"
        return Finding("warn", "buffers", what, why, remedy)
    return Finding("ok", "buffers", f"{what}: enough for a job of {largest}")


def huge_pages(server: ExaminedServer, enabled: Path = _THP, proc: Path = _PROC) -> Finding:
    """Whether the kernel gives Redis transparent huge pages."""
    process = _process_here(server)
    if process is None:
        return Finding("ok", "huge-pages", f"Redis is not on this host: see {_THP} there")
    if "[always]" not in enabled.read_text():
        return Finding("ok", "huge-pages", "Redis gets no transparent huge pages")
    status = (proc / str(process.pid) / "status").read_text()
    if "THP_enabled:\t0" in status:
        return Finding("ok", "huge-pages", "Redis has transparent huge pages turned off for itself")
    what = "Redis runs with transparent huge pages"
    why = "while it saves, each write copies 2 MiB: it needs more memory, and pauses"
    remedy = f"echo madvise > {_THP} at each boot, or set disable-thp yes, and restart Redis"
    return Finding("warn", "huge-pages", what, why, remedy)


def overcommit(server: ExaminedServer, mode: Path = _OVERCOMMIT) -> Finding:
    """Whether the kernel lets Redis fork when memory is short."""
    if _process_here(server) is None:
        return Finding("ok", "overcommit", f"Redis is not on this host: see {_OVERCOMMIT} there")
    value = mode.read_text().strip()
    what = f"vm.overcommit_memory is {value}"
    if value == "1":
        return Finding("ok", "overcommit", what)
    why = "the kernel may refuse Redis the fork for a snapshot or a new AOF; it then refuses writes"
    return Finding("warn", "overcommit", what, why, "sysctl vm.overcommit_memory=1, at each boot")


def _living(server: ExaminedServer) -> Iterator[ProcessInfo]:
    """What every process whose record has not expired says of itself, Sidekiq's too."""
    identities = server.connection.call("SMEMBERS", server.keys.processes)
    commands = [
        ("HGET", server.keys.process(str(identity, "utf-8", "replace")), "info")
        for identity in identities
    ]
    for reply in server.connection.pipeline(commands) if commands else ():
        with suppress(*UNREADABLE):
            yield process_info(reply)


def _connections(processors: Iterable[int]) -> int:
    """What children with these numbers of processors open at most."""
    return sum(_OF_A_CHILD + _OF_A_PROCESSOR * each for each in processors)


def _limits_of(kind: str, value: str) -> tuple[int, int, int]:
    """Hard limit, soft limit (bytes) and the seconds of the soft one, of a kind of clients."""
    words = value.split()
    at = words.index(kind)
    hard, soft, seconds = map(int, words[at + 1 : at + 4])
    return hard, soft, seconds


def _process_here(server: ExaminedServer) -> psutil.Process | None:
    """The process of the server; None if it is on another host, or in another container: then its
    pid belongs to none here, or to one of another age."""
    try:
        process = psutil.Process(int(server.info["process_id"]))
        age = time.time() - process.create_time()
        uptime = int(server.info["uptime_in_seconds"])
    except (KeyError, ValueError, psutil.Error):
        return None
    return process if abs(age - uptime) <= _TOLERANCE else None
