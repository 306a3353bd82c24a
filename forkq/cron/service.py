"""A service: the trees that run the same app for the same purpose, on any number of hosts.

A periodic job of the code or of a forkq.toml belongs to the service that published it. Its origin
says so: ``code:shop``, ``file:shop``. It ticks only while a tree of its service runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Where a tree's entries are defined.
_KINDS: Final = ("code", "file")


def service_name(tag: str, apps: Sequence[str]) -> str:
    """The service of a tree: its tag, or without a tag its apps.

    Two services on one Redis need different names: each removes periodic jobs that it published
    before and no longer defines.
    """
    return tag or ",".join(apps)


def origin_of(kind: str, service: str) -> str:
    """The origin of an entry that ``service`` publishes from its "code" or its "file"."""
    return f"{kind}:{service}"


def service_of(origin: str) -> str | None:
    """The service that published an entry of this origin; None if it was added at run time."""
    kind, colon, service = origin.partition(":")
    return service if colon and kind in _KINDS else None
