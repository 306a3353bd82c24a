"""forkq.toml: found and read. Used by ``load`` only."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from .settings import overlaid

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_USUAL_NAME = "forkq.toml"
# A line that begins a table; its closing bracket may be missing.
_HEADER: Final = re.compile(r"\s*\[([^\[\]]+)\]?")


def read_file(
    path: Path | str | None, environ: Mapping[str, str], cwd: Path
) -> tuple[Path | None, dict[str, Any]]:
    """``path``, else FORKQ_CONFIG, else ./forkq.toml if there is one: which it is, and its
    document. ConfigError: unusable."""
    file, content = _content(path, environ, cwd)
    return file, {} if file is None else _parsed(file, content)


def read_what_is_right(
    path: Path | str | None, environ: Mapping[str, str], cwd: Path
) -> dict[str, Any]:
    """As ``read_file``, of a file that may be no TOML as a whole: its lines that are, each in its
    table. ConfigError: it cannot be read."""
    document: dict[str, Any] = {}
    table = ""
    for line in _content(path, environ, cwd)[1].decode("utf-8", "replace").splitlines():
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


def _content(
    path: Path | str | None, environ: Mapping[str, str], cwd: Path
) -> tuple[Path | None, bytes]:
    named = path or environ.get("FORKQ_CONFIG")
    file = cwd / Path(named or _USUAL_NAME)
    try:
        return file, file.read_bytes()
    except FileNotFoundError:
        if not named:
            return None, b""
        source = "-C" if path else "FORKQ_CONFIG"
        raise ConfigError(f"{file}: no such file ({source} names it)") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def _parsed(file: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 at byte {error.start}, as TOML must be") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError; 5,000 digits; endless nesting
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
