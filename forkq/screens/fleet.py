"""Which processes serve which queue, and what holds a queue, for many queues at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .. import api
from ..api.queue_report import Crew, holds
from ..limits.patterns import is_pattern, matches_any


class Fleet:
    """Made of one look at all processes and queues; asks nothing. A thousand of both are common, so
    processes that serve the same queues are looked at together."""

    def __init__(self, processes: Sequence[api.Process], states: Sequence[api.QueueState]) -> None:
        self._groups = defaultdict[tuple[str, ...], list[api.Process]](list)
        self._by_entry = defaultdict[str, set[tuple[str, ...]]](set)
        for process in processes:
            self._groups[process.queues].append(process)
        for order in self._groups:
            for entry in order:
                self._by_entry[entry].add(order)
        self._patterns = [entry for entry in self._by_entry if is_pattern(entry)]
        self._blocking = [state for state in states if state.blocking]
        self._crews: dict[frozenset[tuple[str, ...]], Crew] = {}

    def crew(self, queue: str) -> Crew:
        """The processes that serve this queue, counted."""
        found = set(self._by_entry.get(queue, ()))
        for pattern in self._patterns:
            if matches_any(queue, (pattern,)):
                found |= self._by_entry[pattern]
        orders = frozenset(found)
        if orders not in self._crews:
            self._crews[orders] = Crew.of(one for order in orders for one in self._groups[order])
        return self._crews[orders]

    def holds(self, state: api.QueueState) -> list[api.Hold]:
        """What holds a queue, the worst first. A ``process_limit`` counts as used up if as many of
        its jobs are in progress as all processes together may run."""
        crew, most = self.crew(state.name), state.process_limit
        used_up = most is not None and state.leased >= most * max(1, crew.size - crew.quiet)
        return list(holds(state, crew, self._blocking, process_limit_reached=used_up))
