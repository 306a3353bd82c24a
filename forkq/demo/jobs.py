"""The demo's app: what ``forkq start`` loads, and what a user's own jobs.py would look like.

Each job reads ``source`` and writes ``result``, whole or not at all: a job that was killed runs
again, and must not leave half a picture behind. Paths start at the demo's folder, where the
children work.
"""

from __future__ import annotations

import csv
import html
import json
import math
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from PIL import Image, ImageOps

from .. import middleware
from ..job import Job
from . import journal

_JOURNAL: Final = Path(journal.NAME)
_MOST_COMMON: Final = 25
_ON_THE_PAGE: Final = 300  # pixels; the next larger thumbnail is shown

_PAGE: Final = """<!doctype html>
<meta charset="utf-8"><title>forkq demo</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; color: #222 }}
figure {{ display: inline-block; margin: 0 1rem 1rem 0; vertical-align: top }}
img {{ height: 11rem; border-radius: .4rem; display: block }}
td {{ padding: .1rem 1.2rem .1rem 0 }}
</style>
<h1>What forkq made</h1>
{pictures}
<table>
{rows}</table>
"""


class Thumbnail(Job, name="Thumbnail", queue="pictures", retry=0):
    """A small version of a picture. A file that is no picture will not become one: no retries."""

    def perform(self, source: str, result: str, width: int) -> None:
        with Image.open(source) as picture:
            small = ImageOps.exif_transpose(picture).convert("RGB")
        small.thumbnail((width, width), Image.Resampling.LANCZOS)
        _publish(result, lambda path: small.save(path, "JPEG", quality=85))


class Totals(Job, name="Totals", queue="files", retry=0):
    """Count, sum, lowest, highest and mean of every column of numbers in a CSV file."""

    def perform(self, source: str, result: str) -> None:
        with Path(source).open(newline="", encoding="utf-8", errors="replace") as file:
            rows = list(csv.DictReader(file))
        columns: dict[str, list[float]] = {}
        for row in rows:
            for name, value in row.items():
                if (number := _number(value)) is not None:
                    columns.setdefault(str(name), []).append(number)
        totals = {name: _total(numbers) for name, numbers in columns.items()}
        _write(result, {"file": Path(source).name, "rows": len(rows), "columns": totals})


class Words(Job, name="Words", queue="files", retry=0):
    """How many words a text has, and which are the most common."""

    def perform(self, source: str, result: str) -> None:
        text = Path(source).read_text(encoding="utf-8", errors="replace")
        words = Counter(re.findall(r"[^\W\d_]+", text.lower()))
        common = dict(words.most_common(_MOST_COMMON))
        _write(result, {"file": Path(source).name, "words": words.total(), "common": common})


class Announce(Job, name="Announce", queue="extras", retry=5):
    """The flaky one: its first try fails, as the network does now and then."""

    def retry_in(self, count: int, error: BaseException, job: dict[str, Any]) -> float:
        """A second instead of fifteen; the random share that spreads retries comes on top."""
        return 1.0

    def perform(self, source: str, result: str) -> None:
        if self.retry_count is None:
            raise ConnectionError("the other side hung up")
        _write(result, {"announced": source, "retry": self.retry_count})


class Gallery(Job, name="Gallery", queue="extras", retry=0):
    """A page with everything that the other jobs made."""

    def perform(self, source: str, result: str) -> None:
        folder = Path(source)
        pictures = [_figure(folder, sizes) for sizes in sorted(folder.glob("thumbnails/*"))]
        totals = [_row(folder, file) for file in sorted(folder.glob("totals/*.json"))]
        words = [_row(folder, file) for file in sorted(folder.glob("words/*.json"))]
        page = _PAGE.format(pictures="".join(pictures), rows="".join(totals + words))
        _publish(result, lambda path: path.write_text(page, encoding="utf-8"))


@middleware.server.append
def keep_journal(job: dict[str, Any], call: Callable[[], Any]) -> Any:
    """Writes down every run, for the screen and for the books."""
    journal.append(_JOURNAL, "began", job)
    try:
        value = call()
    except BaseException as error:
        journal.append(_JOURNAL, "failed", job, f"{type(error).__name__}: {error}")
        raise
    journal.append(_JOURNAL, "done", job)
    return value


def _figure(folder: Path, sizes: Path) -> str:
    made = sorted(sizes.glob("*.jpg"))
    if not made:
        return ""
    shown = next((path for path in made if int(path.stem) >= _ON_THE_PAGE), made[-1])
    caption = f"{html.escape(sizes.name)}, {len(made)} sizes"
    link = _link(folder, shown)
    return f'<figure><a href="{link}"><img src="{link}"></a>{caption}</figure>\n'


def _row(folder: Path, file: Path) -> str:
    found = json.loads(file.read_bytes())
    said = f"{found['rows']:,} rows" if "rows" in found else f"{found['words']:,} words"
    name = html.escape(found["file"])
    return f'<tr><td><a href="{_link(folder, file)}">{name}</a></td><td>{said}</td></tr>\n'


def _link(folder: Path, path: Path) -> str:
    return html.escape(quote(path.relative_to(folder).as_posix()))


def _number(value: object) -> float | None:
    """The number that a CSV field spells, if it does."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _total(numbers: list[float]) -> dict[str, float]:
    total = math.fsum(numbers)
    return {
        "count": len(numbers),
        "sum": round(total, 6),
        "lowest": min(numbers),
        "highest": max(numbers),
        "mean": round(total / len(numbers), 6),
    }


def _write(result: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    _publish(result, lambda path: path.write_text(f"{text}\n", encoding="utf-8"))


def _publish(result: str, write: Callable[[Path], object]) -> None:
    """Lets ``write`` make a file beside ``result``, and then gives it that name."""
    target = Path(result)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
