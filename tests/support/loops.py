"""The kinds of event loop on which forkq is tested: that of asyncio, and uvloop if it is there."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from .waiting import wait_until

Run: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]

LOOPS: Final = ["asyncio", *(["uvloop"] if importlib.util.find_spec("uvloop") else [])]


def open_pipes() -> None:
    """Has uvloop open what it opens once for a whole process: no test has left that open."""
    for name in LOOPS[1:]:
        run_of(name)(asyncio.sleep(0))


def run_of(name: str) -> Run:
    """``asyncio.run``, or that of uvloop."""
    return asyncio.run if name == "asyncio" else importlib.import_module("uvloop").run


async def turns(count: int) -> None:
    """Lets the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], what: str, deadline: float | None = None) -> None:
    """``wait_until``, awaited: the loop goes on meanwhile."""
    await asyncio.to_thread(wait_until, condition, what=what, deadline=deadline)
