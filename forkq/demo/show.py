"""The middle of the demo: the tree works, loses a child, and comes to an end with its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..default_client import configure
from ..errors import ForkqError
from ..wire.times import now
from .books import Account, Books, Depths
from .journal import NAME, Journal
from .plan import Plan, Pushed, push, push_gallery
from .screen import Screen, View, Work, count
from .tally import Tally
from .teller import Kill, Teller
from .tree import Child, Status, Tree

_TICK: Final = 0.1
_BOOT_LIMIT: Final = 30.0
_STALL_LIMIT: Final = 60.0
# The kill comes when this share of the work is done and somebody has jobs in hand; or after these
# seconds, when there is so little to do that nobody was ever seen busy.
_KILL_AT: Final = 0.3
_KILL_ANYWAY: Final = 3.0
_GALLERY_DELAY: Final = 2.0


class Show:
    """``proceed`` is called at every step, and ends the show by raising."""

    def __init__(self, tree: Tree, plan: Plan, screen: Screen, proceed: Callable[[], None]) -> None:
        self.pushed: list[Pushed] = []
        self.tally = Tally()
        self.kill: Kill | None = None
        self._tree = tree
        self._plan = plan
        self._screen = screen
        self._proceed = proceed
        self._teller = Teller(screen, self.tally)
        self._journal = Journal(tree.folder / NAME)
        self._books: Books | None = None
        self._status = Status()
        self._depths = Depths()
        self._started = self._changed = self._ready = time.monotonic()
        self._totals = {
            "Thumbnail": len(plan.thumbnails),
            "Totals": len(plan.totals),
            "Words": len(plan.words),
            "Announce": 1,
            "Gallery": 1,
        }

    def run(self) -> None:
        """From the master's start to the last job's end. Raises ForkqError if forkq fails."""
        self._boot()
        self._push()
        self._look()
        while not self._over():
            self._act()
            self._screen.show(self._view())
            self._proceed()
            time.sleep(_TICK)
            self._look()

    def account(self) -> Account:
        """Where all that was pushed is now. Call it while the tree still runs."""
        if self._books is None:
            return Account()
        self.tally.feed(self._journal.news())
        return self._books.account(self.pushed, self._tree.folder)

    def close(self) -> None:
        """Closes the connection to Redis."""
        if self._books is not None:
            self._books.close()

    # The acts

    def _boot(self) -> None:
        self._tree.start()
        while not (status := self._tree.status()).ready:
            self._proceed()
            if time.monotonic() > self._started + _BOOT_LIMIT:
                raise ForkqError(
                    f"the demo's forkq was not ready within {_BOOT_LIMIT:.0f} s; see "
                    f"{self._tree.log}"
                )
            time.sleep(_TICK)
        self._tree.remember()
        self._books = Books(self._tree.config)
        self._ready = time.monotonic()
        children = ", ".join(f"{child.name} {child.pid}" for child in status.children)
        self._screen.say(f"Master {status.pid} is ready, with its own server; children {children}")

    def _push(self) -> None:
        configure(environ={"FORKQ_CONFIG": str(self._tree.settings)})
        started = time.monotonic()
        self.pushed += push(self._plan)
        spent = (time.monotonic() - started) * 1000
        self._screen.say(f"Pushed {count(len(self.pushed), 'job')} in {spent:.0f} ms", "bold")

    def _look(self) -> None:
        """Takes in the facts: the master's status file, the journal, Redis."""
        assert self._books is not None
        self._status = self._tree.status()
        self._read_journal()
        self.tally.keep_living(child.pid for child in self._status.children)
        depths = self._books.depths()
        if depths != self._depths:
            self._changed = time.monotonic()
        self._depths = depths
        self._teller.tell(self._status, depths, self.kill)

    def _read_journal(self) -> None:
        events = self._journal.news()
        if events:
            self._changed = time.monotonic()
        self.tally.feed(events)
        self._teller.hear(events)

    def _act(self) -> None:
        if self.kill is None:
            self._kill_when_due()
        if "Gallery" not in (job.kind for job in self.pushed) and self._files_ended():
            self.pushed.append(push_gallery(_GALLERY_DELAY))
            self._teller.tell_gallery(_GALLERY_DELAY)

    def _kill_when_due(self) -> None:
        """SIGKILL to the busiest child, midway."""
        children = [child for child in self._status.children if child.concurrency]
        if not children:
            return
        victim = max(children, key=self._in_hand)
        midway = self.tally.ended >= _KILL_AT * self._plan.size and self._in_hand(victim)
        idle = time.monotonic() > self._ready + _KILL_ANYWAY and not self._depths.queued
        if (midway or idle) and self._tree.kill(victim):
            at = now()
            self._read_journal()  # what it began and did not end, it had in hand
            self.kill = Kill(victim, at, self._in_hand(victim))
            self._teller.tell_kill(self.kill)

    def _in_hand(self, child: Child) -> int:
        return len(self.tally.running.get(child.pid, ()))

    def _files_ended(self) -> bool:
        files = ("Thumbnail", "Totals", "Words")
        return all(self.tally.ended_of(kind) >= self._totals[kind] for kind in files)

    def _over(self) -> bool:
        """Whether all is done and told; or nothing has happened for so long that it never will."""
        if time.monotonic() > self._changed + _STALL_LIMIT:
            self._screen.say(f"Nothing has happened for {_STALL_LIMIT:.0f} s; giving up", "red")
            return True
        pushed_all = len(self.pushed) == sum(self._totals.values())
        return pushed_all and self._depths.at_rest and self._teller.at_rest

    def _view(self) -> View:
        at = now()
        tally = self.tally
        return View(
            elapsed=time.monotonic() - self._started,
            now=at,
            status=self._status,
            depths=self._depths,
            work=tuple(
                Work(kind, len(tally.done.get(kind, ())), self._failed(kind), total)
                for kind, total in self._totals.items()
                if total
            ),
            running={pid: list(jobs.values()) for pid, jobs in tally.running.items()},
            rate=tally.rate(at),
            chart=tally.chart(at),
        )

    def _failed(self, kind: str) -> int:
        return self.tally.ended_of(kind) - len(self.tally.done.get(kind, ()))
