"""The first steps: ``forkq init`` writes a project, ``forkq demo`` shows forkq at work."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from ..errors import ForkqError
from ..master.embedded_redis import find_server
from .output import echo

_NEEDED = {"PIL": "Pillow", "rich": "rich"}
_ROOT = Path(__file__).resolve().parents[2]
_JOBS: Final = '''\
"""The jobs of this project. Each is a plain function: its arguments are JSON."""

import forkq


@forkq.job
def greet(name: str) -> None:
    print("Hello", name)
'''
_CONFIGURATION: Final = """\
# All keys: https://github.com/forkq/forkq/blob/main/docs/configuration.md
[forkq]
app = "jobs"                # what the children import to find the jobs

[redis]
url = "{url}"

[capsules.default]
queues = ["default"]
concurrency = 5             # jobs at a time
"""
_UNIT: Final = """\
# sudo cp forkq.service /etc/systemd/system/ && sudo systemctl enable --now forkq
# A unit with a user of its own and a sandbox: https://github.com/forkq/forkq/tree/main/systemd
[Unit]
Description=forkq, background jobs
After=network-online.target

[Service]
Type=notify
User={user}
WorkingDirectory={folder}
ExecStart={program} start
ExecReload={program} restart --wait
SuccessExitStatus=SIGTERM
RuntimeDirectory=forkq
StateDirectory=forkq
TimeoutStartSec=330
TimeoutStopSec=35
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""
_DOCKERFILE: Final = """\
FROM python:3.13-slim
WORKDIR /app
RUN pip install --no-cache-dir forkq
COPY forkq.toml jobs.py ./
CMD ["forkq", "start"]
"""
_COMPOSE: Final = """\
# docker compose up --build
services:
  redis:
    image: redis:7.2
    command: ["redis-server", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]
    volumes: ["jobs:/data"]
  forkq:
    build: .
    environment: {REDIS_URL: "redis://redis:6379/0"}
    depends_on: [redis]
    init: true
    stop_grace_period: 35s  # forkq's time-out + 5 s, and a little
    restart: unless-stopped
volumes: {jobs: {}}
"""


@click.command()
def demo() -> None:
    """Run the example app of a checkout, with a kill in the middle, and count what was lost.

    It works on the pictures and CSV files of the folder FORKQ_DEMO_INPUT, or on samples that it
    makes, and leaves everything in ./demo-results. No running forkq is touched.
    """
    is_checkout = (_ROOT / "bin" / "forkq").is_file()
    if not is_checkout or not (_ROOT / "examples" / "demo" / "__main__.py").is_file():
        raise ForkqError(
            "the demo is an example app in forkq's source, examples/demo, and not part of the "
            "installed package; in a checkout of forkq, type: make demo"
        )
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise ForkqError(
            f"the demo needs {' and '.join(missing)}; in the checkout, type: make demo, which "
            f"installs it, or: pip install {' '.join(missing)}"
        )
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "examples.demo"]
    # The demo becomes this process: it gets the signals that are meant for it.
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})  # noqa: S606


@click.command()
@click.argument(
    "folder", default=".", metavar="[FOLDER]", type=click.Path(file_okay=False, path_type=Path)
)
@click.option("--unit", is_flag=True, help="Also forkq.service, a unit of systemd.")
@click.option("--compose", is_flag=True, help="Also compose.yaml and a Dockerfile.")
def init(folder: Path, unit: bool, compose: bool) -> None:
    """Write forkq.toml and jobs.py into FOLDER, the files of a first project.

    Asks nothing, and overwrites nothing: if one of the files is there, none is written.
    """
    files = {"forkq.toml": _CONFIGURATION.format(url=_url()), "jobs.py": _JOBS}
    if unit:
        files["forkq.service"] = _unit(folder.resolve())
    if compose:
        files |= {"Dockerfile": _DOCKERFILE, "compose.yaml": _COMPOSE}
    _write(folder, files)
    echo(f"{', '.join(files)} in {folder.resolve()}")
    where = "" if folder == Path() else f"cd {folder} && "
    echo(f"in one terminal:     {where}forkq start")
    echo(f"in another terminal: {where}forkq push jobs.greet '\"Ada\"'")


def _url() -> str:
    """A server of its own where there is a program for it, so that the first job runs at once."""
    try:
        find_server()
    except ForkqError:
        return "redis://localhost:6379/0"
    return "embedded"


def _unit(folder: Path) -> str:
    program = Path(sys.argv[0])
    if program.name != "forkq":  # python -m forkq
        program = Path(sys.executable).with_name("forkq")
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or "forkq"
    return _UNIT.format(folder=folder, program=program.resolve(), user=user)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ForkqError(
            f"{', '.join(there)} in {folder.resolve()} would be overwritten; nothing was written: "
            "name an empty folder, as in `forkq init NAME`"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ForkqError(f"cannot write into {folder.resolve()}: {error.strerror}") from None
