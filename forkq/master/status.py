"""The status file beside the pidfile: how the tree stands, for ``forkq status``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..times import now
from .handle import Child

_AT_MOST_EVERY = 0.2


class StatusFile:
    """Written when something changed, and not more often than five times a second.

    A file that cannot be written (its folder was cleaned away, the disk is full) is a pity, said
    once: it must not cost the children their master.
    """

    def __init__(self, path: Path, about: dict[str, Any], log: Any) -> None:
        self._path = path
        self._log = log
        self._complained = False
        self._about = {**about, "pid": os.getpid(), "started_at": now()}
        self._written = b""
        self._next = 0.0
        self._behind = False

    @property
    def due(self) -> float | None:
        """When news that came too soon after the last is to be written (monotonic)."""
        return self._next if self._behind else None

    def write(self, state: str, children: Iterable[Child], *, ready: bool) -> None:
        """Writes the file if there is news and it is time; else the news is ``due``."""
        content = msgspec.json.encode(
            {
                **self._about,
                "state": state,
                "ready": ready,
                "children": [_described(child) for child in children],
            }
        )
        self._behind = content != self._written and time.monotonic() < self._next
        if self._behind or content == self._written:
            return
        self._next = time.monotonic() + _AT_MOST_EVERY
        try:
            self._replace(content)
        except OSError as error:
            if not self._complained:
                self._complained = True
                self._log.warning("cannot write the status file", error=str(error))
        else:
            self._written = content

    def _replace(self, content: bytes) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        try:
            fresh.touch(mode=0o600)
            fresh.write_bytes(content)
            fresh.replace(self._path)
        except OSError:
            with suppress(OSError):
                fresh.unlink()
            raise

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
