"""``forkq quiet``, ``restart``, ``stop`` and ``status``: commands for the running master, and
what it says of its tree."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

import click
import psutil

from ..config.config import Config
from ..config.load import config_despite_errors
from ..config.paths import IN_RUNTIME_DIRECTORY, STATUS_SUFFIX, beside
from ..config.private_files import life_shown, read_trusted
from ..doctor.finding import listed
from ..errors import ConfigError, ForkqError, NotRunning
from ..master.pidfile import lives, running_master
from ..units import format_size
from ..values import replace
from ..wire.printable import last_line
from .options import configuration, finds_master, json_option
from .output import as_json, echo, table

# Seconds that the children have to report. One whose job holds the interpreter's lock does not.
_LIMIT: Final = 0.5
_STATUS_POLL: Final = 0.005
_POLL: Final = 0.02
_TITLES: Final = (
    "CHILD", "PID", "STATE", "BUSY", "PROCESSED", "FAILED", "RSS", "PSS", "QUEUES"
)  # fmt: skip
# Seconds that a stop may take beyond the time-out: for the grace period, the rescue and the end of
# the embedded server.
_BEYOND: Final = 10.0


@click.command()
@finds_master
@click.option("--wait", is_flag=True, help="Return when no job runs any more.")
def quiet(wait: bool, **flags: Any) -> int:
    """Fetch no more jobs; running ones go on. One way: only `stop` comes after it."""
    config = _configuration(**flags)
    master = _master(config)
    _send(master, signal.SIGTSTP)
    click.echo(f"forkq {master.pid} goes quiet")
    if wait:
        _until(lambda: _all_idle(config, master), None)
        click.echo("no job is running")
    return 0


@click.command()
@finds_master
@click.option("--wait", is_flag=True, help="Return when it is over: 1 if it was rolled back.")
def restart(wait: bool, **flags: Any) -> int:
    """Replace the children one by one, with new code and configuration.

    A child in a fresh interpreter tries them first. If it fails, the old children go on.
    In small mode (`processes = "one"`) running jobs end, and the process loads the new code.
    """
    config = _configuration(**flags)
    master = _master(config)
    is_one = _is_one_process(read_status(config, master))
    asked_at = time.monotonic()
    _send(master, signal.SIGUSR2)
    how = ": its jobs end, then it loads the new code" if is_one else " its children"
    click.echo(f"forkq {master.pid} restarts{how}")
    if wait:
        state = _await_restart(config, master, asked_at)
        stays = "; the tree stays quiet, and fetches no jobs" if state == "quiet" else ""
        done = "the process has loaded the new code" if is_one else "every child is new"
        click.echo(f"{done}{stays}")
    return 0


@click.command()
@finds_master
def stop(**flags: Any) -> int:
    """Stop the tree; returns when its last process is gone."""
    config = _configuration(**flags)
    master = _master(config)
    tree = _tree(master)
    timeout = float((read_status(config, master) or {}).get("timeout", config.timeout))
    _send(master, signal.SIGTERM)
    if not _until(lambda: not any(lives(p) for p in tree), timeout + _BEYOND):
        left = ", ".join(str(p.pid) for p in tree if lives(p))
        raise ForkqError(f"still running after {timeout + _BEYOND:.0f} s: pid {left}")
    click.echo(f"forkq {master.pid} stopped")
    return 0


@click.command()
@finds_master
@json_option
@click.option("--ready", is_flag=True, help="Only check that every child is ready, and the clock.")
@click.option("--alive", is_flag=True, help="Only check that the master's loop goes on.")
def status(wants_json: bool, ready: bool, alive: bool, **flags: Any) -> int:
    """Show the running tree: exit code 0 if there is one, 4 if not.

    With --ready or --alive: show nothing, and exit with 1 and the reason if it is not.
    """
    config = _configuration(**flags)
    master = _master(config)
    found = (read_status if ready or alive else fresh_status)(config, master)
    if found is None and alive and (age := beat_age(config.pidfile)) < inf:
        found = {"pid": master.pid, "beat_age": age, "silent_after": config.silent_after}
    if found is None:
        raise NotRunning(_unwritten(config))
    if ready or alive:
        return _checked(found, ready=ready)
    echo(as_json(found) if wants_json else _status_text(found))
    return 0


def _unwritten(config: Config) -> str:
    file = config.status_file
    if beat_age(config.pidfile) == inf:
        return f"the master is just starting: {file} is not there yet"
    return f"the master runs, but cannot write {file}: is the disk full? Its log says why"


def _configuration(**flags: Any) -> Config:
    """The configuration; if it is wrong, what of it is enough to find the master. Raises
    ConfigError if no pidfile is found without it."""
    try:
        return _found_by_unit(configuration(**flags))
    except ConfigError as error:
        config = _found_by_unit(_config_despite(error, flags))
        if not _is_pidfile_given(flags) and not os.path.lexists(config.pidfile):
            raise
        first, *others = str(error).splitlines()
        more = f" (and {len(others)} more)" if others else ""
        echo(f"forkq: {first}{more}; going by the pidfile {config.pidfile} alone", err=True)
        return config


def _found_by_unit(config: Config) -> Config:
    """The configuration with the pidfile of the unit that runs the tree: only units know systemd's
    folders."""
    if "forkq.pidfile" in config.origins or os.path.lexists(config.pidfile):
        return config
    pidfile = pidfile_of_unit(config.source, config.tag, os.environ)
    return config if pidfile is None else replace(config, pidfile=pidfile)


def _is_pidfile_given(flags: Mapping[str, Any]) -> bool:
    return bool(flags.get("pidfile") or os.environ.get("FORKQ_PIDFILE"))


def _config_despite(wrong: ConfigError, flags: Mapping[str, Any]) -> Config:
    try:
        return config_despite_errors(flags, os.environ, Path.cwd())
    except ConfigError:
        raise ConfigError(f"{wrong}; --pidfile finds the master without it") from None


def _master(config: Config) -> psutil.Process:
    """The live master. Raises NotRunning, or ForkqError if the pid is not that of a master."""
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
    """The master and its children. Processes that jobs have started are not waited for."""
    try:
        return [master, *master.children()]
    except psutil.NoSuchProcess:
        return []


def _checked(found: dict[str, Any], *, ready: bool) -> int:
    """The exit code of a check; the reason of a failure goes to standard error."""
    if not is_alive(found):
        reason = f"has been silent for {found['beat_age']:.0f} s"
    elif ready and not found["ready"]:
        children = {child["name"]: child["state"] for child in found["children"]}
        states = [f"{name} {state}" for name, state in children.items()]
        why = [*states, *_missing(found), *_refusals(found)]
        reason = f"is not ready: {found['state']} ({', '.join(why)})"
    else:
        return 0
    echo(f"forkq: the master {found['pid']} {reason}", err=True)
    return 1


def _all_idle(config: Config, master: psutil.Process) -> bool:
    found = _followed(config, master)
    if found is None:
        return True  # the tree has ended meanwhile
    children = [child for child in found["children"] if child["concurrency"]]
    return all(child["state"] != "running" and not child["busy"] for child in children)


def _followed(config: Config, master: psutil.Process) -> dict[str, Any] | None:
    """The status of the tree, for a command that waits. Raises ForkqError if the master cannot tell
    it."""
    found = read_status(config, master)
    if found is not None and found["outdated"]:
        raise ForkqError(f"cannot follow it: {_outdated(found)}")
    return found


def _await_restart(config: Config, master: psutil.Process, asked_at: float) -> str:
    """Returns the state of the tree when a restart that began after ``asked_at`` (monotonic) is
    done. Raises ForkqError with the reason if it was rolled back, or if the tree ends."""
    outcome: dict[str, Any] = {}
    found: dict[str, Any] = {}

    def is_over() -> bool:
        found.update(_followed(config, master) or {})
        outcome.update(found.get("restart", {}))
        over = outcome.get("state") in ("done", "rolled back")
        outcome["over"] = over and outcome["begun_at"] >= asked_at
        return outcome["over"] or found.get("state") == "stopping" or not lives(master)

    _until(is_over, None)
    if not outcome["over"]:
        raise ForkqError(f"forkq {master.pid} has ended, or stops: nothing was replaced")
    if outcome["state"] == "rolled back":
        raise ForkqError(f"rolled back, the old children go on: {outcome['reason'].strip()}")
    return str(found["state"])


def _is_one_process(found: dict[str, Any] | None) -> bool:
    """Whether the children of the tree are threads of its master."""
    return found is not None and any(one["pid"] == found["pid"] for one in found["children"])


def _until(condition: Callable[[], bool], limit: float | None) -> bool:
    """Waits for ``condition``, at most ``limit`` seconds."""
    deadline = None if limit is None else time.monotonic() + limit
    while not condition():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _missing(found: dict[str, Any]) -> list[str]:
    """The lines about children that the tree does not have, and why."""
    missing: list[str] = found.get("missing", [])
    return missing


def _memory(child: dict[str, Any]) -> list[str]:
    """The memory of a child in words: all of it (RSS), and its own share (PSS), in which shared
    pages count in part."""
    memory = child.get("memory")
    if not memory:
        return ["-", "-"]
    return [format_size(memory["private"] + memory["shared"]), format_size(memory["used"])]


def _outage(found: dict[str, Any]) -> list[str]:
    """The line that children have lost Redis, and one for each refusal."""
    children = found["children"]
    lost = [child["name"] for child in children if child.get("redis_lost", False)]
    lines = [f"{refused} ({listed(names)})" for refused, names in _refusals(found).items()]
    if lost:
        these = f"{len(lost)} of {len(children)} children ({listed(lost)})"
        reasons = (child.get("redis_lost_because", "") for child in children)
        reason = next(filter(None, reasons), "")
        because = f" ({reason})" if reason else ""
        lines.insert(0, f"redis: lost by {these}; they try again{because}")
    return lines


def _refusals(found: dict[str, Any]) -> dict[str, list[str]]:
    """What Redis refuses, in words, and to which children."""
    refusals: dict[str, list[str]] = {}
    for child in found["children"]:
        if refused := child.get("refused"):
            refusals.setdefault(refused, []).append(child["name"])
    return refusals


def _outdated(found: dict[str, Any]) -> str:
    """The line about a status that the master could not replace: how old it is."""
    return (
        f"the status is {found['outdated']:.0f} s old: the master cannot write it; is the disk "
        "full? Its log says why"
    )


def _last_restart(found: dict[str, Any]) -> list[str]:
    """A line about a restart that goes on, or was rolled back."""
    last = found.get("restart", {})
    if last.get("state", "none") in ("none", "done"):
        return []
    reason = last_line(last["reason"])
    return [f"restart: {last['state']}{f' ({reason})' if reason else ''}"]


def _status_text(found: dict[str, Any]) -> str:
    tag = f" [{found['tag']}]" if found["tag"] else ""
    head = [f"master {found['pid']}{tag}: {found['state']}"]
    head += [f"outdated: {_outdated(found)}"] if found["outdated"] else []
    head += [f"missing: {reason}" for reason in _missing(found)]
    head += [*_outage(found), *_last_restart(found)]
    rows = [
        (
            child["name"],
            child["pid"],
            child["state"],
            f"{child['busy']} of {child['concurrency']}" if child["concurrency"] else "-",
            child["processed"],
            child["failed"],
            *_memory(child),
            " ".join(child["queues"]),
        )
        for child in found["children"]
    ]
    return "\n".join([*head, "", table(_TITLES, rows)])


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
    """The content of the status file. On a full disk the master may write while this reads: then it
    reads again."""
    deadline = time.monotonic() + _LIMIT
    while True:
        try:
            found: dict[str, Any] = json.loads(read_trusted(file))
        except FileNotFoundError:
            return None
        except ValueError:
            if time.monotonic() > deadline:
                return None
            time.sleep(_STATUS_POLL)
        else:
            return found


def fresh_status(config: Config, master: psutil.Process) -> dict[str, Any] | None:
    """The status of the tree, with the counts as of now: asks the master for them. If it may not be
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
        time.sleep(_STATUS_POLL)
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
