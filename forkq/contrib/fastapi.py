"""FastAPI: the lifespan of ``forkq.contrib.starlette``."""

from __future__ import annotations

from .starlette import lifespan

__all__ = ["lifespan"]
