"""How a child that waits is woken, and answers at once.

The server reports a change of a registered key. To read that report first would delay the job. So
it stays unread, if it can: the reply to the fetch comes after it and passes it on. Such a fetch
registers no keys, since it is not known yet which of them changed. It is made before the wait, when
there is time for it (docs/decisions/019).
"""

from __future__ import annotations

import time

from ...store.connection import RedisConnection, pack
from ...wire.times import steady
from .fetch_request import FetchKind, FetchRequest
from .queue_selector import QueueSelector


class WakeUp:
    """The fetch connection's. ``has_report``: a report of a change is unread."""

    def __init__(
        self, connection: RedisConnection, selector: QueueSelector, kind: FetchKind
    ) -> None:
        self.has_report = False
        self.packed = b""  # the fetch that ``take`` returns, ready to be sent
        self._request: FetchRequest | None = None
        self._connection = connection
        self._selector = selector
        self._kind = kind

    def wait(self, seconds: float, wake: int, *, busy: bool) -> bool:
        """Waits until Redis says that a key changed, a queue has a token again, or the descriptor
        ``wake`` is readable. Returns whether it was not the descriptor. ``busy``: a fetch is under
        way, and what comes may be its reply, which ``receive`` reads."""
        self.has_report = False
        until_token = max(0.0, self._selector.due - time.monotonic())
        readable = self._connection.wait(min(seconds, until_token), wake)
        if readable and not busy:
            # Patterns and long lists offer only queues of which a change was read.
            self.has_report = not self._selector.dynamic and self._connection.has_report()
            if not self.has_report:
                self._connection.read_changes()
        return readable or self._selector.due <= time.monotonic()

    def read(self) -> None:
        """Reads what ``wait`` has left unread."""
        if self.has_report:
            self.forget()
            self._connection.read_changes()

    def forget(self) -> None:
        """The next reply passes on what is unread, or the connection is closed."""
        self.has_report, self._request = False, None

    def prepare(self, first: int, want: int) -> None:
        """Makes a fetch for ``want`` jobs that neither acknowledges jobs nor registers keys."""
        self._request = None
        if self._selector.dynamic or self._selector.counts or not want:
            return
        offer = self._selector.offer()
        self._request = FetchRequest(first, want, want, 0.0, 0.0, (), (), offer, None)
        [command] = self._request.commands(self._kind)
        self.packed = pack([command])

    def take(self, first: int, want: int) -> FetchRequest | None:
        """That fetch, to be sent now. None if no report woke this child, or if it is not the right
        one any more."""
        request = self._request if self.has_report else None
        if request is None or (request.first, request.want) != (first, want):
            return None
        self.forget()
        request.sent_at, request.asked = time.monotonic(), steady()
        return request
