"""Which steps need not be tried in all orders: partial-order reduction.

A step is *private* if no other process changes what it looks at, nor looks at what it changes,
anywhere in the world. Then it makes no difference whether it comes before or after the steps of
others. So if a process has a private step next, the explorer follows that one alone.

Who uses which key is not declared: it is noted as the steps are found. If a step turns out to use a
key that a private one was thought to have for itself, the search begins again with what it knows
now. The argument that nothing is lost is in docs/decisions/028-exploring.md, and
``test_worlds.py`` compares with searches that try everything.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from .stage import Choices, Effect

# Keys that promises are about, or of which the world itself makes something. Changes of them are
# never private.
_VISIBLE: Final = re.compile(
    rb"queue:|\{queue:|(queues|forkq:(suspects|marked|totals:ends|cancelled)|retry|schedule|dead|paused)$"
    rb"|forkq:unique:|.*vm:|\(time\)$"
)


class WrongGuess(Exception):
    """A key that was thought to be of one process alone is not."""


class Footprints:
    """Who uses which key."""

    def __init__(self) -> None:
        self._users: dict[bytes, set[int]] = defaultdict(set)
        self._changers: dict[bytes, set[int]] = defaultdict(set)
        # What private steps took for granted: that nobody else uses it, or that nobody changes it.
        self._own: dict[bytes, int] = {}
        self._steady: dict[bytes, set[int]] = defaultdict(set)
        self._known: set[int] = set()

    def forget_guesses(self) -> None:
        """The search begins again."""
        self._own.clear()
        self._steady.clear()

    def note(self, number: int, choices: Choices) -> None:
        """Notes what the steps of this actor use. Raises WrongGuess."""
        if id(choices) in self._known:
            return
        self._known.add(id(choices))
        is_wrong = False
        for _, effect in choices.steps + choices.faults:
            for key in effect.seen | effect.changed:
                self._users[key].add(number)
                is_wrong |= self._own.get(key, number) != number
            for key in effect.changed:
                self._changers[key].add(number)
                is_wrong |= bool(self._steady[key] - {number})
        if is_wrong:
            raise WrongGuess

    def private_step(self, found: list[tuple[int, Choices]]) -> tuple[int, Choices] | None:
        """The first actor whose only step is private."""
        for number, choices in found:
            if len(choices.steps) == 1 and not choices.depends and not choices.faults:
                _, effect = choices.steps[0]
                if self._is_private(number, effect):
                    self._take_for_granted(number, effect)
                    return number, choices
        return None

    def _is_private(self, number: int, effect: Effect) -> bool:
        if effect.broken or effect.rescued or effect.begins:
            return False
        alone = {number}
        if not all(self._changers[key] <= alone for key in effect.seen):
            return False
        return all(self._users[key] <= alone and not _VISIBLE.match(key) for key in effect.changed)

    def _take_for_granted(self, number: int, effect: Effect) -> None:
        for key in effect.seen:
            self._steady[key].add(number)
        for key in effect.changed:
            self._own[key] = number
