"""The audit log: who did what to which jobs, and who was refused. Each line is a record of the
logger ``forkq.web.audit`` whose message is a dict, so that ``forkq web`` writes its values in the
format of its log, and an app's own handler writes them all."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..errors import ServerUnavailable
from ..wire.printable import cut, message, printable

_LOG: Final = logging.getLogger("forkq.web.audit")
_MOST_JIDS: Final = 1000  # in one line
_LONGEST: Final = 1000  # characters of an error
_MOST: Final = 20  # refusals in a period: guessing must not fill the disk
_PERIOD: Final = 60.0  # seconds


class Who(NamedTuple):
    """The user, as the authentication says ("": there is none), and the shard of the page."""

    user: str
    shard: str = ""


def done(
    who: Who, action: str, says: str, jids: Sequence[str], count: int | None, undo: str
) -> None:
    """An action was done. ``count`` jobs were acted on, ``jids`` are those that are known."""
    shown = [printable(jid) for jid in jids[:_MOST_JIDS]]
    about = {"count": count, "jids": shown or None, "undo": undo or None}
    known = {name: value for name, value in about.items() if value is not None}
    _LOG.info(
        {
            "event": "web action",
            **_fields(who),
            "action": action,
            "result": printable(says),
            **known,
        }
    )


def failed(who: Who, action: str, error: Exception) -> None:
    """An action was not done, or a part of it only: then the line has how many jobs, and the token
    that puts them back."""
    outcome = error.outcome if isinstance(error, ServerUnavailable) else None
    about = {} if outcome is None else {"count": outcome.done, "undo": outcome.undo or None}
    says = printable(message(error, _LONGEST))
    known = {name: value for name, value in about.items() if value is not None}
    _LOG.error(
        {"event": "web action failed", **_fields(who), "action": action, "error": says, **known}
    )


class Refusals:
    """Lines about what was refused, a few in each period; the next one says how many were left
    out."""

    def __init__(self) -> None:
        self._end = float("-inf")
        self._count = 0

    def log(self, what: str, who: Who, **more: str) -> None:
        """``what`` was refused to ``who``, by the name that was given."""
        now, left_out = time.monotonic(), 0
        if now >= self._end:
            self._end, left_out = now + _PERIOD, max(0, self._count - _MOST)
            self._count = 0
        self._count += 1
        if self._count <= _MOST:
            shown = {name: printable(cut(value)) for name, value in more.items()}
            before = {"left_out": left_out} if left_out else {}
            _LOG.warning({"event": f"web {what} refused", **_fields(who), **shown, **before})


def _fields(who: Who) -> dict[str, str]:
    shard = {"shard": who.shard} if who.shard else {}
    return {"user": printable(cut(who.user)) or "(no authentication)", **shard}
