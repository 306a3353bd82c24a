"""What master and child tell each other: orders down one pipe, facts up the other.

Each message is one msgpack-encoded struct behind a four-byte length. Both are far below PIPE_BUF,
so a write is atomic, and both ends can be read without ever blocking. EOF is a message too: the
other side is gone.
"""

from __future__ import annotations

import os
import struct
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

State: TypeAlias = Literal["booting", "running", "quiet", "retiring", "stopping"]


class Quiet(msgspec.Struct, frozen=True, tag=True):
    """Order: fetch nothing more; running jobs go on."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Order: end by ``deadline``, in seconds of the monotonic clock, which all processes share.

    None is a retirement: quiet, and end when the last job has, however long that takes.
    """

    deadline: float | None


class DumpStacks(msgspec.Struct, frozen=True, tag=True):
    """Order: log the stack of every thread, with the job it runs."""


class Lead(msgspec.Struct, frozen=True, tag=True):
    """Order: lead in this host's name until then (monotonic); 0 ends it."""

    until: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Fact: the app is loaded and every thread runs; from here on the child may fetch."""

    identity: str


class Unbootable(msgspec.Struct, frozen=True, tag=True):
    """Fact: this child cannot start, and why."""

    reason: str


class Exiting(msgspec.Struct, frozen=True, tag=True):
    """Fact: the child ends in good order. An exit code alone says nothing: any job can exit."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Fact: how the child stands. Sent when that has changed, once a tick at most; and as a sign
    of life when nothing has changed for a while (``Config.beat_every``)."""

    busy: int
    state: State
    processed: int
    failed: int


class LeaseHeld(msgspec.Struct, frozen=True, tag=True):
    """Fact, the clock's: it holds the leader's lease until then (monotonic); 0: no more."""

    until: float


Order = Quiet | Stop | DumpStacks | Lead
Fact = Ready | Unbootable | Exiting | Beat | LeaseHeld
Message = TypeVar("Message")

_LENGTH = struct.Struct("!I")
_encode = msgspec.msgpack.Encoder().encode
orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
facts: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)

_LONGEST = 65_536
_REASON_LIMIT = 2000  # bytes


def send(fd: int, message: Order | Fact) -> bool:
    """Writes ``message``; False if the other side is gone or has not read for a long time."""
    body = _encode(message)
    try:
        os.write(fd, _LENGTH.pack(len(body)) + body)
    except (BrokenPipeError, BlockingIOError):
        return False
    return True


def unbootable(reason: str) -> Unbootable:
    """An Unbootable that fits the pipe whole, whatever characters the reason is made of."""
    text = reason.encode("utf-8", "backslashreplace")[-_REASON_LIMIT:]  # the error stands last
    return Unbootable(text.decode("utf-8", "ignore"))


class Reader(Generic[Message]):
    """Takes messages off a non-blocking pipe. ``eof``: the other side has closed it. ``garbled``:
    it has written what is no message (a job may write to any descriptor), so nothing more can be
    understood."""

    def __init__(self, fd: int, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.eof = False
        self.garbled = False
        self._decoder = decoder
        self._buffer = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self.fd

    @property
    def over(self) -> bool:
        """Whether nothing more will be understood."""
        return self.eof or self.garbled

    def read(self) -> list[Message]:
        """Every whole message that has arrived."""
        self._fill()
        messages: list[Message] = []
        try:
            while not self.garbled and len(self._buffer) >= _LENGTH.size:
                end = _LENGTH.size + _checked(_LENGTH.unpack_from(self._buffer)[0])
                if len(self._buffer) < end:
                    break
                messages.append(self._decoder.decode(self._buffer[_LENGTH.size : end]))
                del self._buffer[:end]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.garbled = True
        if self.garbled:
            self._buffer.clear()
        return messages

    def _fill(self) -> None:
        while not self.eof:
            try:
                chunk = os.read(self.fd, 65536)
            except BlockingIOError:
                return
            self.eof = not chunk
            self._buffer += chunk


def _checked(length: int) -> int:
    if length > _LONGEST:
        raise msgspec.DecodeError("no message is as long as this")
    return length
