"""Cancelling a flow. Any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..cancelling import note_cancelled
from ..default_client import default
from ..errors import ServerUnavailable
from ..features.cancel.parts import field_of_batch
from ..store.scripts import FLOW_CHANGE

if TYPE_CHECKING:
    from ..servers import Server


def cancel_flow(server: Server, bid: str, above: Sequence[str]) -> bool:
    """Ends all steps that have not started, and has those end that wait in a queue or run, on all
    shards. Returns whether there is such a flow. Each change may be repeated. A shard that is down
    keeps no other one from it, and its ServerUnavailable comes at the end."""
    names, arguments = server.keys.of_flow(bid, above), (1 + len(above), "cancel")
    cancelled = [(field_of_batch(bid), "")]
    found = server.run(FLOW_CHANGE, names, arguments)
    note_cancelled([server], cancelled, None)
    while found and found[1]:  # a call ends some hundred steps
        found = server.run(FLOW_CHANGE, names, arguments)
    down: ServerUnavailable | None = None
    for other in default().servers if server.name else ():
        try:
            note_cancelled([other] if other.name != server.name else [], cancelled, None)
        except ServerUnavailable as error:
            down = down or error
    if down is not None:
        raise down
    return bool(found)
