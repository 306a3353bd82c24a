"""What the last fetch said of the queues, and so what the processor that has the turn does next.

| state    | meaning                                               | its next step          |
|----------|-------------------------------------------------------|------------------------|
| PLENTY   | the last fetch brought all that it wanted             | fetch                  |
| SHORT    | it brought less; Redis may not say when there is more | register keys, fetch   |
| TRACKED  | it brought less; Redis will say when there is more    | wait                   |
| WAITING  | the processor waits now                               |                        |
| NOTIFIED | Redis said that a key has changed                     | fetch (wake_up.py)     |

| from    | event                                             | to       |
|---------|---------------------------------------------------|----------|
| any     | a fetch brought all that it wanted                | PLENTY   |
| any     | it brought less, and not all keys are registered  | SHORT    |
| any     | it brought less, and all keys are registered      | TRACKED  |
| any*    | the connection was lost                           | SHORT    |
| any*    | jobs that were leased ahead went back             | SHORT    |
| any     | the processor with the turn begins to wait        | WAITING  |
| WAITING | Redis said that a key has changed                 | NOTIFIED |
| WAITING | a processor has news, or the time is up           | SHORT    |

(*) but WAITING: the processor that waits finds out by itself.

A fetch in state NOTIFIED that brings nothing was woken in vain (wakeup_backoff.py).

Two flags stand beside these states, since any thread may set them in any state: ``quiet`` (no more
jobs are fetched, until the child ends) and ``must_reconcile`` (this child and Redis may disagree
about its leases; lease_exchange.py compares them before the next fetch).
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """See the table above."""

    PLENTY = auto()
    SHORT = auto()
    TRACKED = auto()
    WAITING = auto()
    NOTIFIED = auto()


class Supply:
    """The fetcher's. Any thread may look at ``state``; the tables say who changes it."""

    def __init__(self) -> None:
        self.state = State.PLENTY

    @property
    def registers(self) -> bool:
        """Whether the next fetch registers the keys that change when there is more."""
        return self.state is not State.PLENTY

    def fetched(self, *, short: bool, tracked: bool) -> None:
        """A fetch brought its reply: less than it wanted, and Redis will say when there is more."""
        if short:
            self.state = State.TRACKED if tracked else State.SHORT
        else:
            self.state = State.PLENTY

    def doubt(self) -> None:
        """Redis will not say when there is more: the connection is lost, or this child itself has
        put jobs back."""
        if self.state is not State.WAITING:
            self.state = State.SHORT

    def begin_wait(self, seen: State) -> bool:
        """The processor that has the turn waits from now on, if the state is still the one that it
        has ``seen``."""
        if self.state is not seen:
            return False
        self.state = State.WAITING
        return True

    def end_wait(self, *, notified: bool) -> None:
        """It waits no more. ``notified``: Redis said that a key has changed."""
        self.state = State.NOTIFIED if notified else State.SHORT
