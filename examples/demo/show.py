"""The show: the tree works, loses a child, gets its jobs back, and comes to an end with them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from forkq import ForkqError, ServerUnavailable, api

from .journal import Progress
from .screen import Screen
from .tree import Child, Status, Tree
from .work import Work

_TICK = 0.1
_BOOT_LIMIT = 30.0
_STALL_LIMIT = 60.0
_KILL_AT = 0.3  # share of the work that is done
_KILL_ANYWAY = 1.0  # seconds without news, if there was too little to do for a child to be busy
_RECOVERY_LIMIT = 5.0
_GALLERY_DELAY = 2.0


class Show:
    """``check`` is called at every step, and ends the show by raising."""

    def __init__(
        self, tree: Tree, work: Work, progress: Progress, screen: Screen, check: Callable[[], None]
    ) -> None:
        self.work, self.progress = work, progress
        self.status = Status()
        self.figures: dict[str, int] = {}  # how many jobs are where in Redis
        self.victim: Child | None = None  # the child that was killed
        self._tree, self._screen, self._check = tree, screen, check
        self._say = screen.say
        self._started = self._changed = time.monotonic()
        self._gallery_at = self._killed_at = 0.0  # epoch seconds
        self._replaced = self._recovered = False
        self._under_way = 0  # jobs that the victim was running

    @property
    def elapsed(self) -> float:
        """Seconds since the show began."""
        return time.monotonic() - self._started

    def running(self, child: Child) -> list[str]:
        """The results that ``child`` is working on."""
        return list(self.progress.running[child.pid].values())[: child.concurrency]

    def run(self) -> None:
        """From the master's start to the last job's end. Raises ForkqError if forkq fails."""
        self._tree.start()
        while not (status := self._tree.status()).ready:
            self._pause()
            if self.elapsed > _BOOT_LIMIT:
                raise ForkqError(f"forkq was not ready in {_BOOT_LIMIT:.0f} s")
        children = ", ".join(f"{child.name} {child.pid}" for child in status.children)
        self._say(f"Master {status.pid} is ready, with its own server; children {children}")
        began = self.elapsed
        self.work.push()
        spent = 1000 * (self.elapsed - began)
        self._say(f"Pushed {len(self.work.pushed):,} jobs in {spent:.0f} ms", "bold")
        self._look()
        while not self._is_over():
            self._kill_midway()
            self._schedule_gallery()
            self._screen.show(self)
            self._pause()
            self._look()

    def _pause(self) -> None:
        self._check()
        time.sleep(_TICK)

    def _look(self) -> None:
        """Takes in what the master, the journal and Redis say."""
        self.status, before = self._tree.status(), self.figures
        with suppress(ServerUnavailable):  # the figures of the last look stay
            stats = api.stats()
            busy = sum(api.Queue(queue.name).busy for queue in stats.queues)
            left = {"queued": stats.enqueued, "in flight": busy, "to retry": stats.retry}
            self.figures = {**left, "scheduled": stats.scheduled, "dead": stats.dead}
        if self.figures != before:
            self._changed = time.monotonic()
        self._read_journal()
        if self.victim is not None:
            self._tell_replacement(self.victim)
            self._tell_recovery()

    def _read_journal(self) -> None:
        for event in self.progress.read():
            self._tell(**event)

    def _kill_midway(self) -> None:
        """SIGKILL to the busiest child."""
        if self.victim is not None or not self.status.children:
            return
        victim = max(self.status.children, key=lambda child: len(self.running(child)))
        ended = sum(map(self.progress.ended, self.work.planned))
        midway = ended >= _KILL_AT * sum(self.work.planned.values()) and self.running(victim)
        idle = time.monotonic() > self._changed + _KILL_ANYWAY and not self.figures.get("queued")
        if midway or idle:
            with suppress(ProcessLookupError):  # it may have died of itself
                os.kill(victim.pid, signal.SIGKILL)
            self.victim, self._killed_at = victim, time.time()
            self._read_journal()  # these jobs began and did not end
            self._under_way = len(self.running(victim))
            who = f"{victim.name}, pid {victim.pid}"
            self._say(f"SIGKILL to {who}, jobs under way: {self._under_way}", "bold red")

    def _schedule_gallery(self) -> None:
        """Once all files are done."""
        files = self.work.planned.items() - {("Announce", 1), ("Gallery", 1)}
        if not self._gallery_at and all(self.progress.ended(kind) >= n for kind, n in files):
            self._gallery_at = time.time()
            self.work.schedule_gallery(_GALLERY_DELAY)
            self._say(f"All files are done; the gallery is due in {_GALLERY_DELAY:g} s")

    def _is_over(self) -> bool:
        """Whether all is done and told, or nothing has happened for so long that it never will."""
        if time.monotonic() > self._changed + _STALL_LIMIT:
            self._say(f"Nothing has happened for {_STALL_LIMIT:.0f} s; giving up", "red")
            return True
        left = [number for name, number in self.figures.items() if name != "dead"]
        return bool(self._gallery_at and self._replaced and self._recovered and not any(left))

    def _tell(self, what: str, job: str, result: str, at: float, error: str, **_: Any) -> None:
        if (what, job) == ("failed", "Announce"):
            self._say(f"Announce failed: {error}; it will be retried", "yellow")
        elif what == "failed" and len(self.progress.failed[job]) < 5:
            self._say(f"{job} {result} died: {error}", "red")
        elif (what, job) == ("done", "Announce"):
            self._say("Announce went through at its retry", "green")
        elif (what, job) == ("done", "Gallery"):
            self._say(f"The gallery is made, {at - self._gallery_at:.1f} s later", "green")

    def _tell_replacement(self, victim: Child) -> None:
        ready = {c.name: c.pid for c in self.status.children if c.state == "running"}
        pid = ready.get(victim.name, victim.pid)
        if pid != victim.pid and not self._replaced:
            self._replaced = True
            spent = f"{time.time() - self._killed_at:.1f} s after the kill"
            self._say(f"{victim.name} runs again as pid {pid}, {spent}", "green")

    def _tell_recovery(self) -> None:
        """Once all of its jobs under way run again, or after a while with those that do."""
        began = [1000 * (at - self._killed_at) for at in self.progress.recovered.values()]
        late = time.time() > self._killed_at + _RECOVERY_LIMIT
        if not self._recovered and (late or len(began) >= self._under_way):
            self._recovered = True
            when = f", {min(began):.0f} to {max(began):.0f} ms after the kill" if began else ""
            self._say(f"Jobs that run again with a crash record: {len(began)}{when}", "green")
