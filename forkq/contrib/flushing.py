"""Sends what a child has not reported yet, before it ends, within a bounded time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

_log: Final = logging.getLogger(__name__)


def flush_within(limit: float, flushes: Iterable[Callable[[], object]]) -> bool:
    """Calls each of ``flushes`` in its own thread, and waits for all of them for ``limit``
    seconds. Returns whether they have ended: a collector may be away, and a stop waits for no
    collector."""
    threads = [threading.Thread(target=_call, args=(flush,), daemon=True) for flush in flushes]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if done := not any(thread.is_alive() for thread in threads):
        return done
    _log.warning("not all telemetry was sent within %g s: is its collector away?", limit)
    return False


def _call(flush: Callable[[], object]) -> None:
    try:
        flush()
    except Exception:  # noqa: BLE001 - an exporter may raise anything
        _log.exception("telemetry was not sent")
