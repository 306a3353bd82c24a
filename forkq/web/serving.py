"""The web UI as a server of its own: uvicorn in one process, on one socket."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from ..runtime.listener import listen

_SECONDS_TO_STOP = 2  # live connections never end by themselves


def serve(app: ASGIApp, host: str, port: int, listening: Callable[[str], None]) -> None:
    """Serves until TERM or INT. ``listening`` is called with the URL. Raises ForkqError if the
    address cannot be listened at."""
    with listen(host, port) as bound:
        shown = f"[{host}]" if ":" in host else host
        listening(f"http://{shown}:{bound.getsockname()[1]}")
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=500,
            timeout_graceful_shutdown=_SECONDS_TO_STOP,
        )
        uvicorn.Server(config).run([bound])
