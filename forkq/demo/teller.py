"""The teller: puts what happens into words, a line each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..wire.times import now
from .books import Depths
from .journal import Event
from .screen import Screen, count
from .tally import Tally
from .tree import Child, Status

_DEATHS_TOLD: Final = 5  # one by one; the summary has them all
_RECOVERY_LIMIT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill: whom, when (epoch seconds), and how many jobs were being performed there."""

    child: Child
    at: float
    in_hand: int


class Teller:
    """Told the facts at every step; says each piece of news once."""

    def __init__(self, screen: Screen, tally: Tally) -> None:
        self.replaced = False
        self._screen = screen
        self._tally = tally
        self._deaths = 0
        self._failure: Event | None = None
        self._recovered = False
        self._scheduled = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether the story of the kill has been told to its end."""
        return self.replaced and self._recovered

    def tell_kill(self, kill: Kill) -> None:
        """The kill itself."""
        hand = count(kill.in_hand, "job") if kill.in_hand else "no job"
        self._screen.say(
            f"SIGKILL to {kill.child.name}, pid {kill.child.pid}, with {hand} in hand", "bold red"
        )

    def tell_gallery(self, delay: float) -> None:
        """It was scheduled for ``delay`` seconds from now."""
        self._scheduled = now()
        self._screen.say(f"All files are done; the gallery is scheduled {delay:g} s from now")

    def hear(self, events: Iterable[Event]) -> None:
        """What the journal says."""
        for event in events:
            if event.what == "failed":
                self._failed(event)
            elif event.what == "done":
                self._done(event)

    def tell(self, status: Status, depths: Depths, kill: Kill | None) -> None:
        """What is new in the tree and in Redis."""
        if self._failure is not None and depths.retry:
            self._announce_retry(self._failure, depths)
        if kill is not None:
            self._replacement(kill, status)
            self._recovery(kill)

    def _failed(self, event: Event) -> None:
        if event.job == "Announce":
            self._failure = event
            return
        self._deaths += 1
        if self._deaths <= _DEATHS_TOLD:
            self._screen.say(f"{event.job} {event.label} died: {event.error}", "red")

    def _done(self, event: Event) -> None:
        if event.job == "Announce" and event.retry is not None:
            self._screen.say(f"Announce went through at retry {event.retry + 1}", "green")
        elif event.job == "Gallery":
            waited = event.at - self._scheduled
            self._screen.say(f"The gallery is made, {waited:.1f} s after it was scheduled", "green")

    def _announce_retry(self, failure: Event, depths: Depths) -> None:
        self._failure = None
        wait = max(0.0, depths.retry_due - now())
        self._screen.say(f"Announce failed: {failure.error}; retried in {wait:.1f} s", "yellow")

    def _replacement(self, kill: Kill, status: Status) -> None:
        for child in status.children:
            replaces = child.name == kill.child.name and child.pid != kill.child.pid
            if replaces and child.state == "running" and not self.replaced:
                self.replaced = True
                spent = now() - kill.at
                self._screen.say(
                    f"{child.name} runs again as pid {child.pid}, {spent:.1f} s after the kill",
                    "green",
                )

    def _recovery(self, kill: Kill) -> None:
        """Once all that it had in hand runs again, or after a while with what does."""
        again = self._tally.again
        if self._recovered or (len(again) < kill.in_hand and now() < kill.at + _RECOVERY_LIMIT):
            return
        self._recovered = True
        if again:
            first, last = (1000 * (pick(again.values()) - kill.at) for pick in (min, max))
            self._screen.say(
                f"{count(len(again), 'job')} recovered (they carry a crash record now); ran again "
                f"{first:.0f} to {last:.0f} ms after the kill",
                "green",
            )
