"""The shard that is looked at, and its neighbours. Without shards there is one, called ""."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..screens.facts import Observer, ShardObservers
from ..screens.problems import Problem
from ..screens.shards import Shards
from .content import Look, Page
from .watcher import Away, PageFailed, Seen, Watcher


class ShardWatchers:
    """A Watcher for each shard that was looked at: one that hangs holds up no other. ``show`` is
    called in their threads."""

    def __init__(
        self, names: Sequence[str], show: Callable[[Seen | PageFailed | Exception], None]
    ) -> None:
        self.names = names
        self.shard = names[0]
        self.observers = ShardObservers()
        self._shards = Shards(self.observers)
        self._show = show
        self._watchers: dict[str, Watcher] = {}

    @property
    def observer(self) -> Observer:
        """The observer of the shard that is looked at."""
        return self.observers[self.shard]

    @property
    def away(self) -> Away | None:
        """That the Redis of this shard does not answer, and since when; None while it answers."""
        return self._watchers[self.shard].away

    def choose_next(self) -> None:
        """Looks at the next shard from now on."""
        self._watchers[self.shard].pause()
        self.shard = self.names[(self.names.index(self.shard) + 1) % len(self.names)]

    def look(self, page: Page, look: Look) -> None:
        """Makes the watcher of this shard show that from now on."""
        if self.shard not in self._watchers:
            self._watchers[self.shard] = self._watcher(self.shard)
        self._watchers[self.shard].look(page, look)

    def _watcher(self, shard: str) -> Watcher:
        def overview() -> tuple[Sequence[Problem], str]:
            return self._shards.problems(shard, self.names), self._shards.well(shard)

        return Watcher(overview, self._show)

    def end(self) -> None:
        """Ends all watchers, without waiting for Redis."""
        for watcher in self._watchers.values():
            watcher.end()

    def join(self, patience: float) -> None:
        for watcher in self._watchers.values():
            watcher.join(patience)
