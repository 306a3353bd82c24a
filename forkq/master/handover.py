"""What a process gets that the master starts by exec: a record, in an unnamed file whose descriptor
is in the environment.

The master executes its own command line in two cases (docs/decisions/013): as a child that tries
new code in a fresh interpreter, and in place of itself when that child has proved the new code.
The living children get through the second one as values of the record. The next program, whose
children they still are, makes handles of them again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import fields
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

import msgspec

from .. import __version__
from ..config.capsule import Capsule
from ..config.config import Config
from ..config.recycling import Recycling
from ..config.shards import server_of
from ..errors import ConfigError
from ..runtime.pipe import Fact, PipeReader, facts
from .child_handle import ChildHandle, pidfd_of
from .slot import Slot

_VARIABLE: Final = "_FORKQ_RECORD"
_REMEDY: Final = "a rolling restart cannot change that; stop the tree and start it again"

# Counts up when a version of forkq cannot read the records of the one before.
FORMAT: Final = 1

Fixed: TypeAlias = Mapping[str, str]
Described: TypeAlias = dict[str, Any]

# What a handle has that another program cannot use as it is. The children put the suspects back
# that they hold (isolation.py).
_LIVE: Final = ("slot", "pidfd", "report", "memory", "isolation_facts", "on_trial")


class RestartReport(msgspec.Struct):
    """The last rolling restart, for ``forkq restart --wait``. ``begun_at`` is monotonic; 0: there
    was none. ``reason``: why it was rolled back."""

    begun_at: float = 0.0
    state: Literal["none", "trying", "replacing", "done", "rolled back"] = "none"
    reason: str = ""


class CanaryRecord(msgspec.Struct, tag=True):
    """For the child that tries the new code. ``control`` and ``report``: its ends of its pipes.
    ``format``: what the records of the running master look like. ``capsule``: whose jobs it runs.
    ``crash_file``, ``deadlines``:
    what it shares with the master; an older one has none for it."""

    fixed: Fixed
    name: str
    nonce: str
    control: int
    report: int
    quiet: bool
    format: int = FORMAT
    crash_file: int | None = None
    deadlines: int | None = None
    capsule: str = ""


class MasterRecord(msgspec.Struct, tag=True):
    """For the master's next program. ``pidfile`` is the locked descriptor. ``leader`` is the pid of
    the child that leads; 0: none. ``again``: another rolling restart was asked for meanwhile."""

    fixed: Fixed
    pidfile: int
    children: list[Described]
    leader: int
    quiet: bool
    restart: RestartReport
    again: bool


Record: TypeAlias = CanaryRecord | MasterRecord
_decoder: Final = msgspec.msgpack.Decoder(CanaryRecord | MasterRecord)


def fixed(config: Config) -> Fixed:
    """Digests of the values that no rolling restart can change: by them the tree is found, and its
    jobs. Of a URL only what names the server and its database: a password changes now and then."""
    values = {
        "[forkq] pidfile": str(config.pidfile),
        "[forkq] state_dir": str(config.state_dir),
        "[redis] url": repr(server_of(config.redis.url)),
        "[redis] prefix": config.redis.prefix,
    }
    for shard in config.shards[1:]:
        values[f"[[redis.shards]] {shard.name}"] = repr(server_of(shard.url))
    return {key: sha256(value.encode()).hexdigest() for key, value in values.items()}


def check_format(record: CanaryRecord) -> None:
    """Raises ConfigError if this version of forkq cannot take over from the running one."""
    if record.format != FORMAT:
        raise ConfigError(
            f"forkq {__version__} cannot take over from the version that runs: stop the tree and "
            "start it again"
        )


def check_fixed(before: Fixed, config: Config) -> None:
    """Raises ConfigError if the new configuration is that of another tree."""
    now = fixed(config)
    changed = [key for key, value in before.items() if now.get(key) != value]
    if changed:
        raise ConfigError(f"{config.source}: {', '.join(changed)} has changed: {_REMEDY}")


def become(record: Record) -> str:
    """Executes this process's own command line in a fresh interpreter, which gets ``record`` and
    keeps the descriptors in it. Returns only if that fails: why."""
    kept = _descriptors(record)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(msgspec.msgpack.encode(record))
            file.seek(0)
            _keep([file.fileno(), *kept], inheritable=True)
            environ = {**os.environ, _VARIABLE: str(file.fileno())}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606
    except OSError as error:
        _keep(kept, inheritable=False)
        return f"cannot execute {sys.executable}: {error.strerror}"


def take_record(environ: MutableMapping[str, str]) -> Record | None:
    """The record that the master left for this process; None if a user has started it."""
    number = environ.pop(_VARIABLE, "")
    if not number:
        return None
    with open(int(number), "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        record: Record = _decoder.decode(file.read())
    _keep(_descriptors(record), inheritable=False)
    return record


def _descriptors(record: Record) -> list[int]:
    """Those that the executed program keeps. EOF on its control pipe would end a child."""
    if isinstance(record, CanaryRecord):
        return _of_child(msgspec.structs.asdict(record))
    return [record.pidfile, *(fd for child in record.children for fd in _of_child(child))]


def _of_child(child: Mapping[str, Any]) -> list[int]:
    found = (child.get(name) for name in ("control", "report", "crash_file", "deadlines"))
    return [fd for fd in found if fd is not None]


def _keep(descriptors: Iterable[int], *, inheritable: bool) -> None:
    for fd in descriptors:
        os.set_inheritable(fd, inheritable)


def described(children: Iterable[ChildHandle]) -> list[Described]:
    """The children as values. Read their facts before."""
    return [_described(child) for child in children]


def revived(described: Described, slots: Mapping[str, Slot]) -> ChildHandle:
    """The child that ``described`` is about. It takes the slot of its name, if it was in a slot and
    the new configuration has that one. Else it has a slot of its own, which is not filled again."""
    slot = slots.get(described["name"]) if described["in_slot"] else None
    if slot is None:
        slot = Slot(described["name"], _capsule(described), clock_of=described.get("shard", ""))
    report = PipeReader[Fact](described["report"], facts)
    values = {name: value for name, value in described.items() if name in _names()}
    child = ChildHandle(slot=slot, pidfd=pidfd_of(described["pid"]), report=report, **values)
    child.told_queues = tuple(described["queues"])
    if described["in_slot"]:
        slot.child = child
    return child


def _described(child: ChildHandle) -> Described:
    """With what its slot knew of it: the new configuration may have other slots."""
    values = {name: getattr(child, name) for name in _names()}
    capsule = child.slot.capsule
    return {
        **msgspec.to_builtins(values),
        "report": child.report.fd,
        "name": child.name,
        "in_slot": child.slot.child is child,
        "queues": child.queues,
        "shard": child.shard,
        "concurrency": None if capsule is None else capsule.concurrency,
        "recycling": {} if capsule is None else msgspec.to_builtins(capsule.recycling),
    }


def _names() -> list[str]:
    return [field.name for field in fields(ChildHandle) if field.name not in _LIVE]


def _capsule(described: Described) -> Capsule | None:
    if described["concurrency"] is None:
        return None
    queues = tuple((name, 0) for name in described["queues"])
    # An older version of forkq has written no limits.
    limits = Recycling(**described.get("recycling", {}))
    name, shard = described["name"], described.get("shard", "")
    return Capsule(name, queues, described["concurrency"], recycling=limits, shard=shard)
