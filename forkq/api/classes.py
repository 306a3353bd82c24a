"""Held classes: their jobs have killed process after process, so they run alone."""

from __future__ import annotations

from dataclasses import dataclass

from ..limits.patterns import decoded_names
from ..servers import Server
from ..store import held_classes as store
from ..store.scripts import Call
from .door import server as default_server

_ALL_SEEN = -1


@dataclass(frozen=True, slots=True)
class HeldClass:
    """A class that is held ``since`` (epoch seconds): its jobs run alone, in solo children, until
    one of them has ended well. ``deaths`` processes have died of it. ``waiting`` of its jobs wait
    to run alone, besides those that have killed a process themselves."""

    name: str
    since: float
    deaths: int
    waiting: int


def held_classes(server: Server | None = None) -> list[HeldClass]:
    """The classes that are held, by name. Reads all jobs that wait to run alone. Raises
    ServerUnavailable."""
    server = server or default_server()
    keys = server.keys
    asked = ("HGETALL", keys.held_classes), ("SMEMBERS", keys.suspected)
    found, names = server.ask_leniently(*asked)
    queues = sorted(decoded_names(names or ()))
    return [
        HeldClass(held.name, held.since, held.deaths, _waiting(server, held.name, queues))
        for held in store.held_in(found or {})
    ]


def release_class(name: str, server: Server | None = None) -> bool:
    """Ends that a class is held, on all hosts: its jobs run beside others again, and the leader's
    clock returns those that wait to the head of their queues. False if it was not held. Raises
    ServerUnavailable."""
    server = server or default_server()
    return bool(_run(server, store.release(server.keys, name)))


def _waiting(server: Server, name: str, queues: list[str]) -> int:
    count = 0
    for queue in queues:
        at = 0
        while at != _ALL_SEEN:
            at, found = _run(
                server, store.waiting_jobs(server.keys, name, queue, at, returns=False)
            )
            count += found
    return count


def _run(server: Server, call: Call) -> list[int]:
    reply: list[int] = server.run(call.script, call.keys, call.arguments)
    return reply
