"""The state of the moves of queues to other shards (``Keys.moves``)."""

from __future__ import annotations

from collections.abc import Mapping


def moves_under_way(states: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """The queues with a page that was taken here, and is not known to have arrived. ``states``: the
    hash of the moves, whose values are ``ID NUMBER KIND``."""
    names = (name for name, state in states.items() if not state.endswith(b" "))
    return tuple(sorted(name.decode("utf-8", "replace") for name in names))
