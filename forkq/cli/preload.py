"""The import of the app before the fork, with ``preload = true``."""

from __future__ import annotations

import gc

from ..config.config import Config
from ..doctor.opened import Opened
from ..errors import CannotBoot, ForkqError
from ..master.spawn import refuse_threads
from ..runtime.app_loader import load_app
from ..wire.printable import traceback_of


def preload(config: Config) -> tuple[str, ...]:
    """Imports the app if the configuration says so, and freezes it: the garbage collector leaves
    its objects alone, so that the children go on sharing their memory. Returns which sockets the
    import has opened. Raises CannotBoot."""
    if not config.preload:
        return ()
    opened = Opened()
    try:
        with opened.watch():
            load_app(config.app)
    except KeyboardInterrupt:
        raise
    except ForkqError as error:
        raise CannotBoot(str(error)) from None
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it would look like a clean end
        apps = ", ".join(config.app)
        raise CannotBoot(
            f"the app {apps} failed while it was preloaded:\n{traceback_of(error)}"
        ) from None
    refuse_threads(opened.threads())
    gc.collect()
    gc.freeze()
    return tuple(opened.sockets())
