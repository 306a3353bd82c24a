"""Starlette and FastAPI: a lifespan that opens and closes the client of awaited pushes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forkq import default_client

__all__ = ["lifespan"]


@asynccontextmanager
async def lifespan(app: object = None) -> AsyncIterator[None]:
    """Reads the configuration when the app starts, and closes the connections when it stops:
    ``FastAPI(lifespan=lifespan)``, or ``async with lifespan(app):`` in a lifespan of your own.

    Raises ConfigError if the configuration is wrong: the app does not start then. Redis may be
    away at that moment; the first push connects. At the end, the pushes under way are awaited.
    """
    client = await default_client.adefault()
    try:
        yield
    finally:
        await client.aclose()
        client.close()
