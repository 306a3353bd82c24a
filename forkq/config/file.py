"""forkq.toml: found and read. Used by ``load`` only."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError, file_error
from .settings import overlaid

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_USUAL_NAME = "forkq.toml"
# A line that begins a table; its closing bracket may be missing.
_HEADER: Final = re.compile(r"\s*\[([^\[\]]+)\]?")


def find_file(
    path: Path | str | None, environ: Mapping[str, str], cwd: Path, near: Iterable[Path] = ()
) -> tuple[Path | None, Path]:
    """``path``, else FORKQ_CONFIG, else the first forkq.toml upwards from ``cwd``, then from each
    folder of ``near``. It returns the folder at which relative paths start, too: that of a file
    found by looking, else ``cwd``."""
    named = path or environ.get("FORKQ_CONFIG")
    if named:
        return cwd / Path(named), cwd
    for start in (cwd, *near):
        found = next(_upwards(start), None)
        if found is not None:
            return found, found.parent
    return None, cwd


def read_file(file: Path, named_by: str) -> dict[str, Any]:
    """The document of ``file``, which -C or FORKQ_CONFIG may have named. Raises ConfigError, or
    CannotStartYet if the system lacks what it takes to read a file."""
    return _parsed(file, _content(file, named_by))


def read_what_is_right(file: Path, named_by: str) -> dict[str, Any]:
    """The document of ``file``, which may be no TOML as a whole: the lines that are TOML, each in
    its table. Raises ConfigError if the file cannot be read."""
    document: dict[str, Any] = {}
    table = ""
    for line in _content(file, named_by).decode("utf-8", "replace").splitlines():
        header = _HEADER.match(line)
        if line.lstrip().startswith("["):
            table = f"[{header[1]}]" if header else "[[other]]"
        else:
            document = overlaid(document, _line_of(table, line))
    return document


def _line_of(table: str, line: str) -> dict[str, Any]:
    try:
        return tomllib.loads(f"{table}\n{line}")
    except (ValueError, RecursionError):
        return {}


def _content(file: Path, named_by: str) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file ({named_by} names it)") from None
    except OSError as error:
        raise file_error(f"{file}: cannot be read: {error.strerror}", error) from error


def _upwards(start: Path) -> Iterator[Path]:
    """Each forkq.toml in ``start`` or above it. A file above counts only if it is trusted: it tells
    where jobs go, and which code the children load."""
    if os.path.lexists(start / _USUAL_NAME):
        yield start / _USUAL_NAME
    for folder in start.parents:
        if _is_trusted(folder / _USUAL_NAME, start):
            yield folder / _USUAL_NAME


def _is_trusted(file: Path, start: Path) -> bool:
    """Whether a file belongs to this user, root or the owner of ``start``, and other users may not
    write to it."""
    try:
        found, owner = file.stat(), start.stat().st_uid
    except OSError:
        return False
    mine = getattr(os, "geteuid", lambda: 0)()  # Windows has none
    is_plain = stat.S_ISREG(found.st_mode) and (os.name == "nt" or not found.st_mode & 0o002)
    return is_plain and found.st_uid in {0, mine, owner}


def _parsed(file: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 at byte {error.start}, as TOML must be") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError; 5,000 digits; endless nesting
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
