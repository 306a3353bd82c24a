"""Starlette and FastAPI: a lifespan for the client, and pushes that never block the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forkq import default_client

from .awaitable import close, push

__all__ = ["lifespan", "push"]


@asynccontextmanager
async def lifespan(app: object = None) -> AsyncIterator[None]:
    """Opens the client when the app starts, and closes it when it stops: ``FastAPI(
    lifespan=lifespan)``, or ``async with lifespan(app):`` in a lifespan of your own.

    Raises ConfigError if the configuration is wrong: the app does not start then. Redis may be
    away at that moment; each push connects by itself.
    """
    client = await asyncio.to_thread(default_client.default)
    try:
        yield
    finally:
        await close()
        await asyncio.to_thread(client.close)
