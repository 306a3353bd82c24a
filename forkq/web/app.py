"""The ASGI app: its pages, its static files and what each request passes before them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from ..screens.facts import ShardObservers
from ..screens.shards import Shards
from .live import Streams
from .pages import all_routes, navigation
from .refused import HANDLERS
from .security import Guard
from .settings import WebSettings
from .shards import ShardOfPath
from .worker import Worker

STATIC: Final = Path(__file__).with_name("static")


def create_app(settings: WebSettings | None = None) -> Starlette:
    """The web UI as an ASGI app, to be served or mounted at any path. It uses the connections with
    which this process pushes (``forkq.configure``)."""
    settings = settings or WebSettings()
    app = Starlette(
        routes=[*all_routes(), Mount("/static", StaticFiles(directory=STATIC))],
        middleware=[
            Middleware(Guard, settings=settings),
            Middleware(ShardOfPath, only=settings.shard),
        ],
        exception_handlers=HANDLERS,
    )
    app.state.settings = settings
    app.state.navigation = navigation()
    app.state.observers = ShardObservers()
    app.state.workers = defaultdict[str, Worker](Worker)
    app.state.streams = Streams()
    app.state.shards = Shards(app.state.observers)
    return app
