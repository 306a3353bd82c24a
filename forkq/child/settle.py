"""Settling a failed job in Redis: its lease goes and its new place is taken, or neither."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .. import lease
from ..connection import ConnectionLost, RedisError, Wire, Wires
from ..dead import Cemetery
from ..keys import Keys
from ..lease import Unit
from ..outage import Outage
from ..scripts import RETRY
from .fetcher import Fetcher
from .retry import Bury, Decision, Drop, Retry


class Settler:
    """Used by all processors. What Redis does not take is kept, leased, and tried again; then
    ``on_parked`` is called, so that somebody does."""

    def __init__(
        self,
        identity: str,
        keys: Keys,
        wires: Wires,
        fetcher: Fetcher,
        cemetery: Cemetery,
        outage: Outage,
        on_parked: Callable[[], None],
    ) -> None:
        self._identity = identity
        self._keys = keys
        self._wires = wires
        self._fetcher = fetcher
        self._cemetery = cemetery
        self._outage = outage
        self._on_parked = on_parked
        self._lock = threading.Lock()
        self._parked: list[tuple[Unit, Decision]] = []

    def settle(self, unit: Unit, decision: Decision) -> None:
        """Does what was decided. If Redis refuses, the lease stays and ``again`` will do it."""
        if not self._settled(unit, decision):
            with self._lock:
                self._parked.append((unit, decision))
            self._on_parked()

    def again(self) -> bool:
        """Tries what Redis did not take before. Returns whether something is left."""
        with self._lock:
            waiting, self._parked = self._parked, []
        left = [case for case in waiting if not self._settled(*case)]
        with self._lock:
            self._parked += left
        return bool(left)

    def _settled(self, unit: Unit, decision: Decision) -> bool:
        if isinstance(decision, Drop):
            self._fetcher.acknowledge(unit)
            return True
        moved = self._moved(unit, decision)
        if moved:
            self._fetcher.forget(unit)
        return moved

    def _moved(self, unit: Unit, decision: Retry | Bury) -> bool:
        """Twice, for a connection that was cut: the second try does it, or finds it done."""
        for last in (False, True):
            try:
                with self._wires.wire() as wire:
                    self._move(wire, unit, decision)
                    return True
            except (*ConnectionLost, RedisError) as error:
                if last:
                    self._outage.begin(error)
        return False

    def _move(self, wire: Wire, unit: Unit, decision: Retry | Bury) -> None:
        name = lease.lease(self._identity, unit.sequence)
        if isinstance(decision, Bury):
            self._cemetery.bury(wire, unit.queue_name, name, decision.payload)
            return
        keys = (self._keys.inflight(unit.queue_name), self._keys.retry)
        wire.script(RETRY, keys, (name, decision.at, decision.payload))
