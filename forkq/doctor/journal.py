"""Check of journald: whether it keeps the lines that forkq writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from .finding import Finding
from .unit_file import LogLimit, lines_of, log_of_file, log_of_running, own_unit, seconds_of

# Lines a second. A job writes one, and a tree of short jobs runs some thousands a second.
_ENOUGH: Final = 10_000
# journald's own limits, and where an administrator changes them.
_SECONDS: Final = 30.0
_LINES: Final = 10_000
_FOLDERS: Final = ("/usr/lib/systemd", "/run/systemd", "/etc/systemd")
_REMEDY: Final = (
    "set LogRateLimitIntervalSec=1s and LogRateLimitBurst=1000000 in [Service] (a 0 there changes "
    "nothing: journald's own limit holds)"
)


def journal(file: Path | None, environ: Mapping[str, str], root: Path = Path("/")) -> Finding:
    """journald's rate limit for the unit: that of ``file``, or the one that this process runs in.
    Raises OSError, SubprocessError or ValueError if it cannot be read."""
    unit = own_unit(environ)
    if file is None and unit is None:
        return Finding("ok", "journal", "not run by systemd; --unit FILE checks a unit file")
    found = log_of_file(file) if file is not None else log_of_running(str(unit))
    if not found.in_journal:
        return Finding("ok", "journal", f"{found.unit}: its log does not go to the journal")
    seconds, lines = _limit(found, root)
    if not seconds or not lines:
        return Finding("ok", "journal", "journald keeps every line (RateLimitIntervalSec=0)")
    what = f"{found.unit}: journald keeps {lines:,} lines in {seconds:g} s"
    if lines >= _ENOUGH * seconds:
        return Finding("ok", "journal", what)
    why = "each job writes a line: in a burst of jobs others are lost, also those of failures"
    return Finding("warn", "journal", what, why, _REMEDY)


def _limit(unit: LogLimit, root: Path) -> tuple[float, int]:
    """The limit in seconds and lines: the unit's own, or journald's where the unit has none."""
    known = dict(_of_journald(root))
    interval = known.get("RateLimitIntervalSec") or f"{_SECONDS}"
    seconds = 0.0 if interval == "0" else seconds_of(interval)
    lines = int(known.get("RateLimitBurst") or _LINES)
    return unit.seconds or seconds, unit.lines or lines


def _of_journald(root: Path) -> Iterator[tuple[str, str]]:
    """The settings of journald.conf and its drop-ins; what comes later counts."""
    folders = [root / folder.lstrip("/") for folder in _FOLDERS]
    files = [folder / "journald.conf" for folder in folders]
    drop_ins = [file for folder in folders for file in (folder / "journald.conf.d").glob("*.conf")]
    for file in (*files, *sorted(drop_ins, key=lambda each: each.name)):
        if file.is_file():
            yield from lines_of("Journal", file.read_text(errors="replace").splitlines())
