"""What ``[expire]`` says of a queue, at the push."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...limits.patterns import is_pattern, matches_any
from ...wire.marks import needs_in, with_needs
from ...wire.payload import KEY, Payload
from .parts import EXPIRES_AT, EXPIRES_IN


def add_expiry(job: Payload, table: Mapping[str, float]) -> None:
    """Gives ``job`` the expiry that the table has for its queue, or for the pattern of the most
    letters that fits; none if it has one of its own, or says that it has none."""
    after = _of_queue(job["queue"], table)
    needs: dict[str, Any] = needs_in(job.get(KEY))
    if after and EXPIRES_IN not in needs and EXPIRES_AT not in needs:
        job[KEY] = with_needs(job.get(KEY), {EXPIRES_IN: after})


def _of_queue(queue: str, table: Mapping[str, float]) -> float:
    if queue in table:
        return table[queue]
    fitting = [name for name in table if is_pattern(name) and matches_any(queue, (name,))]
    return table[max(fitting, key=len)] if fitting else 0.0
