"""The web UI: an ASGI app of server-rendered pages, for ``forkq web`` or an app to mount it."""

from __future__ import annotations

from .access import by_header
from .app import create_app
from .settings import WebSettings

__all__ = ["WebSettings", "by_header", "create_app"]
