"""An environment for each peer, made once and kept in build/bench."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.compare.peers import CHECKOUT, COROUTINES, PEERS, Peer

DAY = 86400  # seconds: how long a version counts as the newest
FOLDER = CHECKOUT / "build" / "bench"
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "-qq", "--upgrade")


@dataclass(frozen=True)
class Found:
    """Where a peer's programs are, and which version it is; or the reason why it is left out."""

    bin: Path
    version: str = ""
    missing: str = ""


def prepare(peer: Peer) -> Found:
    """Installs the newest version of the peer."""
    if not peer.packages:
        return _beside(peer)
    place = FOLDER / peer.name
    reasons = []
    for python in _pythons():
        if reason := _install(python, place, peer.packages):
            reasons.append(f"{python.name}: {reason}")
            continue
        name = "pydocket" if peer.name == "docket" else peer.name.removesuffix("-async")
        return Found(place / "bin", _version(place, name))
    return Found(place / "bin", missing="; ".join(reasons))


def _beside(peer: Peer) -> Found:
    here = Path(sys.executable).parent
    if peer.name == "forkq":
        command = [sys.executable, "-c", "import forkq; print('forkq', forkq.__version__)"]
        return _said(command, here)
    program = peer.worker.partition(" -C ")[2].split()[1:2]
    if not program or shutil.which("ruby") is None or not Path(program[0]).is_file():
        return Found(here, missing="neither SIDEKIQ_PATH nor a sidekiq on PATH")
    return _said(["ruby", program[0], "--version"], here)


def _said(command: list[str], folder: Path) -> Found:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Found(folder, missing=_last_line(done.stderr))
    return Found(folder, version=done.stdout.strip().rpartition(" ")[2])


def _pythons() -> list[Path]:
    """This interpreter, then newer ones: some peers need one."""
    names = [f"python3.{minor}" for minor in range(sys.version_info.minor + 1, 15)]
    roots = sorted(Path.home().glob(".pyenv/versions/3.*/bin"))
    found = [root / name for name in names for root in roots if (root / name).exists()]
    on_path = [
        Path(path) for name in names if (path := shutil.which(name)) and ".pyenv" not in path
    ]
    return [Path(sys.executable), *found, *on_path]


def _install(python: Path, place: Path, packages: tuple[str, ...]) -> str:
    """Why it failed, or nothing. What is there is kept, and brought to the newest version."""
    own, stamp = place / "bin" / "python", place / "newest"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < DAY:
        return ""
    commands = [[str(own), *PIP, *packages]]
    if not own.exists():
        commands.insert(0, [str(python), "-m", "venv", str(place)])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(place, ignore_errors=True)
            return _last_line(done.stderr)
    stamp.touch()
    return ""


def _version(place: Path, name: str) -> str:
    code = f"from importlib.metadata import version; print(version({name!r}))"
    own = str(place / "bin" / "python")
    return subprocess.run(
        [own, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:200]


def prepare_all(names: list[str]) -> dict[str, Found]:
    """Each peer by name; says what it leaves out."""
    found = {name: prepare({**PEERS, **COROUTINES}[name]) for name in names}
    for name, one in found.items():
        print(f"{name}: {one.version or 'left out: ' + one.missing}", flush=True)
    return found
