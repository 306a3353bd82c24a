"""The default paths of forkq's own files: the pidfile, the files beside it, the state folder.

``load`` calls this in every process, so that ``forkq stop`` in the same directory with the same tag
looks exactly where ``forkq start`` wrote.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

IN_RUNTIME_DIRECTORY: Final = "forkq.pid"  # the pidfile's name in systemd's RuntimeDirectory=
STATUS_SUFFIX: Final = ".status.json"  # of the status file beside the pidfile
_LONGEST_NAME = 64  # characters of a tag or folder in a file name; the digest makes it unique


def default_pidfile(environ: Mapping[str, str], cwd: Path, tag: str) -> Path:
    """The default path of the pidfile: inside systemd's RuntimeDirectory= when there is one, else a
    path for each directory and tag."""
    ours = _first_of(environ.get("RUNTIME_DIRECTORY", ""))
    if ours is not None:
        return ours / IN_RUNTIME_DIRECTORY
    return _runtime_dir(environ) / f"{_stem(cwd, tag)}.pid"


def default_state_dir(environ: Mapping[str, str], cwd: Path, tag: str) -> Path:
    """The default folder of the state: inside systemd's StateDirectory= when there is one, else a
    folder for each directory and tag."""
    ours = _first_of(environ.get("STATE_DIRECTORY", ""))
    if ours is not None:
        return ours
    base = _absolute(environ.get("XDG_STATE_HOME", "")) or _home(environ) / ".local" / "state"
    return base / "forkq" / _stem(cwd, tag)


def beside(pidfile: Path, suffix: str) -> Path:
    """The path of a file beside the pidfile: ``forkq.redis`` beside ``forkq.pid``. Another ending
    is kept, so that no two paths are equal."""
    if pidfile.suffix == ".pid":
        return pidfile.with_suffix(suffix)
    return pidfile.with_name(pidfile.name + suffix)


def _home(environ: Mapping[str, str]) -> Path:
    """The user's home folder; ``/`` for a number that is no user of this machine, as container
    runtimes set HOME for it. Every command comes here, and only the embedded server looks inside:
    it says what to set if it may not write there."""
    if home := environ.get("HOME"):
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def _runtime_dir(environ: Mapping[str, str]) -> Path:
    of_user = _absolute(environ.get("XDG_RUNTIME_DIR", ""))
    # su and sudo keep the variable of the other user, and root can write to that user's folder too.
    if of_user is not None and _is_private(of_user):
        return of_user / "forkq"
    if _uid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/forkq")
    return _guessable()


def is_guessable(folder: Path) -> bool:
    """Whether ``folder`` is one that any user of this machine could have made before forkq did."""
    return folder == _guessable()


def _guessable() -> Path:
    # Not tempfile.gettempdir: it writes a file to test the folder.
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"forkq-{_uid()}"  # noqa: S108


def _uid() -> int:
    """This user's number; 0 on Windows, where nothing is asked of it."""
    return os.getuid() if hasattr(os, "getuid") else 0


def _is_private(folder: Path) -> bool:
    """Whether this folder belongs to this user, and no other user may write to it."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == _uid() and not found.st_mode & 0o022


def _stem(cwd: Path, tag: str) -> str:
    """A name for people and a digest that makes it unique: ``shop-1f2e3d4c``."""
    folder = cwd.resolve()
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", tag or folder.name)[:_LONGEST_NAME].strip(".-")
    seed = os.fsencode(folder) + (b"\0" + os.fsencode(tag) if tag else b"")
    return f"{name or 'forkq'}-{hashlib.sha256(seed).hexdigest()[:8]}"


def _first_of(folders: str) -> Path | None:
    """The first of several folders, which systemd separates with colons."""
    return _absolute(folders.split(":", maxsplit=1)[0])


def _absolute(folder: str) -> Path | None:
    return Path(folder) if folder.startswith("/") else None
