"""What a unit of systemd says of its stop: from its file, or from systemd itself."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DEFAULT: Final = "90s"
_SHOW_LIMIT: Final = 5.0  # seconds
_PART: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_SECONDS: Final[dict[str, float]] = {
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}


@dataclass(frozen=True, slots=True)
class StopLimit:
    """How many seconds systemd waits before it kills, and whether it waits longer when the master
    asks for more time (sd_notify)."""

    unit: str
    seconds: float
    can_be_extended: bool


def of_file(path: Path) -> StopLimit:
    """Of the unit file ``path`` and the drop-ins in ``path``.d. Raises OSError, or ValueError for a
    time that systemd would not read."""
    drop_ins = sorted(path.with_name(f"{path.name}.d").glob("*.conf"))
    found = {"stop": "", "Type": "", "NotifyAccess": ""}
    for file in (path, *drop_ins):
        for key, value in _service_lines(file.read_text(errors="replace").splitlines()):
            name = "stop" if key in ("TimeoutStopSec", "TimeoutSec") else key
            found[name] = value
    return _stop_limit(str(path), found["stop"], found)


def of_running(unit: str) -> StopLimit:
    """Of the unit as systemd has loaded it. Raises OSError or SubprocessError if that is refused,
    ValueError for an answer that is no time."""
    properties = "--property=TimeoutStopUSec,Type,NotifyAccess"
    done = subprocess.run(
        ["systemctl", "show", properties, "--", unit],  # noqa: S607 - the system's own
        capture_output=True,
        text=True,
        check=True,
        timeout=_SHOW_LIMIT,
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return _stop_limit(unit, found["TimeoutStopUSec"], found)


def own_unit(environ: Mapping[str, str], own: Path = Path("/proc/self/cgroup")) -> str | None:
    """The unit that runs this process; None if systemd has not started it as a service."""
    if "INVOCATION_ID" not in environ or not own.exists():
        return None
    paths = (line.split(":", 2)[2] for line in own.read_text().splitlines())
    names = (path.rpartition("/")[2] for path in paths)
    return next((name for name in names if name.endswith(".service")), None)


def seconds_of(text: str) -> float:
    """A time span of systemd, such as "1min 30s". 0 and "infinity" are no limit."""
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


def _service_lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The keys and values of [Service]."""
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and line[0] not in "#;":
            key, _, value = line.partition("=")
            yield key.strip(), value.strip()
