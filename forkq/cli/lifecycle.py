"""``forkq quiet``, ``stop`` and ``status``: talking to the running master."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any, Final

import click
import psutil

from ..config.config import Config
from ..config.private_files import read_trusted
from ..errors import ForkqError, NotRunning
from ..master.pidfile import lives, running_master
from .options import configuration, finds_master

_POLL: Final = 0.02
# What a stop may take beyond the time-out: mercy, rescue, the embedded server (invariant 4: 5 s).
_BEYOND: Final = 10.0


@click.command()
@finds_master
@click.option("--wait", is_flag=True, help="Return when no job runs any more.")
def quiet(wait: bool, **flags: Any) -> int:
    """Fetch no more jobs; running ones go on. One way: only `stop` comes after it."""
    config = configuration(**flags)
    master = _master(config)
    _send(master, signal.SIGTSTP)
    click.echo(f"forkq {master.pid} goes quiet")
    if wait:
        _until(lambda: _all_idle(config, master.pid), None)
        click.echo("no job is running")
    return 0


@click.command()
@finds_master
def stop(**flags: Any) -> int:
    """Stop the tree; returns when its last process is gone."""
    config = configuration(**flags)
    master = _master(config)
    tree = _tree(master)
    timeout = float((_read_status(config, master.pid) or {}).get("timeout", config.timeout))
    _send(master, signal.SIGTERM)
    if not _until(lambda: not any(lives(p) for p in tree), timeout + _BEYOND):
        left = ", ".join(str(p.pid) for p in tree if lives(p))
        raise ForkqError(f"still running after {timeout + _BEYOND:.0f} s: pid {left}")
    click.echo(f"forkq {master.pid} stopped")
    return 0


@click.command()
@finds_master
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--ready", is_flag=True, help="Only check that every child is ready, and the clock.")
@click.option("--alive", is_flag=True, help="Only check that the master's loop goes on.")
def status(as_json: bool, ready: bool, alive: bool, **flags: Any) -> int:
    """Show the running tree: exit code 0 if there is one, 4 if not.

    With --ready or --alive: show nothing, and exit with 1 and the reason if it is not.
    """
    config = configuration(**flags)
    found = _read_status(config, _master(config).pid)
    if found is None:
        raise NotRunning(f"the master is just starting: {config.status_file} is not there yet")
    if ready or alive:
        return _checked(found, ready=ready)
    click.echo(json.dumps(found, indent=2) if as_json else _table(found))
    return 0


def _master(config: Config) -> psutil.Process:
    """The live master. Raises NotRunning, or ForkqError if what is there is none of ours."""
    master = running_master(config.pidfile)
    if master is None:
        raise NotRunning(
            f"no forkq is running here ({config.pidfile}); was it started in another directory, "
            "or with another --tag or --pidfile?"
        )
    return master


def _send(master: psutil.Process, number: signal.Signals) -> None:
    try:
        master.send_signal(number)
    except psutil.NoSuchProcess:
        raise NotRunning(f"forkq {master.pid} has just ended") from None
    except psutil.AccessDenied:
        raise ForkqError(
            f"may not signal forkq {master.pid}: run this as its user, or as root"
        ) from None


def _tree(master: psutil.Process) -> list[psutil.Process]:
    """The master and its children. It outlives an embedded server, even one that it only found.
    What a job has left running is the job's business."""
    try:
        return [master, *master.children()]
    except psutil.NoSuchProcess:
        return []


def _read_status(config: Config, pid: int) -> dict[str, Any] | None:
    """What the master ``pid`` has written of its tree, with the age of each sign of life in
    seconds; None if it has written nothing. A master that was killed leaves its file behind."""
    try:
        found: dict[str, Any] = json.loads(read_trusted(config.status_file))
    except FileNotFoundError:
        return None
    if found["pid"] != pid:
        return None
    for described in (found, *found["children"]):
        described["beat_age"] = round(time.monotonic() - described.pop("beat_at"), 3)
    if not _is_alive(found):
        found["state"] = "silent"
    return found


def _is_alive(found: dict[str, Any]) -> bool:
    """Whether the master's loop has written its time lately."""
    return bool(found["beat_age"] < found["silent_after"])


def _checked(found: dict[str, Any], *, ready: bool) -> int:
    """The exit code of a check; the reason of a failure goes to standard error."""
    if not _is_alive(found):
        reason = f"has been silent for {found['beat_age']:.0f} s"
    elif ready and not found["ready"]:
        children = {child["name"]: child["state"] for child in found["children"]}
        states = ", ".join(f"{name} {state}" for name, state in children.items())
        reason = f"is not ready: {found['state']} ({states})"
    else:
        return 0
    click.echo(f"forkq: the master {found['pid']} {reason}", err=True)
    return 1


def _all_idle(config: Config, pid: int) -> bool:
    found = _read_status(config, pid)
    if found is None:
        return True  # the tree has ended meanwhile
    children = [child for child in found["children"] if child["concurrency"]]
    return all(child["state"] != "running" and not child["busy"] for child in children)


def _until(condition: Callable[[], bool], limit: float | None) -> bool:
    """Waits for ``condition``, at most ``limit`` seconds."""
    deadline = None if limit is None else time.monotonic() + limit
    while not condition():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _table(found: dict[str, Any]) -> str:
    tag = f" [{found['tag']}]" if found["tag"] else ""
    lines = [f"master {found['pid']}{tag}: {found['state']}", ""]
    lines.append(
        f"{'child':<20}{'pid':>8}  {'state':<9}{'busy':>9}{'done':>10}{'failed':>8}  queues"
    )
    for child in found["children"]:
        busy = f"{child['busy']} of {child['concurrency']}" if child["concurrency"] else "-"
        lines.append(
            f"{child['name']:<20}{child['pid']:>8}  {child['state']:<9}{busy:>9}"
            f"{child['processed']:>10}{child['failed']:>8}  {' '.join(child['queues'])}"
        )
    return "\n".join(lines)
