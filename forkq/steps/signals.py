"""Signals to jobs that wait: ``forkq.signal``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..default_client import default
from ..errors import ForkqError, ServerUnavailable, shown
from ..features.steps.parts import STAYS_FOR, data_of, event_of
from ..servers import Server
from ..store.scripts import SIGNAL_SEND
from ..wire.times import LONGEST_SECONDS


def signal(
    event: str,
    *,
    key: str | int | None = None,
    data: Any = None,
    ttl: float | timedelta = STAYS_FOR,
    for_one: bool = False,
) -> bool:
    """Lets the jobs go on that wait for this event and key (``forkq.wait_for``), and those that
    will wait for it in the next ``ttl`` seconds, or a timedelta. They get ``data``, a JSON value.
    ``for_one``: one job only gets it, the one that has waited longest.

    The first signal counts: returns False, and does nothing, while another one with that event and
    key stands there. With several shards it is sent to each. Raises ServerUnavailable.
    """
    return signal_to(list(default().servers), event, key, data, ttl, for_one=for_one)


def signal_to(
    servers: Sequence[Server],
    event: str,
    key: str | int | None,
    data: Any,
    ttl: float | timedelta,
    *,
    for_one: bool,
) -> bool:
    """``signal`` to these servers."""
    called, text, seconds = event_of(event, key), data_of(event, data), _seconds(ttl)
    if for_one and len(servers) > 1:
        raise ForkqError(
            f"the signal {shown(event)} is for one job, and there are {len(servers)} shards, of "
            "which each would give it to one: send it without for_one, with a key of its own"
        )
    failed: list[ServerUnavailable] = []
    arguments = (called, text, f"{seconds:.6f}", int(for_one))
    is_first = [_send(server, called, arguments, failed) for server in servers]
    if failed:
        raise failed[0]
    return any(is_first)


def _send(
    server: Server, called: str, arguments: tuple[Any, ...], failed: list[ServerUnavailable]
) -> bool:
    """Sends it to one shard: the others get it though this one is away."""
    keys = server.keys
    try:
        return bool(server.run(SIGNAL_SEND, (keys.event(called), keys.signalled), arguments))
    except ServerUnavailable as error:
        failed.append(error)
        return False


def _seconds(given: float | timedelta) -> float:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if type(seconds) not in (int, float) or not 0 < seconds <= LONGEST_SECONDS:
        raise ForkqError(
            f"ttl is {shown(given)}: pass a number of seconds above 0 and up to 1e9, or a timedelta"
        )
    return float(seconds)
