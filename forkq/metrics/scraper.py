"""The figures of one Redis, asked for once for all who want them at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from .. import default_client
from ..client import Client
from ..errors import ForkqError
from ..store.connection import RedisError
from ..wire.printable import printable
from .collect import Collector
from .families import UP
from .samples import Samples

# Seconds that one scrape may take. Prometheus waits for 10 by default.
_LONGEST: Final = 5.0
# How many seconds long a second scraper gets the figures of the first one.
_FRESH: Final = 1.0


class Scraper:
    """Thread-safe: one scrape at a time asks Redis. ``client`` makes the client; it is called for
    each scrape and may raise ForkqError."""

    def __init__(self, client: Callable[[], Client] = default_client.default) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._samples = Samples()
        self._fresh_until = 0.0
        self.error = ""

    def current(self) -> Samples:
        """The figures, at most a second old. It never raises because of Redis: then ``forkq_up`` is
        0, there are no other figures, and ``error`` says why."""
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._samples = self._scrape()
                self._fresh_until = time.monotonic() + _FRESH
            return self._samples

    def check(self) -> str:
        """Why Redis cannot be asked now; "" if it can: one PING."""
        return self._why_not(lambda connection: connection.call("PING"))

    def _scrape(self) -> Samples:
        begun = time.monotonic()
        found = Samples()

        def collect(connection: Any) -> None:
            nonlocal found
            keys = self._client().keys
            found = Collector(connection, keys, begun + _LONGEST).collect()

        self.error = self._why_not(collect)
        samples = Samples() if self.error else found
        samples.add(UP.name, int(not self.error))
        samples.add("forkq_scrape_duration_seconds", time.monotonic() - begun)
        return samples

    def _why_not(self, ask: Callable[[Any], object]) -> str:
        try:
            with self._client().connection() as connection:
                ask(connection)
        except (ForkqError, RedisError) as error:
            return printable(str(error)) or type(error).__name__
        return ""
