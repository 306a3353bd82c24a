"""Cancelling jobs from any process: the note in Redis that the leader and the children obey.

No push needs this; ``Pusher.cancel`` and ``forkq.api`` import it when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from . import registry
from .default_client import default
from .errors import ForkqError, InvalidJob, shown
from .features.cancel.parts import MOST, field_of_jid
from .features.unique.parts import Digest, kind_of
from .servers import Server, first_found
from .store.scripts import CANCEL
from .wire.marks import KEY, needs_in
from .wire.payload import DEFAULT_QUEUE
from .wire.positions import Parameters
from .wire.times import LONGEST_SECONDS

# So many notes are written in one step: it delays other clients by some milliseconds.
_AT_ONCE: Final = 1000


def note_cancelled(
    servers: Sequence[Server], fields: Sequence[tuple[str, str]], grace: float | None
) -> None:
    """Notes on each server what is cancelled: fields of jobs, each with its jid, or of classes,
    each with "". Raises ForkqError if too many jobs are being cancelled."""
    if grace is not None:
        check_seconds("grace", grace)
    written = "" if grace is None else f"{grace:g}"
    for server in servers:
        for at in range(0, len(fields), _AT_ONCE):
            page, left = fields[at : at + _AT_ONCE], len(fields) - at - _AT_ONCE
            room = MOST - max(0, left)  # the first page is refused if not all have a place
            if not server.run(CANCEL, _keys(server, page), (room, written, *chain(*page))):
                raise too_many()


def _keys(server: Server, fields: Sequence[tuple[str, str]]) -> list[str]:
    keys = server.keys
    cursors = (keys.iteration(jid) for _, jid in fields if jid)
    return [keys.cancelled, *cursors]


def too_many() -> ForkqError:
    """The error for more jobs than can wait for their cancellation."""
    return ForkqError(
        f"more than {MOST:,} jobs would be waiting for their cancellation: cancel their class, or "
        "delete those that wait"
    )


def check_seconds(name: str, value: object) -> None:
    """Raises ForkqError for what is no number of seconds."""
    if type(value) not in (int, float) or not 0 <= value <= LONGEST_SECONDS:  # type: ignore[operator]
        raise ForkqError(f"{name} is {shown(value)}: pass a number of seconds from 0 to 1e9")


def cancel_holder(
    name: str,
    options: Mapping[str, Any],
    parameters: Parameters,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> str:
    """Cancels the job of that class that has the lock of these arguments, and the one that waits to
    run after it. Returns the jid of the latter; "" if none has the lock. Raises InvalidJob."""
    needs = needs_in(options.get(KEY))
    if not needs.get("unique_for") and not needs.get("debounce"):
        raise InvalidJob(
            f"job {name!r} has no `unique_for` and no `debounce`, so its arguments name no job: "
            "pass the jid to `forkq.cancel`"
        )
    lock = _digest(name, needs, parameters, args, kwargs)

    def look(server: Server) -> str | None:
        return _cancel_on(server, lock)

    queue, servers = options.get("queue", DEFAULT_QUEUE), default().servers
    own = servers.of_queue(queue, lock)
    others = [server for server in servers.parts_of(queue) if server is not own]
    return first_found([own, *others], look) or ""


def _cancel_on(server: Server, lock: str) -> str | None:
    """Cancels the job that has the lock on this server, and the one that waits to run after it, if
    one may. Returns the jid of the latter; None if none has the lock."""
    [found] = server.ask_leniently(("HMGET", server.keys.unique(lock), "next", "next_jid", "jid"))
    newest, *names = found or (b"",)
    if newest == b"":  # no lock, or only a ticket is left
        return None
    jids = list(dict.fromkeys(str(jid, "utf-8", "replace") for jid in names if jid))
    if not jids:
        return None
    note_cancelled([server], [(field_of_jid(jid), jid) for jid in jids], None)
    return jids[0]


def _digest(
    name: str,
    needs: Mapping[str, Any],
    parameters: Parameters,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> str:
    """The digest of what makes the job unique. Arguments that do not count may be left out."""
    by = needs.get("unique_by")
    digest = Digest((name, name), by, registry.find(name), kind_of(needs))
    try:
        if by is not None and not callable(by):
            known = parameters.named(args, kwargs)
            if known.keys() >= set(by):
                return digest.over([known[each] for each in by])
        given = parameters.bind(args, kwargs)
    except TypeError as error:
        raise InvalidJob(f"job {name!r} takes {parameters}: {error}") from None
    return digest.of(given)
