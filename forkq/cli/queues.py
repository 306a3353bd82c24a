"""Queues that nobody has heard of: most likely misspelt, so the commands say so, and go on."""

from __future__ import annotations

from collections.abc import Iterable

from .. import api
from ..config.config import Config
from ..config.schema import nearest
from ..limits.patterns import among
from .output import tell


def warn_of_strangers(names: Iterable[str], config: Config) -> None:
    """On standard error, for each queue that nobody has pushed to and no capsule works on."""
    known = sorted({*api.queue_names(), *config.queue_names})
    for name in names:
        if not among(name, known):
            near = nearest(name, known)
            hint = f'; the nearest is "{near}"' if near else ""
            tell(f'warning: nobody has pushed to "{name}" so far{hint}', err=True)
