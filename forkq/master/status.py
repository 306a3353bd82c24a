"""The status file: how the tree stands, for ``forkq status``. Beside the pidfile, replaced whole."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..times import now
from .handle import Child

_AT_MOST_EVERY = 0.2


class StatusFile:
    """Written when something changed, and not more often than five times a second."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        self._about = {**about, "pid": os.getpid(), "started_at": now()}
        self._written = b""
        self._next = 0.0

    def write(self, state: str, children: Iterable[Child], *, ready: bool) -> bool:
        """Writes the file if it is time and there is news. False if there is news for later."""
        content = msgspec.json.encode(
            {
                **self._about,
                "state": state,
                "ready": ready,
                "children": [_described(child) for child in children],
            }
        )
        if content == self._written:
            return True
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _AT_MOST_EVERY
        self._written = content
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(content)
        fresh.replace(self._path)
        return True

    def remove(self) -> None:
        """The tree is gone."""
        self._path.unlink(missing_ok=True)


def _described(child: Child) -> dict[str, Any]:
    capsule = child.slot.capsule
    return {
        "name": child.name,
        "pid": child.pid,
        "state": child.state,
        "busy": child.busy,
        "concurrency": capsule.concurrency if capsule else 0,
        "queues": list(child.slot.queues),
        "processed": child.processed,
        "failed": child.failed,
        "respawns": child.slot.respawns,
    }
