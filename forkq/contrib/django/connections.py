"""The database connections of a job: renewed before it, closed after it, as with a request.

Django gives each thread its own connections. In a web process signals of requests renew them;
in a child, without this, a connection that has died would fail every later job of its thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ... import registry
from ...process_state import in_thread_of_test

_of_master: list[BaseDatabaseWrapper] = []


@contextmanager
def renewed() -> Iterator[None]:
    """A context around each job and each hook. It closes the connections that are broken or older
    than CONN_MAX_AGE, before and after.

    A test that runs jobs itself (forkq.testing) keeps its connections: a look at one asks the
    database, which pytest-django forbids to most tests. Its own transaction is left alone.
    """
    around = _in_transaction()
    _close_old_connections()
    try:
        yield
    finally:
        for alias in _in_transaction() - around:
            _drop(connections[alias])
        _close_old_connections()


def renew_for_coroutines(job: dict[str, Any]) -> Iterator[None]:
    """Server middleware that has a connection closed that is broken, before an ``async def`` job.

    The queries of all coroutines run in one thread of asgiref, one after the other: so this closes
    it before the first query of the job. Nothing waits for it. A connection that is merely old
    stays: another coroutine may be in the midst of its rows."""
    name = job.get("class")
    spec = registry.find(name) if isinstance(name, str) else None
    if spec is not None and spec.is_async and not in_thread_of_test():
        SyncToAsync.single_thread_executor.submit(_close_broken_connections)
    yield


def leave_to_master() -> None:
    """Handler of ``fork``: what the master has opened with ``preload`` is the master's. This child
    makes its own connections. It closes none, for that would end the master's session."""
    for connection in connections.all(initialized_only=True):
        _of_master.append(connection)
        del connections[connection.alias]


def _close_old_connections() -> None:
    """Closes old connections. Django's own function would close one within a transaction, too."""
    if in_thread_of_test():
        return
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _close_broken_connections() -> None:
    """Closes the connections of this thread on which a query has failed and that do not answer."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and not connection.in_atomic_block:
            if connection.is_usable():
                connection.errors_occurred = False
            else:
                connection.close()


def _in_transaction() -> set[str]:
    """The names of the databases with an open transaction in this thread."""
    found = connections.all(initialized_only=True)
    return {connection.alias for connection in found if connection.in_atomic_block}


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Closes and forgets a connection. An exception that struck between two lines of Django's own
    (TimeLimit) can leave a transaction open, in which the next job of this thread would run.
    Closing it rolls it back."""
    connection.close()
    del connections[connection.alias]
