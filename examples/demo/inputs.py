"""The demo's input: the files of the folder FORKQ_DEMO_INPUT, or samples that it makes."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from forkq import ForkqError

VARIABLE = "FORKQ_DEMO_INPUT"
RESULTS = "demo-results"

_ENDINGS = {".csv", ".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"}
_MOST = 40  # of each kind, so that the demo ends soon
_MOST_REMARKS = 3
_COLOURS = [("#18285c", "#fab078"), ("#62a0d8", "#ecf0e4"), ("#3c1850", "#f47860")]
_PRICES = [("anchor", 89.0), ("compass", 34.5), ("lamp", 27.9), ("net", 12.25), ("rope", 4.75)]


class Inputs(NamedTuple):
    """The chosen files, absolute; ``remarks`` says what was left out and why."""

    folder: Path
    pictures: list[Path]
    tables: list[Path]
    remarks: list[str]

    def __str__(self) -> str:
        return f"Pictures: {len(self.pictures)}, CSV files: {len(self.tables)}"


def choose(folder: Path) -> Inputs:
    """Looks through ``folder`` and what is below it. Raises ForkqError if no file there will do."""
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        problem = "it is not a folder" if folder.exists() else "there is no such folder"
        raise ForkqError(f"{VARIABLE}={folder}: {problem}; leave it out and the demo makes samples")
    chosen = Inputs(folder, [], [], [])
    for path in sorted(islice(folder.rglob("*.*"), 20_000)):
        ending, below = path.suffix.lower(), path.relative_to(folder).parts
        if ending not in _ENDINGS or any(name[0] == "." or name == RESULTS for name in below):
            continue  # of another kind, hidden, or the result of an earlier demo
        files = chosen.tables if ending == ".csv" else chosen.pictures
        if problem := _problem(path) or ("there are enough" if len(files) == _MOST else ""):
            chosen.remarks.append(f"Left out {path}: {problem}")
        else:
            files.append(path)
    if more := chosen.remarks[_MOST_REMARKS:]:
        chosen.remarks[_MOST_REMARKS:] = [f"Left out {len(more)} more files"]
    if not chosen.pictures and not chosen.tables:
        problem = "no file there that the demo can use; it takes pictures and CSV files"
        raise ForkqError("\n".join([f"{VARIABLE}={folder}: {problem}", *chosen.remarks]))
    return chosen


def make(folder: Path, check: Callable[[], None]) -> Inputs:
    """Fills ``folder``, with the same files every time. Calls ``check`` often: it may raise."""
    folder.mkdir(parents=True)
    for number in range(1, 25):
        check()
        _picture(random.Random(number)).save(folder / f"fractal-{number:02}.jpg", quality=90)
    for year in range(2016, 2024):
        with (folder / f"sales-{year}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["item", "price"])
            rows.writerows(random.Random(year).choices(_PRICES, k=12_000))
    return choose(folder)


def make_torn(path: Path) -> Path:
    """A picture whose second half is missing, as after a broken upload."""
    Image.effect_noise((640, 480), 64).save(path, "JPEG")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def _picture(draw: random.Random) -> Image.Image:
    """A part of the Mandelbrot set's edge, in two colours."""
    x, y, half = draw.uniform(-0.8, -0.7), draw.uniform(0.05, 0.25), draw.uniform(0.04, 0.12)
    small = Image.effect_mandelbrot((800, 600), (x - half, y - half, x + half, y + half), 60)
    dark, light = draw.choice(_COLOURS)
    return ImageOps.colorize(ImageOps.autocontrast(small), dark, light).resize((1600, 1200))


def _problem(path: Path) -> str:
    """Why the demo cannot use the file, or "". Damaged content is for its job to find."""
    try:
        str(path).encode()  # JSON cannot carry other names
        return "" if path.stat().st_size else "it is empty"
    except (OSError, UnicodeEncodeError) as error:
        return str(error)
