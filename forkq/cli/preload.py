"""The import of the app before the fork, with ``preload = true``."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

from ..config.config import Config
from ..doctor.opened import Opened
from ..errors import CannotBoot, CannotStartYet
from ..master.spawn import refuse_threads
from ..runtime.app_loader import is_lasting, load_app
from ..store.unserved_queues import finish
from .app import app_errors

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def preload(config: Config) -> tuple[str, ...]:
    """Imports the app if the configuration says so, and freezes it: the garbage collector leaves
    its objects alone, so that the children go on sharing their memory. Returns which sockets the
    import has opened. Raises CannotBoot."""
    if not config.preload:
        return ()
    opened = Opened()
    with app_errors(config.app, "preloaded"), opened.watch():
        load_app(config.app)
    finish()  # a push of the app has started a thread of ours that ends by itself
    refuse_threads(opened.threads())
    gc.collect()
    gc.freeze()
    return tuple(opened.sockets())


def preload_if_possible(
    config: Config, logger: FilteringBoundLogger, *, must_run: bool
) -> tuple[Config, tuple[str, ...]]:
    """As ``preload``. If that fails, but a later try may not, each child imports the app itself, as
    often as it takes: see ``is_lasting``. With ``must_run`` also if no try can help: the master has
    children to keep. Raises CannotBoot, or CannotStartYet if the failed import has left threads."""
    try:
        return config, preload(config)
    except CannotBoot as error:
        if is_lasting(error) and not must_run:
            raise
        logger.error("the preload failed; each child imports the app itself", error=str(error))
        if not must_run:
            _refuse_threads_of(error)
        return replace(config, preload=False), ()


def _refuse_threads_of(error: CannotBoot) -> None:
    try:
        refuse_threads()
    except CannotBoot:
        raise CannotStartYet(str(error)) from None
