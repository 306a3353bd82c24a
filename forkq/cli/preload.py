"""The import of the app before the fork, with ``preload = true``."""

from __future__ import annotations

import gc

from ..config.config import Config
from ..doctor.opened import Opened
from ..master.spawn import refuse_threads
from ..runtime.app_loader import load_app
from ..store.unserved_queues import finish
from .app import app_errors


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
