"""FastAPI: what ``forkq.contrib.starlette`` has, and a dependency that a test can replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

from fastapi import Depends

from .starlette import lifespan, push

__all__ = ["Push", "Pushes", "lifespan", "push", "pushes"]

P = ParamSpec("P")
R = TypeVar("R")


class Pushes:
    """What the dependency gives a handler: ``await push(mail.perform_async, 7)``."""

    async def __call__(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Awaits a push, as ``forkq.contrib.starlette.push`` does."""
        return await push(call, *args, **kwargs)


async def pushes() -> Pushes:
    """The dependency. Tests replace it by ``app.dependency_overrides[pushes]``."""
    return Pushes()


Push = Annotated[Pushes, Depends(pushes)]
