"""A small TCP proxy, for faults of a network.

It loses replies: the server has done its work, and the client does not learn of it. Or it lets
nothing pass at all, as a network does that is cut in two. Or each reply is late.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Proxy:
    """Forwards 127.0.0.1:`port` to `target`, a port of the same host.

    After `cut(token, times)` the next `times` requests that contain `token` still reach the server,
    up to the token at least, but the replies to them are thrown away and the connection is closed.
    `target` may be changed; it holds for connections made from then on.

    Between `cut_off` and `restore` connections stay open and new ones are taken, and nothing
    passes. What was sent meanwhile arrives late, as TCP would have it, even if its sender has
    given that connection up.

    `delay` is how many seconds later each reply arrives. While `halves` is set, of each reply only
    the first half arrives, and the connection is closed. What has `swallows` in it never arrives.
    """

    def __init__(self, target: int, *, delay: float = 0) -> None:
        self.target = target
        self.delay = delay
        self.halves = False
        self.swallows = b""
        self.cuts = 0
        self._token = b""
        self._left = 0
        self._lock = threading.Lock()
        self._passable = threading.Event()
        self._passable.set()
        self._open: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where clients reach the server through this proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self, token: bytes, times: int = 1) -> None:
        """Loses the replies to the next requests that contain `token`."""
        with self._lock:
            self._token, self._left, self.cuts = token, times, 0

    def cut_off(self) -> None:
        """Lets nothing pass any more, in either direction."""
        self._passable.clear()

    def restore(self) -> None:
        """Lets everything pass again, what was held up first."""
        self._passable.set()

    def hang_up(self) -> int:
        """Ends all connections, and returns how many there were. New ones are taken."""
        ends, self._open = [end for end in self._open if end.fileno() >= 0], []
        for end in ends:
            _hang_up(end)
        return len(ends) // 2

    def say(self, data: bytes) -> None:
        """Sends this to all clients, as a server or a proxy of one does that was not asked."""
        for client in self._open[::2]:
            with contextlib.suppress(OSError):  # closed since
                client.sendall(data)

    def close(self) -> None:
        """Closes everything, and waits for the last thread."""
        self._passable.set()
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join(5)
        for end in self._open:
            _hang_up(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:  # the door was closed
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 2)
            except OSError:  # the server is away: so are we
                client.close()
                continue
            server.settimeout(None)  # that was for the connect: an idle connection stays open
            self._open += (client, server)
            deaf = threading.Event()
            sending = threading.Lock()
            for pump in (self._requests, self._replies):
                threading.Thread(
                    target=pump, args=[client, server, deaf, sending], daemon=True
                ).start()

    def _requests(
        self,
        client: socket.socket,
        server: socket.socket,
        deaf: threading.Event,
        sending: threading.Lock,
    ) -> None:
        end = b""  # of what came before: a token may come in two parts
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                self._passable.wait()
                with sending:
                    if self._loses(end + data):
                        deaf.set()
                    server.sendall(data)
                end = data[1 - len(self._token) :] if self._token else b""
        _end_requests(server)

    def _replies(
        self,
        client: socket.socket,
        server: socket.socket,
        deaf: threading.Event,
        sending: threading.Lock,
    ) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(1 << 16)) and not deaf.is_set():
                self._passable.wait()
                if self.swallows and self.swallows in data:
                    continue
                if self.delay:
                    time.sleep(self.delay)
                if self.halves:
                    client.sendall(data[: len(data) // 2])
                    break
                client.sendall(data)
        _hang_up(client)
        with sending:  # a reply to an earlier request: the one with the token still gets there
            _end_requests(server)
        with contextlib.suppress(OSError):
            while server.recv(1 << 16):
                pass
        _hang_up(server)

    def _loses(self, data: bytes) -> bool:
        with self._lock:
            if not self._left or self._token not in data:
                return False
            self._left -= 1
            self.cuts += 1
            return True


def _end_requests(server: socket.socket) -> None:
    """The server still carries out what it was sent. If its replies were not read, the kernel would
    throw away what it has not read."""
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_WR)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
