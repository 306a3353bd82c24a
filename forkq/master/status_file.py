"""The status file beside the pidfile: the state of the tree, for ``forkq status``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..config.config import Config
from ..config.private_files import overwrite_own, replace_own, show_life
from ..errors import ConfigError
from ..runtime.log import LogOnce
from ..wire.times import now
from .child_handle import ChildHandle
from .handover import RestartReport

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds between two writes at least.
_SHORTEST_PAUSE: Final = 0.2


class StatusFile:
    """Written when the state has changed, with a pause between two writes.

    It is also written every ``config.beat_every`` seconds when nothing has changed, with the time:
    that proves that the master's loop goes on. So does the time of the pidfile, which needs no
    space. A file that cannot be replaced (the disk is full) is written in place, if its content
    fits; the failure is logged once, and the master goes on.
    """

    def __init__(self, config: Config, log: FilteringBoundLogger) -> None:
        self._path = config.status_file
        self._pidfile = config.pidfile
        self._beat_every = config.beat_every
        self._log_once = LogOnce(log)
        self._constants = {
            "tag": config.tag,
            "source": str(config.source.resolve()) if config.source else "",
            "timeout": config.timeout,
            "silent_after": config.silent_after,
            "pid": os.getpid(),
            "started_at": now(),
        }
        self._written: dict[str, Any] = {}
        self._next_write = self._next_beat = 0.0
        self._is_behind = False

    @property
    def due(self) -> float:
        """When it must be written again (monotonic): with a change that came too soon after the
        last one, or with the time alone."""
        return self._next_write if self._is_behind else self._next_beat

    def write(
        self,
        state: str,
        children: Iterable[ChildHandle],
        *,
        ready: bool,
        missing: list[str],
        restart: RestartReport | None = None,
        reported_at: float = 0.0,
    ) -> None:
        """Writes the file if something has changed or the time is due. A change that comes too soon
        is written by a later call, at ``due``; a new ``reported_at`` (``FreshCounts``) at once.
        ``missing``: why slots have no child."""
        handles = list(children)
        described = [_described(child) for child in handles]
        content = {
            "state": state,
            "ready": ready,
            "missing": missing,
            "reported_at": reported_at,
            "restart": msgspec.structs.asdict(restart or RestartReport()),
            "children": described,
        }
        at = time.monotonic()
        changed = content != self._written
        urgent = reported_at != self._written.get("reported_at", 0.0)
        self._is_behind = changed and at < self._next_write and not urgent
        if not self._is_behind and (changed or at >= self._next_beat):
            self._next_write, self._next_beat = at + _SHORTEST_PAUSE, at + self._beat_every
            self._replace(content, handles, at)

    def _replace(self, content: dict[str, Any], children: list[ChildHandle], at: float) -> None:
        show_life(self._pidfile)
        stamped = msgspec.json.encode({**self._constants, **_stamped(content, children, at)})
        try:
            replace_own(self._path, stamped)
        except OSError as error:
            self._log_once.warning("write", "cannot write the status file", error=str(error))
            with suppress(OSError, ConfigError):
                if overwrite_own(self._path, stamped):
                    self._written = content
        else:
            self._log_once.over("write")
            self._written = content

    def remove(self) -> None:
        """The tree is gone."""
        self._path.unlink(missing_ok=True)


def _described(child: ChildHandle) -> dict[str, Any]:
    capsule = child.slot.capsule
    return {
        "name": child.name,
        "pid": child.pid,
        "identity": child.identity,
        "state": _state(child),
        "busy": child.beat.busy if child.silent_since is None else child.running,
        "concurrency": capsule.concurrency if capsule else 0,
        "queues": list(child.queues),
        "processed": child.beat.processed,
        "failed": child.beat.failed,
        "respawns": child.slot.respawns,
        "redis_lost": bool(child.beat.redis_lost),
        "redis_lost_because": child.beat.redis_lost,
        "refused": child.beat.refused,
    }


def _state(child: ChildHandle) -> str:
    if child.silent_since is not None:
        return "silent"
    return "cut off" if child.cut_off_for else child.beat.state


def _stamped(content: dict[str, Any], children: list[ChildHandle], at: float) -> dict[str, Any]:
    """``content`` with the latest signs of life (monotonic) of the master and of each child, and
    the memory of each child in bytes. Those change all the time; they alone make no new file."""
    latest = [
        {
            **described,
            "beat_at": child.told.heard_at,
            "memory": child.memory._asdict() if child.memory else None,
        }
        for described, child in zip(content["children"], children, strict=True)
    ]
    return {**content, "beat_at": at, "children": latest}
