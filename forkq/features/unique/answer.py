"""What a push returns that has met duplicates: values, without I/O. Client side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...errors import Duplicate, shown

if TYPE_CHECKING:
    from ..marked import PushNeeds


def answer(
    jobs: Iterable[tuple[str, PushNeeds | None]], duplicates: Mapping[str, str]
) -> list[str]:
    """The jids that a push returns. ``jobs`` are the jid of each job and its needs. In the place of
    a duplicate's stands "", or the jid of the job that has the lock; "" if none has, and the job is
    throttled. Raises Duplicate if one of them asks for that."""
    return [
        _jid_of_duplicate(needs, duplicates[jid])
        if jid in duplicates and needs is not None
        else jid
        for jid, needs in jobs
    ]


def _jid_of_duplicate(needs: PushNeeds, holder: str) -> str:
    unique = needs.unique
    if not holder or unique is None:
        return ""
    if unique.on_duplicate == "raise":
        raise Duplicate(
            f"job {shown(needs.name)} was not pushed: job {holder} has the lock of its arguments "
            f"({'for its time' if unique.until == 'expiry' else 'it waits or runs'})",
            holder,
        )
    return holder if unique.on_duplicate == "return" else ""
