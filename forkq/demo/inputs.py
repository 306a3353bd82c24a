"""Which files the demo works on: those of FORKQ_DEMO_INPUT, or a set that it makes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from ..errors import ForkqError

VARIABLE: Final = "FORKQ_DEMO_INPUT"
RESULTS: Final = "demo-results"

_PICTURES: Final = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"}
_TEXTS: Final = {".txt", ".md", ".rst", ".log"}
# Enough for a show; a holiday's photographs would make an evening of it.
_MOST: Final = {"picture": 40, "CSV file": 20, "text": 20}
_REFUSED_NAMED: Final = 3
_LOOKED_AT: Final = 20_000
_LARGEST: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Inputs:
    """The chosen files, absolute; ``remarks`` says what was left out and why."""

    folder: Path
    pictures: tuple[Path, ...]
    tables: tuple[Path, ...]
    texts: tuple[Path, ...]
    remarks: tuple[str, ...] = ()


def choose(folder: Path) -> Inputs:
    """Looks through ``folder`` and what is below it. Raises ForkqError if nothing there will do."""
    folder = folder.expanduser().absolute()
    _check_folder(folder)
    files = list(islice(_walk(folder), _LOOKED_AT + 1))
    remarks = []
    if len(files) > _LOOKED_AT:
        files.pop()
        remarks.append(f"looked at the first {_LOOKED_AT:,} files of {folder} only")
    found: dict[str, list[Path]] = {kind: [] for kind in _MOST}
    refused = []
    for path in sorted(files):
        kind = _kind(path)
        if kind is None:
            continue
        if why := _unusable(path):
            refused.append(f"left out {_printable(path)}: {why}")
        else:
            found[kind].append(path)
    remarks += _few(refused)
    if not any(found.values()):
        raise ForkqError("\n".join([_nothing(folder), *remarks]))
    remarks += _limited(found)
    taken = [tuple(files[: _MOST[kind]]) for kind, files in found.items()]
    return Inputs(folder, taken[0], taken[1], taken[2], tuple(remarks))


def _check_folder(folder: Path) -> None:
    problem = None
    if not folder.exists():
        problem = "there is no such folder"
    elif not folder.is_dir():
        problem = "it is not a folder"
    elif not os.access(folder, os.R_OK | os.X_OK):
        problem = "you may not read it"
    if problem:
        raise ForkqError(
            f"{VARIABLE}={_printable(folder)}: {problem}; name a folder with pictures, CSV or text "
            "files, or leave it out and the demo makes its own"
        )


def _walk(folder: Path) -> Iterator[Path]:
    """All files, but not what is hidden, and not what an earlier demo made."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != RESULTS)
        yield from (Path(parent, name) for name in sorted(files) if name[0] != ".")


def _kind(path: Path) -> str | None:
    suffix = path.suffix.lower()
    if suffix in _PICTURES:
        return "picture"
    if suffix == ".csv":
        return "CSV file"
    return "text" if suffix in _TEXTS else None


def _unusable(path: Path) -> str:
    """Why the demo cannot use the file, or "". What its content is worth, its job will see."""
    try:
        str(path).encode()
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
    except UnicodeEncodeError:
        return "its name is not UTF-8, which JSON cannot carry"
    except OSError as error:
        return error.strerror or str(error)
    if not path.is_file():
        return "it is not a regular file"
    if size > _LARGEST:
        return f"it is larger than {_LARGEST >> 20} MiB"
    return "" if size else "it is empty"


def _few(refused: list[str]) -> list[str]:
    if len(refused) <= _REFUSED_NAMED:
        return refused
    return [*refused[:_REFUSED_NAMED], f"left out {len(refused) - _REFUSED_NAMED} more such files"]


def _limited(found: dict[str, list[Path]]) -> list[str]:
    return [
        f"takes {most} of {len(found[kind]):,} {kind}s, so that it ends soon"
        for kind, most in _MOST.items()
        if len(found[kind]) > most
    ]


def _nothing(folder: Path) -> str:
    endings = " ".join(sorted(_PICTURES | _TEXTS | {".csv"}))
    return (
        f"{VARIABLE}={_printable(folder)}: no file there that the demo can use; it takes pictures, "
        f"CSV and text files ({endings})"
    )


def _printable(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")
