"""A server that loses its data, or ends idle connections, under a tree that goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    events,
    json_log,
    push,
    wait_events,
)
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

BACK = "redis went back in time: what it had confirmed is gone"
SOON = 5.0  # well before the next beat that would come anyway


def flush(server: Server) -> None:
    server.cli("FLUSHALL")


def restart(server: Server) -> None:
    server.stop()
    server.start()


@pytest.mark.parametrize("lose", [flush, restart])
def test_the_records_of_children_are_written_again_at_once(
    tree: StartTree, journal: Journal, lose: Callable[[Server], None]
) -> None:
    """Not with the next beat only: a job that holds the interpreter may keep that from coming."""
    server = Server(tcp=True).start()
    try:
        forkq = tree(server, app=APP, args=["-w", "2", "-c", "1"], env=journal.env)
        redis = server.client()
        wait_until(lambda: len(said(redis)) == 5, what="both records and places, and parameters")
        before = said(redis)
        lose(server)
        again = server.client()
        wait_until(lambda: said(again) == before, deadline=SOON, what="the same again")
        assert again.scard("processes") == 2
        jid = push(server, "Hold", 1)
        journal.wait("end", [jid])
        assert forkq.stop() == 0
    finally:
        server.close()


def said(redis: Redis) -> set[bytes]:
    """The keys of both children's records and places, and that of the app's parameters."""
    found = {os.fsdecode(name) for name in redis.smembers("processes")}
    wanted = [key for name in found for key in (name, f"forkq:place:{name}")]
    wanted.append("forkq:parameters")
    return {key.encode() for key in wanted if redis.exists(key)}


def test_a_restored_backup_is_told_once_by_the_tree(tree: StartTree, journal: Journal) -> None:
    server = Server(tcp=True, aof=True).start()
    try:
        args = ["-w", "2", "-c", "1", "--log-format", "json"]
        forkq = tree(server, app=APP, args=args, env=journal.env)
        wait_until(lambda: beats(server) == [1, 1], what="the first beats")
        data, backup = server.folder / "appendonlydir", server.folder / "backup"
        shutil.copytree(data, backup)
        while min(beats(server)) < 3:
            more = sum(beats(server)) + 1
            server.cli("CLIENT", "KILL", "TYPE", "normal")  # on a new connection a child beats
            wait_until(lambda more=more: sum(beats(server)) >= more, what="a beat")  # type: ignore[misc]
        server.kill()
        shutil.rmtree(data)
        backup.rename(data)
        server.start()
        [line] = wait_events(forkq, BACK)
        assert line["level"] == "error"
        wait_until(lambda: min(beats(server)) >= 2, what="both children again")
        journal.wait("end", [push(server, "Hold", 1)])
        assert len(events(forkq, BACK)) == 1
        assert forkq.stop() == 0
    finally:
        server.close()


def beats(server: Server) -> list[int]:
    """How many beats each child has counted."""
    redis = server.client()
    notes = redis.keys("forkq:flushed:*")
    return [int(redis.hget(note, "beats") or 0) for note in notes]


def test_connections_that_are_ended_for_idleness_are_no_outage(
    tree: StartTree, journal: Journal
) -> None:
    """A server with a `timeout`: nothing is logged, and jobs run as they come."""
    server = Server(tcp=True, extra=("--timeout", "2")).start()
    try:
        args = ["-w", "2", "-c", "2", "--log-format", "json"]
        forkq = tree(server, app=APP, args=args, env=journal.env)
        ended = made(server)
        wait_until(lambda: made(server) >= ended + 8, deadline=60, every=0.2, what="reconnects")
        jid = push(server, "Quick", 0.01)
        journal.wait("end", [jid])
        errors = [line for line in json_log(forkq) if line["level"] == "error"]
        assert errors == []
        assert not events(forkq, "redis is back")
        assert forkq.stop() == 0
    finally:
        server.close()


def made(server: Server) -> int:
    """How many connections the server has taken."""
    client = server.client()
    found: dict[str, int] = client.info("stats")
    return int(found["total_connections_received"])
