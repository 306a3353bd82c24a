"""What the shell completes beside commands and options: names that stand in Redis.

The shell waits for the answer at each TAB, so nothing here may fail or take long.
"""

from __future__ import annotations

from typing import Any

import click


def complete_queues(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """The queues that were ever pushed to. None if Redis cannot be asked."""
    try:
        return [name for name in _queue_names(context.params) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a message would stand in the line that is typed
        return []


def _queue_names(flags: dict[str, Any]) -> list[str]:
    from .. import api  # noqa: PLC0415 - only when the shell asks
    from .options import configuration, connected  # noqa: PLC0415

    finding = ("config", "environment", "tag", "pidfile", "redis")
    server = connected(configuration(**{name: flags.get(name) for name in finding}))
    return [name for name in api.queue_names(server) if name.isprintable()]
