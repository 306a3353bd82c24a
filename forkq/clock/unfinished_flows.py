"""Telling the steps of flows what has changed before them, in the leader's clock.

A script that ends a step tells some hundred of the next ones, and leaves the rest
(store/scripts/flow.lua).
"""

from __future__ import annotations

from ..features.batch.parts import DEEPEST
from ..store.connection import DamagedKey, RedisConnection
from ..store.scripts import FLOW_CHANGE
from ..store.steps import checked
from ..wire.keys import Keys
from .tracking import tracked


class UnfinishedFlows:
    """Goes on with what was left, one call of a script for each flow at a time."""

    def __init__(self, keys: Keys, connection: RedisConnection) -> None:
        self._keys = keys
        self._connection = connection
        self._flows: list[str] = []
        self._watch = False

    def load(self, watch: bool) -> None:
        """Reads which flows are unfinished."""
        self._watch = watch
        asked = tracked(("SMEMBERS", self._keys.flows_unfinished), watch)
        names = checked(self._connection.pipeline(asked))[-1]
        before = self._keys.batch("")
        self._flows = [name.decode("utf-8", "replace").removeprefix(before) for name in names]

    def next_due(self) -> float | None:
        """At once, if there is a flow."""
        return 0.0 if self._flows else None

    def work(self) -> None:
        """Goes on with one flow. Raises DamagedKey if the schedule, or the notes, to which its
        steps go, are none: the script leaves all as it is then, and would be called again at
        once."""
        self._connection.call("ZCARD", self._keys.schedule)
        bid = self._flows.pop()
        if self._field(bid, "away"):
            self._connection.call("XLEN", self._keys.notes)
        above = self._above(bid)
        names = self._keys.of_flow(bid, above)
        self._connection.script(FLOW_CHANGE, names, (1 + len(above), "look"))
        if not self._flows:
            self.load(self._watch)  # the server does not report this clock's own change

    def _above(self, bid: str) -> list[str]:
        """The batches above the flow, the nearest first."""
        found = list[str]()
        parent = self._field(bid, "parent")
        while parent and len(found) < DEEPEST:
            found.append(parent)
            parent = self._field(parent, "parent")
        return found

    def _field(self, bid: str, name: str) -> str:
        try:
            found = self._connection.call("HGET", self._keys.batch(bid), name)
        except DamagedKey:  # the script leaves out what is damaged
            return ""
        return "" if found is None else str(found, "utf-8", "replace")
