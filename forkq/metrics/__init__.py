"""What forkq tells a monitoring system, as OpenMetrics: the extra ``metrics``.

``Exposition.render`` makes the text from what stands in Redis: no process has to be asked, and a
process that restarts loses no count. ``forkq metrics`` serves it (server.py).
"""

from __future__ import annotations

from .exposition import Exposition, Page

__all__ = ["Exposition", "Page"]
