"""The database connections of a job: renewed before it, closed after it, as with a request.

Django gives each thread its own connections. In a web process signals of requests renew them;
in a child, without this, a connection that has died would fail every later job of its thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

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
