"""Cancelling a flow. Any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..cancelling import note_cancelled
from ..features.cancel.parts import field_of_batch
from ..store.scripts import FLOW_CHANGE

if TYPE_CHECKING:
    from ..servers import Server


def cancel_flow(server: Server, bid: str, above: Sequence[str]) -> bool:
    """Ends all steps that have not started, and has those end that wait in a queue or run. Returns
    whether there is such a flow. Each change may be repeated."""
    names, arguments = server.keys.of_flow(bid, above), (1 + len(above), "cancel")
    found = server.run(FLOW_CHANGE, names, arguments)
    note_cancelled([server], [(field_of_batch(bid), "")], None)
    while found and found[1]:  # a call ends some hundred steps
        found = server.run(FLOW_CHANGE, names, arguments)
    return bool(found)
