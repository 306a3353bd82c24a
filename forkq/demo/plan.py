"""Which jobs the files become, and how many of them: enough to watch, few enough to wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from PIL import Image

from .inputs import Inputs
from .jobs import Announce, Gallery, Thumbnail, Totals, Words

TREE: Final = """\
# Written by `forkq demo` for its own tree.
[forkq]
app = "forkq.demo.jobs"
tag = "demo"
timeout = 10
pidfile = {pidfile}
state_dir = {state_dir}

[redis]
url = "embedded"

[log]
level = "info"
format = "logfmt"

[capsules.pictures]  # two children with four processors each
queues = ["pictures"]
concurrency = 4
workers = 2

[capsules.files]     # one child; what stands first goes first
queues = ["extras", "files"]
concurrency = 3
"""
_PROCESSORS: Final = 8  # of the capsule `pictures`

_SECONDS: Final = 14.0
_WIDTHS: Final = tuple(range(64, 1024, 20))
_USUAL_COST: Final = 0.03


@dataclass(frozen=True, slots=True)
class Pushed:
    """One job that Redis has taken, and the file that it shall leave. ``result`` is relative."""

    jid: str
    kind: str
    source: str
    result: str


@dataclass(slots=True)
class Plan:
    """The work on one set of files. Rows are a job's arguments: source, result, ..."""

    thumbnails: list[tuple[str, str, int]] = field(default_factory=list)
    totals: list[tuple[str, str]] = field(default_factory=list)
    words: list[tuple[str, str]] = field(default_factory=list)
    sizes: int = 0

    @property
    def size(self) -> int:
        """How many jobs it takes, the two extra ones included."""
        return len(self.thumbnails) + len(self.totals) + len(self.words) + 2


def make_plan(inputs: Inputs, torn: Path) -> Plan:
    """A thumbnail of each picture in as many sizes as fill some seconds on this machine; one job
    for each other file; and one for the picture ``torn``, which cannot be read."""
    widths = _widths(inputs.pictures)
    names = _names(inputs.pictures)
    return Plan(
        thumbnails=[
            (str(torn), f"thumbnails/{torn.stem}/0320.jpg", 320),
            *(
                (str(path), f"thumbnails/{name}/{width:04}.jpg", width)
                for width in widths
                for path, name in zip(inputs.pictures, names, strict=True)
            ),
        ],
        totals=_rows("totals", inputs.tables),
        words=_rows("words", inputs.texts),
        sizes=len(widths) if inputs.pictures else 0,
    )


def push(plan: Plan) -> list[Pushed]:
    """Pushes all of it but the gallery, which comes last. Raises redis-py's errors."""
    first = ("the network", "announced.json")
    return [
        Pushed(Announce.perform_async(*first), "Announce", *first),
        *_named("Totals", plan.totals, Totals.perform_bulk(plan.totals)),
        *_named("Words", plan.words, Words.perform_bulk(plan.words)),
        *_named("Thumbnail", plan.thumbnails, Thumbnail.perform_bulk(plan.thumbnails)),
    ]


def push_gallery(delay: float) -> Pushed:
    """Schedules the page with everything on it, ``delay`` seconds from now."""
    where = (".", "index.html")
    return Pushed(Gallery.perform_in(delay, *where), "Gallery", *where)


def _named(
    kind: str, rows: Sequence[tuple[str, str] | tuple[str, str, int]], jids: Sequence[str]
) -> list[Pushed]:
    return [Pushed(jid, kind, row[0], row[1]) for jid, row in zip(jids, rows, strict=True)]


def _rows(folder: str, files: Sequence[Path]) -> list[tuple[str, str]]:
    return [(str(p), f"{folder}/{n}.json") for p, n in zip(files, _names(files), strict=True)]


def _names(files: Sequence[Path]) -> list[str]:
    """The files' names without ending; a second one of the same name gets a number."""
    taken: set[str] = {"torn"}
    return [_free(path.stem, taken) for path in files]


def _free(stem: str, taken: set[str]) -> str:
    name, number = stem, 1
    while name.lower() in taken:  # lower: not every file system tells a.jpg from A.jpg
        number += 1
        name = f"{stem}-{number}"
    taken.add(name.lower())
    return name


def _widths(pictures: Sequence[Path]) -> list[int]:
    """As many widths as make about ``_SECONDS`` of work here, spread evenly."""
    at_once = min(_PROCESSORS, _cores())
    wanted = round(_SECONDS * at_once / _cost(pictures) / max(1, len(pictures)))
    step = len(_WIDTHS) / min(max(wanted, 1), len(_WIDTHS))
    picked = {_WIDTHS[int(step * (index + 0.5))] for index in range(round(len(_WIDTHS) / step))}
    return sorted(picked)


def _cost(pictures: Sequence[Path]) -> float:
    """Seconds that one thumbnail takes, measured on a few of them."""
    step = max(1, len(pictures) // 3)
    costs = [cost for path in pictures[::step][:4] if (cost := _measured(path)) is not None]
    return max(0.001, sum(costs) / len(costs)) if costs else _USUAL_COST


def _measured(path: Path) -> float | None:
    started = time.perf_counter()
    try:
        with Image.open(path) as picture:
            picture.convert("RGB").thumbnail((480, 480), Image.Resampling.LANCZOS)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # its own job will find out
    return time.perf_counter() - started


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
