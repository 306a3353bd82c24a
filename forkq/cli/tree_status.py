"""What the running master says of its tree, as of its last turn or as of now."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

import psutil

from ..config.config import Config
from ..config.paths import IN_RUNTIME_DIRECTORY, STATUS_SUFFIX, beside
from ..config.private_files import life_shown, read_trusted
from ..errors import ConfigError

# Seconds that the children have to report. One whose job holds the interpreter's lock does not.
_LIMIT: Final = 0.5
_POLL: Final = 0.005


def read_status(config: Config, master: psutil.Process) -> dict[str, Any] | None:
    """What ``master`` has written of its tree, with the age of each sign of life in seconds; None
    if it has written nothing. A master that was killed leaves its file behind. ``outdated``: for
    how many seconds a living master could not write it; 0 if it could."""
    found = _content(config.status_file)
    if found is None or found["pid"] != master.pid:
        return None
    for described in (found, *found["children"]):
        described["beat_age"] = round(time.monotonic() - described.pop("beat_at"), 3)
    written, found["beat_age"] = found["beat_age"], min(found["beat_age"], beat_age(config.pidfile))
    found["outdated"] = 0.0
    if not is_alive(found):
        found["state"] = "silent"
    elif written >= found["silent_after"]:
        found["outdated"] = written
    return found


def beat_age(pidfile: Path) -> float:
    """How many seconds ago the master's loop has shown that it goes on; infinite if it never has:
    the master is just starting."""
    shown = life_shown(pidfile)
    return inf if shown is None else round(time.monotonic() - shown, 3)


def _content(file: Path) -> dict[str, Any] | None:
    """On a full disk the master writes while this reads: then it reads again."""
    deadline = time.monotonic() + _LIMIT
    while True:
        try:
            found: dict[str, Any] = json.loads(read_trusted(file))
        except FileNotFoundError:
            return None
        except ValueError:
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL)
        else:
            return found


def fresh_status(config: Config, master: psutil.Process) -> dict[str, Any] | None:
    """As ``read_status``, with the counts as of now: asks the master for them. If it may not be
    asked, or a child does not answer soon, the counts are up to a second old."""
    asked_at = time.monotonic()
    found = read_status(config, master)
    if found is None or found["outdated"]:
        return found
    try:
        master.send_signal(signal.SIGURG)
    except psutil.Error:
        return found
    deadline = asked_at + _LIMIT
    while found and found["reported_at"] < asked_at and time.monotonic() < deadline:
        time.sleep(_POLL)
        found = read_status(config, master)
    return found


def pidfile_of_unit(source: Path | None, tag: str, environ: Mapping[str, str]) -> Path | None:
    """The pidfile of the one tree with this file and tag that a unit of systemd runs; None if there
    is none, or more than one. Its RUNTIME_DIRECTORY is unknown outside of the unit: any folder of
    /run, or, of a user's unit, of XDG_RUNTIME_DIR."""
    if source is None:
        return None
    folders = {Path("/run"), Path(environ.get("XDG_RUNTIME_DIR") or "/run")}
    pidfiles = [file for folder in folders for file in folder.glob(f"*/{IN_RUNTIME_DIRECTORY}")]
    theirs = str(source.resolve()), tag
    found = [pidfile for pidfile in pidfiles if _source_and_tag(pidfile) == theirs]
    return found[0] if len(found) == 1 else None


def _source_and_tag(pidfile: Path) -> tuple[str, str]:
    """What the master behind ``pidfile`` was started with, if this user may know that."""
    try:
        found = _content(beside(pidfile, STATUS_SUFFIX))
    except ConfigError:
        found = None
    return (found["source"], found["tag"]) if found else ("", "")


def is_alive(found: dict[str, Any]) -> bool:
    """Whether the master's loop has shown lately that it goes on."""
    return bool(found["beat_age"] < found["silent_after"])
