"""The messages between master and child: orders on the control pipe, facts on the report pipe.

Each message is a length of four bytes and a msgpack-encoded struct. Together they are far below
PIPE_BUF, so a write is atomic, and neither end ever blocks. EOF means that the other side is gone.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

State: TypeAlias = Literal["booting", "running", "quiet", "retiring", "stopping"]


class Quiet(msgspec.Struct, frozen=True, tag=True):
    """Order: fetch no more jobs. Running jobs go on."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Order: end by ``deadline``, in seconds of the monotonic clock, which all processes share.

    None is a retirement: fetch no more jobs, and end when the last one has, without a time limit.
    """

    deadline: float | None


class DumpStacks(msgspec.Struct, frozen=True, tag=True):
    """Order: log the stack of every thread, with the job it runs."""


class Lead(msgspec.Struct, frozen=True, tag=True):
    """Order: be the leader ``until`` then (monotonic); 0 ends it at once."""

    until: float


class RunSuspects(msgspec.Struct, frozen=True, tag=True):
    """Order to an ordinary child: run suspects, one at a time and with nothing beside it, since no
    solo child can boot. ``on``: False ends it."""

    on: bool


class HoldClasses(msgspec.Struct, frozen=True, tag=True):
    """Order: the jobs of these classes run alone, those of all others do not. An ordinary child
    moves them to the list of suspects; a solo child releases a class when one ended well."""

    names: tuple[str, ...]


class SendBeat(msgspec.Struct, frozen=True, tag=True):
    """Order: send a Beat now, with ``asked_at`` (monotonic) in it."""

    asked_at: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Fact: the app is loaded and every thread runs. From now on the child may fetch."""

    identity: str


class Serves(msgspec.Struct, frozen=True, tag=True):
    """Fact: the child will fetch from this queue of this shard. Sent before ``Ready``, and only if
    the master may not know it."""

    queue: str
    shard: str = ""


class Unbootable(msgspec.Struct, frozen=True, tag=True):
    """Fact: the child cannot boot, and why. ``lasting``: the next one could not either."""

    reason: str
    lasting: bool = False


class Exiting(msgspec.Struct, frozen=True, tag=True):
    """Fact: the child ends in good order. An exit code does not prove that: any job can exit.
    ``leases``: how many Redis did not take back, as far as the child knows."""

    leases: int = 0


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Fact: the child's state and counts. Sent when they have changed, at most once in each turn of
    the main loop; else as a sign of life, every ``Config.beat_every`` seconds. ``redis_at``: when
    Redis last answered its heartbeat, or the clock (monotonic); 0 if it never has. ``asked_at`` is
    that of the last SendBeat that it has obeyed. ``redis_lost``: why it has lost Redis, if it has.
    ``begun``: the highest sequence number of a lease whose job had begun before ``busy`` was
    counted. ``refused``: what Redis refuses to it, in words; ``gets_jobs``: that does not stop its
    jobs. ``long_at``: when the suspect that it runs alone counts as one that runs for long
    (monotonic); 0: it runs none. ``wants_sole``: it has returned a suspect beside which no other
    one of the tree may run."""

    busy: int
    state: State
    processed: int
    failed: int
    redis_at: float = 0.0
    asked_at: float = 0.0
    redis_lost: str = ""
    begun: int = 0
    refused: str = ""
    gets_jobs: bool = True
    long_at: float = 0.0
    wants_sole: bool = False


class LeaseHeld(msgspec.Struct, frozen=True, tag=True):
    """Fact: the clock holds the leader's lease ``until`` then (monotonic); 0: no more."""

    until: float


class SuspectsWait(msgspec.Struct, frozen=True, tag=True):
    """Fact of the clock: suspects wait in queues of these capsules. Sent when that has changed."""

    capsules: tuple[str, ...]


class ClassesHeld(msgspec.Struct, frozen=True, tag=True):
    """Fact of the clock: these classes are held. Sent when that has changed."""

    names: tuple[str, ...]


Order = Quiet | Stop | DumpStacks | Lead | SendBeat | RunSuspects | HoldClasses
Fact = Ready | Serves | Unbootable | Exiting | Beat | LeaseHeld | SuspectsWait | ClassesHeld
Message = TypeVar("Message")

_LENGTH = struct.Struct("!I")
_encode = msgspec.msgpack.Encoder().encode
orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
facts: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)

_LONGEST = 65_536
_REASON_LIMIT = 2000  # bytes
_NAMES_LIMIT = 3000  # bytes
_LONGEST_HEADER = 5  # bytes that msgpack puts before a text


def send(fd: int, message: Order | Fact) -> bool:
    """Writes ``message``. False if the other side is gone, or if its pipe is full."""
    body = _encode(message)
    try:
        os.write(fd, _LENGTH.pack(len(body)) + body)
    except (BrokenPipeError, BlockingIOError):
        return False
    return True


def fitting(names: Iterable[str]) -> tuple[str, ...]:
    """The first of ``names``, as many as fit into a message."""
    left, found = _NAMES_LIMIT, []
    for name in names:
        left -= len(name.encode()) + _LONGEST_HEADER
        if left < 0:
            break
        found.append(name)
    return tuple(found)


def make_unbootable(reason: str, *, lasting: bool = False) -> Unbootable:
    """An Unbootable that fits the pipe: only the end of a long reason is kept, as valid UTF-8."""
    return Unbootable(end_of(reason, _REASON_LIMIT), lasting)  # the error itself is at the end


def end_of(text: str, limit: int) -> str:
    """The last ``limit`` bytes of ``text`` at most, as valid UTF-8."""
    return text.encode("utf-8", "backslashreplace")[-limit:].decode("utf-8", "ignore")


class PipeReader(Generic[Message]):
    """Reads messages from a non-blocking pipe. ``eof``: the other side has closed it. ``garbled``:
    the pipe contains bytes that are no message (a job may write to any descriptor), so no further
    message can be read."""

    def __init__(self, fd: int, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.eof = False
        self.garbled = False
        self._decoder = decoder
        self._buffer = bytearray()

    def fileno(self) -> int:
        """The descriptor of the pipe, for selectors."""
        return self.fd

    @property
    def ended(self) -> bool:
        """Whether no further message can come."""
        return self.eof or self.garbled

    def read(self) -> list[Message]:
        """Every complete message that has arrived."""
        self._fill()
        messages: list[Message] = []
        try:
            while not self.garbled and len(self._buffer) >= _LENGTH.size:
                end = _LENGTH.size + _checked(_LENGTH.unpack_from(self._buffer)[0])
                if len(self._buffer) < end:
                    break
                messages.append(self._decoder.decode(self._buffer[_LENGTH.size : end]))
                del self._buffer[:end]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.garbled = True
        if self.garbled:
            self._buffer.clear()
        return messages

    def _fill(self) -> None:
        # A writer that never pauses must not keep the reader here.
        while not self.eof and len(self._buffer) < 2 * _LONGEST:
            try:
                chunk = os.read(self.fd, 65536)
            except BlockingIOError:
                return
            self.eof = not chunk
            self._buffer += chunk


def _checked(length: int) -> int:
    if length > _LONGEST:
        raise msgspec.DecodeError("longer than any message")
    return length
