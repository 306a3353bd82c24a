"""forkq.toml: found and read. Used by ``load`` only."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_USUAL_NAME = "forkq.toml"


def read_file(
    path: Path | str | None, environ: Mapping[str, str], cwd: Path
) -> tuple[Path | None, dict[str, Any]]:
    """``path``, else FORKQ_CONFIG, else ./forkq.toml if there is one: which it is, and its
    document. ConfigError: unusable."""
    named = path or environ.get("FORKQ_CONFIG")
    file = cwd / Path(named or _USUAL_NAME)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        if not named:
            return None, {}
        source = "-C" if path else "FORKQ_CONFIG"
        raise ConfigError(f"{file}: no such file ({source} names it)") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    return file, _parsed(file, content)


def _parsed(file: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 at byte {error.start}, as TOML must be") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError; 5,000 digits; endless nesting
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
