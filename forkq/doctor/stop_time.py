"""Checks whether the one that ends forkq waits until forkq has returned its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..config.config import Config
from .finding import Finding, unchecked
from .unit_file import StopLimit, of_file, of_running, own_unit

# From the time-out to the last process gone: docs/internals.md, "What must always hold".
_BEYOND_TIMEOUT: Final = 5.0
_KILLED_EARLY: Final = (
    "SIGKILL would come before forkq has returned its jobs; they would run again a minute later"
)


def systemd(config: Config, file: Path | None, environ: Mapping[str, str]) -> Finding:
    """TimeoutStopSec= against the time-out. ``file`` is a unit file; without one the unit that this
    process runs in counts. Raises OSError, SubprocessError or ValueError if it cannot be read."""
    unit = own_unit(environ)
    if file is not None:
        return _against_unit(config, of_file(file))
    if unit is None:
        return Finding("ok", "systemd", "not run by systemd; --unit FILE checks a unit file")
    if "NOTIFY_SOCKET" in environ:
        return Finding("ok", "systemd", f"{unit}: the master asks for the time that it needs")
    return _against_unit(config, of_running(unit))


def kubernetes(config: Config, grace: float | None, environ: Mapping[str, str]) -> Finding:
    """terminationGracePeriodSeconds, which Kubernetes tells no container, against the time-out."""
    needed = config.timeout + _BEYOND_TIMEOUT
    if grace is None and "KUBERNETES_SERVICE_HOST" in environ:
        remedy = "give --grace with the terminationGracePeriodSeconds of its manifest"
        return unchecked("kubernetes", "a pod does not see its own grace period", remedy)
    if grace is None:
        return Finding("ok", "kubernetes", "not in a pod; --grace SECONDS checks a grace period")
    what = f"the grace period is {grace:g} s, a stop takes up to {needed:g} s"
    if grace >= needed:
        return Finding("ok", "kubernetes", what)
    remedy = f"set terminationGracePeriodSeconds to {needed:g} and the time of a preStop hook"
    return Finding("fail", "kubernetes", what, _KILLED_EARLY, remedy)


def _against_unit(config: Config, limit: StopLimit) -> Finding:
    needed = config.timeout + _BEYOND_TIMEOUT
    what = f"{limit.unit}: TimeoutStopSec is {limit.seconds:g} s, a stop takes up to {needed:g} s"
    if limit.seconds >= needed:
        return Finding("ok", "systemd", what)
    if limit.can_be_extended:
        return Finding("ok", "systemd", f"{what}, for which the master asks (sd_notify)")
    remedy = f"set Type=notify, or TimeoutStopSec={needed:g}"
    return Finding("fail", "systemd", what, _KILLED_EARLY, remedy)
