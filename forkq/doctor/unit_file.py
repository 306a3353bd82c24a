"""What a unit of systemd says of its stop and its log: from its file, or from systemd itself."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

_DEFAULT: Final = "90s"
_SHOW_LIMIT: Final = 5.0  # seconds
_TO_JOURNAL: Final = ("journal", "syslog", "kmsg", "inherit")
_PART: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_SECONDS: Final[dict[str, float]] = {
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}


class StopLimit(msgspec.Struct, frozen=True):
    """How many seconds systemd waits before it kills, and whether it waits longer when the master
    asks for more time (sd_notify)."""

    unit: str
    seconds: float
    can_be_extended: bool


class LogLimit(msgspec.Struct, frozen=True):
    """How many ``lines`` in how many ``seconds`` journald keeps of a unit by the unit's own
    settings; 0 for what it does not set. ``in_journal``: its log goes there."""

    unit: str
    seconds: float
    lines: int
    in_journal: bool


def of_file(path: Path) -> StopLimit:
    """The StopLimit in the unit file ``path`` and the drop-ins in ``path``.d. Raises OSError, or
    ValueError for a time that systemd would not read."""
    found = {"stop": "", "Type": "", "NotifyAccess": ""}
    for key, value in _of_service(path):
        found["stop" if key in ("TimeoutStopSec", "TimeoutSec") else key] = value
    return _stop_limit(str(path), found["stop"], found)


def of_running(unit: str) -> StopLimit:
    """The StopLimit of the unit as systemd has loaded it. Raises OSError or SubprocessError if that
    is refused, ValueError for an answer that is no time."""
    found = _properties(unit, "TimeoutStopUSec", "Type", "NotifyAccess")
    return _stop_limit(unit, found["TimeoutStopUSec"], found)


def log_of_file(path: Path) -> LogLimit:
    """The LogLimit in the unit file and its drop-ins. Raises OSError, or ValueError for a time that
    systemd would not read."""
    found = dict(_of_service(path))
    return _log_limit(str(path), found.get("LogRateLimitIntervalSec", ""), found)


def log_of_running(unit: str) -> LogLimit:
    """The LogLimit of the unit as systemd has loaded it. Raises OSError or SubprocessError if that
    is refused, ValueError for an answer that is no time."""
    found = _properties(
        unit, "LogRateLimitIntervalUSec", "LogRateLimitBurst", "StandardOutput", "StandardError"
    )
    return _log_limit(unit, found["LogRateLimitIntervalUSec"], found)


def own_unit(environ: Mapping[str, str], own: Path = Path("/proc/self/cgroup")) -> str | None:
    """The unit that runs this process; None if systemd has not started it as a service."""
    if "INVOCATION_ID" not in environ or not own.exists():
        return None
    paths = (line.split(":", 2)[2] for line in own.read_text().splitlines())
    names = (path.rpartition("/")[2] for path in paths)
    return next((name for name in names if name.endswith(".service")), None)


def seconds_of(text: str) -> float:
    """The seconds in a time of systemd, such as "1min 30s". 0 and "infinity" are no limit."""
    text = text.strip()
    if text == "infinity":
        return math.inf
    total, at = 0.0, 0
    while found := _PART.match(text, at):
        if found[2] not in _SECONDS:
            break
        total, at = total + float(found[1]) * _SECONDS[found[2]], found.end()
    if not text or at < len(text):
        raise ValueError(f"{text!r} is no time span of systemd")
    return total or math.inf


def _stop_limit(unit: str, stop: str, found: Mapping[str, str]) -> StopLimit:
    hears = found["Type"].startswith("notify") or found["NotifyAccess"] in ("main", "exec", "all")
    return StopLimit(unit, seconds_of(stop or _DEFAULT), hears)


def _log_limit(unit: str, interval: str, found: Mapping[str, str]) -> LogLimit:
    out = found.get("StandardOutput") or "journal"
    error = found.get("StandardError") or "inherit"
    target = out if error == "inherit" else error
    seconds = seconds_of(interval) if interval.strip() not in ("", "0") else 0.0
    lines = int(found.get("LogRateLimitBurst") or 0)
    return LogLimit(unit, seconds, lines, target.startswith(_TO_JOURNAL))


def _properties(unit: str, *properties: str) -> dict[str, str]:
    done = subprocess.run(
        ["systemctl", "show", f"--property={','.join(properties)}", "--", unit],  # noqa: S607 - the system's own
        capture_output=True,
        text=True,
        check=True,
        timeout=_SHOW_LIMIT,
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def _of_service(path: Path) -> Iterator[tuple[str, str]]:
    """The keys and values of [Service] in a unit file and its drop-ins, in systemd's order."""
    drop_ins = sorted(path.with_name(f"{path.name}.d").glob("*.conf"))
    for file in (path, *drop_ins):
        yield from lines_of("Service", file.read_text(errors="replace").splitlines())


def lines_of(wanted: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The keys and values of one section."""
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line
        elif section == f"[{wanted}]" and "=" in line and line[0] not in "#;":
            key, _, value = line.partition("=")
            yield key.strip(), value.strip()
