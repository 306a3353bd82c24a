"""The thread that waits for keys ends, while others come."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from forkq.store.watch.key_watch import KeyWatch


def test_a_thread_that_ends_does_not_go_on_beside_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A waiter comes in the moment in which the thread has let go of the lock."""
    make: Any = None  # no thread makes a connection here
    watch = KeyWatch(make, Exception)
    monkeypatch.setattr(watch, "_run", lambda: None)
    with watch._lock:
        watch._start()

    class Lock:
        def __enter__(self) -> None:
            assert watch._is_running

        def __exit__(self, *_: object) -> None:
            watch._lock = threading.Lock()
            watch.add(SimpleNamespace(key="k", tell=Any))

    monkeypatch.setattr(watch, "_lock", Lock())
    idle: Any = SimpleNamespace(attend=lambda _: None, is_idle=True, is_left=True)
    assert not watch._attend(idle)
    assert watch._is_running  # the next thread, which has the waiter
    assert len(watch._orders) == 1
    with watch._lock:
        watch._note_end()
