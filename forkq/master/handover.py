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
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import msgspec

from .. import __version__
from ..config.capsule import Capsule
from ..config.config import Config
from ..config.recycling import Recycling
from ..config.shards import server_of
from ..errors import ConfigError
from ..runtime.pipe import Fact, PipeReader, Serves, facts
from ..runtime.shared_files import SharedFiles
from .child_handle import ChildHandle, Ordered, Told, pidfd_of
from .slot import Slot

_VARIABLE: Final = "_FORKQ_RECORD"
_OTHER_VERSION: Final = (
    f"forkq {__version__} cannot take over from the version that runs: stop the tree and start it "
    "again"
)
_REMEDY: Final = "a rolling restart cannot change that; stop the tree and start it again"

# Counts up when a version of forkq cannot read the records of the one before, or when its children
# and those of the one before cannot have one master.
FORMAT: Final = 1

Fixed: TypeAlias = Mapping[str, str]


class RestartReport(msgspec.Struct):
    """The last rolling restart, for ``forkq restart --wait``. ``begun_at`` is monotonic; 0: there
    was none. ``reason``: why it was rolled back."""

    begun_at: float = 0.0
    state: Literal["none", "trying", "replacing", "done", "rolled back"] = "none"
    reason: str = ""


class CanaryRecord(msgspec.Struct, tag=True, kw_only=True):
    """For the child that tries the new code. ``control`` and ``report``: its ends of its pipes.
    ``capsule``: whose jobs it runs."""

    format: int
    fixed: Fixed
    name: str
    nonce: str
    control: int
    report: int
    files: SharedFiles
    quiet: bool
    capsule: str


class CapsuleRecord(msgspec.Struct):
    """What a child goes on with although the new configuration may not have its capsule."""

    name: str
    concurrency: int
    recycling: Recycling


class ChildRecord(msgspec.Struct, kw_only=True):
    """A child that has not been reaped. ``told`` is all that it has told, with the queues that it
    serves: the new configuration may give others to its slot. ``capsule``: None for a clock. The
    fields of ``ChildHandle`` have their names here, too. ``in_slot``: as in ``Slots``;
    ``rescued``: as in ``Deaths``; ``silent_since``: as in the rule ``Silence``."""

    name: str
    in_slot: bool
    pid: int
    control: int
    report: int
    files: SharedFiles
    identity: str
    born: float
    told: Told
    ordered: Ordered
    frozen: bool
    killed: bool
    rescued: bool
    sole: bool
    silent_since: float | None
    carries: dict[str, int]
    shard: str
    capsule: CapsuleRecord | None


class MasterRecord(msgspec.Struct, tag=True, kw_only=True):
    """For the master's next program: all state that crosses the exec. ``pidfile`` is the locked
    descriptor. ``leader`` is the pid of the child that leads; 0: none. ``again``: another rolling
    restart was asked for meanwhile."""

    format: int
    fixed: Fixed
    pidfile: int
    children: list[ChildRecord]
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
        "[forkq] processes": config.processes,
    }
    for shard in config.shards[1:]:
        values[f"[[redis.shards]] {shard.name}"] = repr(shard.place)
    return {key: sha256(value.encode()).hexdigest() for key, value in values.items()}


def check_format(record: Record) -> None:
    """Raises ConfigError if this version of forkq cannot take over from the running one."""
    if record.format != FORMAT:
        raise ConfigError(_OTHER_VERSION)


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
    """The record that the master left for this process; None if a user has started it. Raises
    ConfigError if another version of forkq has written it in another form."""
    number = environ.pop(_VARIABLE, "")
    if not number:
        return None
    with open(int(number), "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        content = file.read()
    try:
        record: Record = _decoder.decode(content)
    except msgspec.ValidationError:
        raise ConfigError(_OTHER_VERSION) from None
    _keep(_descriptors(record), inheritable=False)
    return record


def _descriptors(record: Record) -> list[int]:
    """The descriptors that the executed program keeps: EOF on its control pipe ends a child."""
    if isinstance(record, CanaryRecord):
        return _of_child(record)
    return [record.pidfile, *(fd for child in record.children for fd in _of_child(child))]


def _of_child(child: CanaryRecord | ChildRecord) -> list[int]:
    return [child.control, child.report, *child.files]


def _keep(descriptors: Iterable[int], *, inheritable: bool) -> None:
    for fd in descriptors:
        os.set_inheritable(fd, inheritable)


def record_of(
    child: ChildHandle, *, in_slot: bool, rescued: bool, silent_since: float | None
) -> ChildRecord:
    """The child as a value. Read its facts before."""
    capsule = child.slot.capsule
    serves = tuple(Serves(queue, child.shard) for queue in child.queues)
    return ChildRecord(
        name=child.name,
        in_slot=in_slot,
        pid=child.pid,
        control=child.control,
        report=child.report.fd,
        files=child.files,
        identity=child.identity,
        born=child.born,
        told=msgspec.structs.replace(child.told, serves=serves),
        ordered=child.ordered,
        frozen=child.frozen,
        killed=child.killed,
        rescued=rescued,
        sole=child.slot.sole,
        silent_since=silent_since,
        carries=child.carries,
        shard=child.shard,
        capsule=None if capsule is None else _recorded(capsule),
    )


def revived(record: ChildRecord, slots: Mapping[str, Slot]) -> ChildHandle:
    """The child that ``record`` is about. It is of the slot of its name, if it was in a slot and
    the new configuration has that one. Else it has a slot of its own, which is not filled again."""
    slot = slots.get(record.name) if record.in_slot else None
    if slot is None:
        slot = Slot(record.name, _capsule(record), sole=record.sole, clock_of=record.shard)
    return ChildHandle(
        slot=slot,
        pid=record.pid,
        pidfd=pidfd_of(record.pid),
        control=record.control,
        report=PipeReader[Fact](record.report, facts),
        files=record.files,
        identity=record.identity,
        carries=record.carries,
        born=record.born,
        told=record.told,
        ordered=record.ordered,
        frozen=record.frozen,
        killed=record.killed,
    )


def _recorded(capsule: Capsule) -> CapsuleRecord:
    return CapsuleRecord(capsule.name, capsule.concurrency, capsule.recycling)


def _capsule(record: ChildRecord) -> Capsule | None:
    found = record.capsule
    if found is None:
        return None
    queues = tuple((each.queue, 0) for each in record.told.serves)
    return Capsule(
        found.name, queues, found.concurrency, recycling=found.recycling, shard=record.shard
    )
