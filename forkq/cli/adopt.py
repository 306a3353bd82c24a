"""``forkq adopt``: what to change in a code base that uses another library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ..adopt.scan import ToMigrate, places
from ..adopt.source import Skipped, Source, read
from ..units import plural
from .options import json_option
from .output import echo, echo_objects


@click.command()
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...",
    type=click.Path(exists=True, path_type=Path),
)  # fmt: skip
@json_option
def adopt(paths: Sequence[Path], wants_json: bool) -> int:
    """List what to change in a code base that uses Celery, RQ or Dramatiq.

    Of Huey, Taskiq, SAQ, arq, APScheduler, django-rq and django-celery-beat it finds the imports,
    and names the section of the documents about them. Reads the Python files below PATH; imports
    nothing, changes nothing. Each place has file and line, what stands there, and what to write
    instead. A file that cannot be parsed is told on standard error and skipped.

    Exit codes: 0 if there is nothing to change, 1 if there are places, 2 if PATH is wrong.
    """
    files = read(paths)
    for file in files:
        if isinstance(file, Skipped):
            echo(f"{file.path}: skipped: {file.why}", err=True)
    found = places([file for file in files if isinstance(file, Source)])
    if wants_json:
        echo_objects(place.as_dict() for place in found)
    else:
        echo(_text(found, len(files)))
    return int(bool(found))


def _text(found: Sequence[ToMigrate], files: int) -> str:
    if not found:
        return f"nothing to change: no use of a library that it knows in {files} Python files"
    changed = len({place.file for place in found})
    summary = f"{plural(len(found), 'place')} to change, in {changed} of {files} Python files"
    return "\n".join([*map(str, found), "", summary])
