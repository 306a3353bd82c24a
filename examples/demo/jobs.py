"""The demo's app: what ``forkq start`` loads, and what a user's own jobs.py would look like.

Each job reads ``source`` and writes ``result``. A killed job runs again, so a result appears whole
or not at all. Relative paths start at the folder of this demo run, where the children work.
"""

from __future__ import annotations

import csv
import html
import json
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image, ImageOps

import forkq

FIGURES: dict[str, Callable[[list[float]], float]]
FIGURES = {"count": len, "sum": math.fsum, "lowest": min, "highest": max}


class Thumbnail(forkq.Job, name="Thumbnail", queue="pictures", retry=0):
    """A small version of a picture. No retries: a damaged file stays damaged."""

    def perform(self, source: str, result: str, width: int) -> None:
        with Image.open(source) as picture:
            small = ImageOps.exif_transpose(picture).convert("RGB")
        small.thumbnail((width, width), Image.Resampling.LANCZOS)
        publish(result, lambda path: small.save(path, "JPEG", quality=85))


class Totals(forkq.Job, name="Totals", queue="files", retry=0):
    """Count, sum, lowest and highest of every column of numbers in a CSV file."""

    def perform(self, source: str, result: str) -> None:
        with Path(source).open(newline="", encoding="utf-8", errors="replace") as file:
            rows = list(csv.DictReader(file))
        columns: dict[str, list[float]] = defaultdict(list)
        for name, value in (pair for row in rows for pair in row.items()):
            columns[str(name)] += numbers_in(value)
        columns = {name: found for name, found in columns.items() if found}
        totals = {n: {f: FIGURES[f](found) for f in FIGURES} for n, found in columns.items()}
        publish_json(result, {"file": source, "rows": len(rows), "columns": totals})


class Announce(forkq.Job, name="Announce", queue="extras", retry=5):
    """Fails at its first run, as a call over a network sometimes does."""

    def retry_in(self, count: int, error: BaseException, job: dict[str, Any]) -> float:
        """A second instead of fifteen; forkq adds a random share."""
        return 1.0

    def perform(self, source: str, result: str) -> None:
        if self.retry_count is None:
            raise ConnectionError("the other side hung up")
        publish_json(result, {"announced": source, "retry": self.retry_count})


class Gallery(forkq.Job, name="Gallery", queue="extras", retry=0):
    """A page with all thumbnails."""

    def perform(self, source: str, result: str) -> None:
        paths = (path.as_posix() for path in sorted(Path(source).glob("thumbnails/**/*.jpg")))
        images = "\n".join(f'<img src="{html.escape(quote(path))}">' for path in paths)
        page = f"<!doctype html>\n<title>forkq demo</title>\n{images}\n"
        publish(result, lambda path: path.write_text(page, encoding="utf-8"))


@forkq.middleware.server.append
def keep_journal(job: dict[str, Any], call: Callable[[], Any]) -> Any:
    """Writes down when each run begins and how it ends. The show reads along."""
    write_event("began", job)
    try:
        value = call()
    except BaseException as error:
        write_event("failed", job, f"{type(error).__name__}: {error}")
        raise
    write_event("done", job)
    return value


def write_event(what: str, job: dict[str, Any], error: str = "") -> None:
    """Appends a line in one ``write``: lines of several processes do not mix, and a kill leaves
    whole lines."""
    event = {"what": what, "at": time.time(), "job": job["class"], "jid": job["jid"]}
    event |= {"result": job["args"][1], "pid": os.getpid(), "error": error}
    # Payload fields that forkq writes: the retry's number, and a record of each crash.
    event |= {"retry": job.get("retry_count"), "crashed": "crashes" in job.get("forkq", {})}
    with Path("journal.jsonl").open("ab", buffering=0) as file:
        file.write(json.dumps(event).encode() + b"\n")


def publish(result: str, write: Callable[[Path], object]) -> None:
    """Lets ``write`` make a file beside ``result``, and then gives it that name."""
    target = Path(result)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def publish_json(result: str, content: dict[str, Any]) -> None:
    """Publishes ``content`` as JSON."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    publish(result, lambda path: path.write_text(f"{text}\n", encoding="utf-8"))


def numbers_in(value: object) -> list[float]:
    """The number that a CSV field spells, if it does."""
    with suppress(TypeError, ValueError):
        number = float(value)  # type: ignore[arg-type]
        return [number] if math.isfinite(number) else []
    return []
