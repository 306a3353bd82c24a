"""How the master shows the state of the tree: in the title of its process, to systemd, and in the
status file beside the pidfile, for ``forkq status``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import msgspec
from setproctitle import setproctitle

from ..config.config import Config
from ..config.private_files import overwrite_own, replace_own, show_life
from ..errors import ConfigError
from ..runtime.log import LogOnce, report_dropped_lines
from ..runtime.memory import Memory
from ..wire.times import now
from .child_handle import ChildHandle
from .children import Children
from .handover import RestartReport
from .pidfile import TITLE
from .recycling import MemoryMeter
from .systemd import SystemdNotifier
from .unresponsive import CutOff, Silence

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds between two writes at least.
_SHORTEST_PAUSE: Final = 0.2


class ShownRestart(Protocol):
    """A restart as it is shown: of a tree, or of one process."""

    report: RestartReport

    @property
    def under_way(self) -> bool:
        """Whether it has begun, and has not ended."""


class SeenChild(NamedTuple):
    """A child with what the rules of health know of it: ``trouble`` is "" if it is well."""

    child: ChildHandle
    trouble: Literal["", "silent", "cut off"] = ""
    memory: Memory | None = None


class Conditions(NamedTuple):
    """The rules of health that know what is shown of a child."""

    silence: Silence
    cut_off: CutOff
    meter: MemoryMeter

    @classmethod
    def begin(cls, silent_after: float) -> Conditions:
        """The conditions of a master that knows no child yet. ``silent_after`` is in seconds."""
        silence = Silence(silent_after)
        return cls(silence, CutOff(silent_after, silence), MemoryMeter())

    def of(self, child: ChildHandle) -> SeenChild:
        """What is wrong with ``child``, and its memory, as far as the rules know."""
        memory = self.meter.memory(child)
        if self.silence.has(child):
            return SeenChild(child, "silent", memory)
        return SeenChild(child, "cut off" if self.cut_off.seconds(child) else "", memory)


class Display:
    """Shows the state in each turn of the master's loop."""

    def __init__(
        self,
        config: Config,
        children: Children,
        conditions: Conditions,
        notifier: SystemdNotifier,
        log: FilteringBoundLogger,
    ) -> None:
        self._tag = f"[{config.tag}] " if config.tag else ""
        self._children = children
        self._conditions = conditions
        self._notifier = notifier
        self._log = log
        self._file = StatusFile(config, log)
        self._was_announced = self._was_logged = False

    @property
    def due(self) -> float:
        """When the status file must be written again (monotonic)."""
        return self._file.due

    def inherit(self) -> None:
        """Notes that the program before this one has announced that the tree is ready."""
        self._was_announced = self._was_logged = True

    def show(
        self, restart: ShownRestart, *, stopping: bool, quiet: bool, reported_at: float
    ) -> None:
        """Shows what has changed."""
        summary = self._summary(self._state(stopping=stopping, quiet=quiet))
        setproctitle(f"{TITLE} {self._tag}{summary}")
        self._notify_systemd(summary, stopping=stopping, restarting=restart.under_way)
        self._file.write(
            self._state(stopping=stopping, quiet=quiet),
            [self._conditions.of(child) for child in self._children],
            ready=not (quiet or stopping) and self._takes_jobs(),
            missing=list(self._children.slots.missing.values()),
            restart=restart.report,
            reported_at=reported_at,
        )
        report_dropped_lines()

    def measure(self, child: ChildHandle) -> None:
        """Looks at the memory of ``child``, if that is due: no rule of health asks for it."""
        self._conditions.meter.measure_next([child])

    def remove(self) -> None:
        """Removes the file: the tree is gone."""
        self._file.remove()

    def _notify_systemd(self, summary: str, *, stopping: bool, restarting: bool) -> None:
        self._notifier.ping()
        if not stopping:
            if self._children.slots.were_ready and not restarting:
                self._announce_ready(summary)
            else:
                self._notifier.booting()
        self._notifier.status(summary)

    def _announce_ready(self, summary: str) -> None:
        self._was_announced = True
        self._notifier.ready(summary)
        if not self._was_logged and (lost := self._lost_redis()) is not None:
            self._was_logged = True
            self._log_ready(sum(lost), len(lost))

    def _lost_redis(self) -> list[bool] | None:
        """Whether each child in a slot that runs jobs has lost Redis. None as long as one of them
        has not said so, and has had no answer either."""
        slots = self._children.slots
        found = [slots.child(slot) for slot in slots if slot.capsule]
        if any(one is None or not (one.beat.redis_at or one.beat.redis_lost) for one in found):
            return None
        return [bool(one and one.beat.redis_lost) for one in found]

    def _log_ready(self, lost: int, children: int) -> None:
        """Logs that the tree is ready, which does not ask Redis. The line comes when each child
        knows whether Redis answers it: a tree without Redis runs no jobs."""
        slots = len(list(self._children.slots))
        if lost:
            problem = f"lost by {lost} of {children} children: they run no job until it is back"
            self._log.warning("ready", children=slots, redis=problem)
        else:
            self._log.info("ready", children=slots)

    def _takes_jobs(self) -> bool:
        """Whether every slot has a child that takes jobs, as far as the master knows."""
        hang = any(self._conditions.silence.has(child) for child in self._children)
        gets_jobs = all(child.beat.gets_jobs for child in self._children)
        return self._children.slots.all_ready and not hang and gets_jobs

    def _state(self, *, stopping: bool, quiet: bool) -> str:
        if stopping:
            return "stopping"
        if quiet:
            return "quiet"
        if self._children.slots.were_ready and self._children.slots.missing:
            return "degraded"
        return "running" if self._was_announced else "booting"

    def _summary(self, state: str) -> str:
        """One line: how many children, how many of their processors are busy, what is wrong."""
        capsules = [child.slot.capsule for child in self._children if child.slot.capsule]
        processors = sum(capsule.concurrency for capsule in capsules)
        busy = sum(child.beat.busy for child in self._children)
        names = [child.name for child in self._children if self._conditions.silence.has(child)]
        silent = f", silent: {' '.join(names)}" if names else ""
        counts = f"{len(capsules)} children [{busy} of {processors} busy]"
        return f"{counts}{silent}{self._note(state)}"

    def _note(self, state: str) -> str:
        if state in ("degraded", "booting") and (missing := self._children.slots.missing):
            return f" ({state}: {', '.join(missing)} cannot boot)"
        refused = (child.beat.refused for child in self._children if child.beat.refused)
        if state == "running" and (what := next(refused, "")):
            return f" ({what})"
        return "" if state == "running" else f" ({state})"


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
        children: Iterable[SeenChild],
        *,
        ready: bool,
        missing: list[str],
        restart: RestartReport | None = None,
        reported_at: float = 0.0,
    ) -> None:
        """Writes the file if something has changed or the time is due. A change that comes too soon
        is written by a later call, at ``due``; a new ``reported_at`` (``FreshCounts``) at once.
        ``missing``: why slots have no child."""
        seen = list(children)
        described = [_described(child) for child in seen]
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
            self._replace(content, seen, at)

    def _replace(self, content: dict[str, Any], children: list[SeenChild], at: float) -> None:
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
        """Removes the file: the tree is gone."""
        self._path.unlink(missing_ok=True)


def _described(seen: SeenChild) -> dict[str, Any]:
    child = seen.child
    capsule = child.slot.capsule
    return {
        "name": child.name,
        "pid": child.pid,
        "identity": child.identity,
        "state": seen.trouble or child.beat.state,
        "busy": child.running if seen.trouble == "silent" else child.beat.busy,
        "concurrency": capsule.concurrency if capsule else 0,
        "queues": list(child.queues),
        "processed": child.beat.processed,
        "failed": child.beat.failed,
        "respawns": child.slot.respawns,
        "redis_lost": bool(child.beat.redis_lost),
        "redis_lost_because": child.beat.redis_lost,
        "refused": child.beat.refused,
    }


def _stamped(content: dict[str, Any], children: list[SeenChild], at: float) -> dict[str, Any]:
    """``content`` with the latest signs of life (monotonic) of the master and of each child, and
    the memory of each child in bytes. Those change all the time; they alone make no new file."""
    latest = [
        {
            **described,
            "beat_at": seen.child.told.heard_at,
            "memory": seen.memory._asdict() if seen.memory else None,
        }
        for described, seen in zip(content["children"], children, strict=True)
    ]
    return {**content, "beat_at": at, "children": latest}
