"""The status file beside the pidfile: how the tree stands, for ``forkq status``."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ..config.config import Config
from ..config.private_files import replace_own
from ..wire.times import now
from .child_handle import ChildHandle

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_AT_MOST_EVERY = 0.2


class StatusFile:
    """Written when something changed, and not more often than five times a second.

    It is also written when nothing changed, every ``config.beat_every`` seconds, with the time:
    that is the proof that the loop goes on. A file that cannot be written (its folder was cleaned
    away, the disk is full) is a pity, said once: it must not cost the children their master.
    """

    def __init__(self, config: Config, log: FilteringBoundLogger) -> None:
        self._path = config.status_file
        self._beat_every = config.beat_every
        self._log = log
        self._complained = False
        self._about = {
            "tag": config.tag,
            "timeout": config.timeout,
            "silent_after": config.silent_after,
            "pid": os.getpid(),
            "started_at": now(),
        }
        self._written: dict[str, Any] = {}
        self._next = 0.0
        self._next_beat = 0.0
        self._behind = False

    @property
    def due(self) -> float:
        """When it is to be written again (monotonic): with news that came too soon after the last,
        or with nothing but the time."""
        return self._next if self._behind else self._next_beat

    def write(self, state: str, children: Collection[ChildHandle], *, ready: bool) -> None:
        """Writes the file if there is news and it is time; else the news is ``due``."""
        news = {"state": state, "ready": ready, "children": [_described(c) for c in children]}
        at = time.monotonic()
        changed = news != self._written
        self._behind = changed and at < self._next
        if self._behind or not (changed or at >= self._next_beat):
            return
        self._next, self._next_beat = at + _AT_MOST_EVERY, at + self._beat_every
        try:
            content = msgspec.json.encode({**self._about, **_stamped(news, children, at)})
            replace_own(self._path, content)
        except OSError as error:
            if not self._complained:
                self._complained = True
                self._log.warning("cannot write the status file", error=str(error))
        else:
            self._written = news

    def remove(self) -> None:
        """The tree is gone."""
        self._path.unlink(missing_ok=True)


def _described(child: ChildHandle) -> dict[str, Any]:
    capsule = child.slot.capsule
    return {
        "name": child.name,
        "pid": child.pid,
        "state": child.state if child.silent_since is None else "silent",
        "busy": child.busy,
        "concurrency": capsule.concurrency if capsule else 0,
        "queues": list(child.slot.queues),
        "processed": child.processed,
        "failed": child.failed,
        "respawns": child.slot.respawns,
    }


def _stamped(news: dict[str, Any], children: Iterable[ChildHandle], at: float) -> dict[str, Any]:
    """``news`` with the last signs of life (monotonic): the loop's own, and each child's."""
    beats = [
        {**described, "beat_at": child.heard_at}
        for described, child in zip(news["children"], children, strict=True)
    ]
    return {**news, "beat_at": at, "children": beats}
