"""Pushes that wait for the commit of the database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ...client import transactions


def obey_setting(**_change: Any) -> None:
    """Lets each push wait, if FORKQ_ON_COMMIT says so. A test may change that."""
    transactions.all_wait = getattr(settings, "FORKQ_ON_COMMIT", False) is True


def on_commit(send: Callable[[], None]) -> None:
    """Calls ``send`` once each transaction is committed that this thread has open now, in any
    database; never if one of them, or a savepoint around this call, is rolled back.

    Without one, Django calls it at once; within the transaction of a TestCase, when the test asks
    for it (``captureOnCommitCallbacks``).
    """
    opened = [each.alias for each in connections.all(initialized_only=True) if _is_open(each)]
    waiting = set(opened or [DEFAULT_DB_ALIAS])

    def committed(alias: str) -> None:
        waiting.discard(alias)
        if not waiting:
            send()

    for alias in sorted(waiting):
        transaction.on_commit(partial(committed, alias), using=alias)


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether a connection has a transaction of the app's: those of a TestCase never commit."""
    blocks = connection.atomic_blocks
    return any(not getattr(block, "_from_testcase", False) for block in blocks)
