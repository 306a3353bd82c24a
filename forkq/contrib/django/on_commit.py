"""Pushes that wait for the commit of the database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from asgiref.sync import AsyncToSync
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ...client import transactions

# The connections of each thread by their aliases, for a coroutine whose transaction is in another
# thread. One that a newer one has replaced may live on, with a transaction that never ends.
_made: Final[WeakKeyDictionary[threading.Thread, WeakValueDictionary[str, BaseDatabaseWrapper]]] = (
    WeakKeyDictionary()
)
_lock: Final = threading.Lock()


def obey_setting(**_change: Any) -> None:
    """Lets each push wait, if FORKQ_ON_COMMIT says so. A test may change that."""
    transactions.all_wait = getattr(settings, "FORKQ_ON_COMMIT", False) is True


def note_connection(connection: BaseDatabaseWrapper, **_more: Any) -> None:
    """Receiver of ``connection_created``. A connection that the app has made by itself is left
    out."""
    if any(each is connection for each in connections.all(initialized_only=True)):
        with _lock:
            own = _made.setdefault(threading.current_thread(), WeakValueDictionary())
            own[connection.alias] = connection


def on_commit(send: Callable[[], None]) -> None:
    """Calls ``send`` once each transaction is committed that the caller has open now, in any
    database; never if one of them, or a savepoint around this call, is rolled back.

    Without one it is called at once, and no database is asked: it may be down, and a test may
    forbid it. Within the transaction of a TestCase it is called when the test asks for it
    (``captureOnCommitCallbacks``).
    """
    opened = _opened()
    if not opened:
        send()
        return
    push = _HeldPush(send, {each.alias for each in opened})
    for connection in opened:
        connection.on_commit(partial(push.committed, connection.alias))


def held() -> str:
    """What a test is told that misses a job: how many pushes wait for a commit. "" if none does."""
    entries = [entry for each in _of_caller() for entry in each.run_on_commit]
    pushes = {getattr(getattr(call, "func", None), "__self__", None) for _, call, *_ in entries}
    count = sum(isinstance(push, _HeldPush) and push.waits for push in pushes)
    if not count:
        return ""
    return (
        f"pushes that wait for the commit of a transaction: {count}; a TestCase commits none, so "
        "push `with self.captureOnCommitCallbacks(execute=True):`, or in pytest-django with the "
        "fixture django_capture_on_commit_callbacks"
    )


def refusal_of_decisions() -> str:
    """Why a job may not raise a Snooze, a Discard or a Dead now, and do no step; "" if it may. The
    transaction of a TestCase is none of the job's."""
    opened = [each.alias for each in _of_caller() if _is_open(each)]
    if not opened:
        return ""
    return (
        f'the transaction of the database "{opened[0]}" is open, and would be rolled back with '
        "all that the job has written in it"
    )


class _HeldPush:
    """A push that waits for the commits of ``aliases``."""

    def __init__(self, send: Callable[[], None], aliases: set[str]) -> None:
        self._send = send
        self._aliases = aliases

    @property
    def waits(self) -> bool:
        """Whether it has not been sent. Captured callbacks stay in Django's list until the end of
        the test."""
        return bool(self._aliases)

    def committed(self, alias: str) -> None:
        """The transaction of one database is committed; the last one sends."""
        self._aliases.discard(alias)
        if not self._aliases:
            self._send()


def _opened() -> list[BaseDatabaseWrapper]:
    """The connections whose commit a push waits for. Without a transaction of the app's, that is
    one of a TestCase around it, if there is any."""
    opened = [each for each in _of_caller() if _is_open(each)]
    if opened:
        return opened
    own = connections.all(initialized_only=True)
    of_test = {each.alias: each for each in own if each.in_atomic_block}
    if DEFAULT_DB_ALIAS in of_test:
        return [of_test[DEFAULT_DB_ALIAS]]
    return [of_test[alias] for alias in sorted(of_test)[:1]]


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether a connection has a transaction of the app's: those of a TestCase never commit. One
    that is managed by hand (without autocommit) counts: Django refuses to let a call wait for it.
    """
    if connection.in_atomic_block:
        blocks = connection.atomic_blocks
        return any(not getattr(block, "_from_testcase", False) for block in blocks)
    return connection.connection is not None and not connection.autocommit


def _of_caller() -> list[BaseDatabaseWrapper]:
    """The connections of this thread that have been used. Those of a coroutine are in the thread
    that waits for it in ``async_to_sync``: Django runs its queries there."""
    found = list(connections.all(initialized_only=True))
    executor = getattr(AsyncToSync.executors, "current", None)
    waits = getattr(executor, "_work_thread", None)
    if waits is None or waits is threading.current_thread():
        return found
    with _lock:
        return [*found, *_made.get(waits, {}).values()]
