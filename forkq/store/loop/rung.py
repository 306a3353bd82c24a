"""A wait for an event of asyncio, for a while."""

from __future__ import annotations

import asyncio


async def rung(bell: asyncio.Event, seconds: float) -> None:
    """Waits until the bell is set, for so many seconds at most, and clears it. Up to Python 3.11,
    ``asyncio.wait_for`` forgets a cancel that comes in the turn in which the bell is set."""
    end = asyncio.get_running_loop().call_later(seconds, bell.set)
    try:
        await bell.wait()
    finally:
        end.cancel()
    bell.clear()
