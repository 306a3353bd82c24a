"""An action in two steps: what it would do, in words, and then what it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec


class ActionDone(msgspec.Struct, frozen=True):
    """What an action did: ``text`` is shown, ``jids`` and ``count``, of the jobs, stand in the
    audit log. ``undo`` is the action that undoes it, by its path in the web UI, and its fields."""

    text: str
    jids: Sequence[str] = ()
    undo: tuple[str, dict[str, str]] | None = None
    count: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """What an action would do. ``says``: a sentence with the number of jobs ("Delete 412 jobs from
    the dead set?"). ``do`` does it. ``ask``: whether the user confirms it first. ``danger``: it
    cannot be undone. ``back`` is the page of the web UI to return to."""

    says: str
    do: Callable[[], ActionDone]
    button: str = "Confirm"
    back: str = "/"
    ask: bool = True
    danger: bool = False
    details: Sequence[str] = msgspec.field(default=())
