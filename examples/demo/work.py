"""The work: which jobs the files become, and how many of them; and the pushes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from .inputs import Inputs
from .jobs import Announce, Gallery, Thumbnail, Totals

_SECONDS = 14.0  # how long the thumbnails shall take on this machine


class PushedJob(NamedTuple):
    """A job that Redis has taken, and the file that it shall leave, relative to the results."""

    jid: str
    kind: str
    source: str
    result: str


class Work:
    """What there is to do. ``rows``: the arguments of each kind's jobs, of which the first two are
    the source and the result. The gallery comes last."""

    def __init__(self, rows: dict[str, list[tuple[Any, ...]]]) -> None:
        self.planned = {kind: len(found) for kind, found in rows.items() if found} | {"Gallery": 1}
        self.pushed: list[PushedJob] = []
        self.rows = rows

    def push(self) -> None:
        """Pushes all jobs but the gallery, a kind in one round trip. Raises ServerUnavailable."""
        for job in (Announce, Totals, Thumbnail):
            rows = self.rows[job.__name__]
            for jid, row in zip(job.perform_bulk(rows), rows, strict=True):
                self.pushed.append(PushedJob(jid, job.__name__, row[0], row[1]))

    def schedule_gallery(self, delay: float) -> None:
        """Schedules the page with everything on it, ``delay`` seconds from now."""
        jid = Gallery.perform_in(delay, ".", "index.html")
        self.pushed.append(PushedJob(jid, "Gallery", ".", "index.html"))


def plan(inputs: Inputs, torn: Path) -> Work:
    """Thumbnails of each picture in as many sizes as fill some seconds on this machine, one job for
    each other file, and one for the picture ``torn``, which cannot be read.

    A result is named after its file, with the folders and the ending: no two share one.
    """
    names = {path: path.relative_to(inputs.folder) for path in inputs.pictures + inputs.tables}
    thumbnails = [
        (str(path), f"thumbnails/{names[path]}/{width:04}.jpg", width)
        for width in _widths(inputs.pictures)
        for path in inputs.pictures
    ]
    rows: dict[str, list[tuple[Any, ...]]] = {
        "Thumbnail": [(str(torn), "thumbnails/(torn)/0320.jpg", 320), *thumbnails],
        "Totals": [(str(path), f"totals/{names[path]}.json") for path in inputs.tables],
        "Announce": [("the network", "announced.json")],
    }
    return Work(rows)


def _widths(pictures: Sequence[Path]) -> list[int]:
    """As many widths as make about ``_SECONDS`` of work, measured on a few of the pictures."""
    started = time.perf_counter()
    for path in pictures[:4]:
        with suppress(OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            Image.open(path).convert("RGB").thumbnail((480, 480), Image.Resampling.LANCZOS)
    cost = max(0.001, (time.perf_counter() - started) / 4)
    wanted = _SECONDS * min(8, os.cpu_count() or 1) / cost / max(1, len(pictures))
    return list(range(64, 1024, max(20, round(960 / max(1.0, wanted)))))
