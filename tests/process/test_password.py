"""A password of Redis that changes while a tree works, read from a file or a command."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from forkq.client import Client
from forkq.wire.password_source import PasswordSource
from tests.process.shared import APP, Journal, events, wait_events, wait_settled
from tests.support.server import Server, client_of
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

JSON = ["--log-format", "json"]
REFUSED = "redis refuses; trying again"
CONFIG = '[redis]\nurl = "{url}"\n{source}\n[capsules.default]\nworkers = 2\nconcurrency = 5\n'
ROTATIONS = 6
JOBS = 20  # after each rotation


class Rotation:
    """A server whose password changes, and the file that has it. ``used``: all passwords."""

    def __init__(self, server: Server, file: Path) -> None:
        self.file = file
        self.url = server.url
        self.used = [secrets.token_hex(8)]
        self._admin = cast(Any, server.client())  # redis-py types no execute_command
        self._admin.config_set("requirepass", self.used[0])
        self._admin.execute_command("AUTH", self.used[0])
        self.write()

    def write(self) -> None:
        """Puts the latest password into the file, in one step."""
        fresh = self.file.with_name("fresh")
        fresh.write_text(f"{self.used[-1]}\n")
        fresh.replace(self.file)

    def rotate(self) -> None:
        """By the book: Redis takes both, then the file has the new one, then the old one ends."""
        self.used.append(secrets.token_hex(8))
        self._admin.execute_command("ACL", "SETUSER", "default", f">{self.used[-1]}")
        self.write()
        self._admin.execute_command("ACL", "SETUSER", "default", f"<{self.used[-2]}")

    def change(self) -> None:
        """Without a word to the file."""
        self.used.append(secrets.token_hex(8))
        self._admin.config_set("requirepass", self.used[-1])

    def cut(self) -> None:
        """Ends all connections but one of its own: everyone logs in again."""
        self._admin.client_kill_filter(_type="normal", skipme=True)

    def client(self) -> Client:
        return Client(self.url, password_source=PasswordSource(self.file))

    def assert_secret(self, *texts: str) -> None:
        for text in texts:
            assert not any(password in text for password in self.used)


@pytest.fixture
def rotation(own_server: Server, tmp_path: Path) -> Iterator[Rotation]:
    found = Rotation(own_server, tmp_path / "password")
    yield found
    own_server.close_clients()


def shown_by(forkq: ForkqTree) -> list[str]:
    """What people can see of the tree."""
    processes = [psutil.Process(forkq.pid), *forkq.children()]
    titles = [part for process in processes for part in process.cmdline()]
    commands = (forkq.run("config", "show"), forkq.run("status"), forkq.run("doctor"))
    return [forkq.log_text(), *titles, *(text for c in commands for text in (c.stdout, c.stderr))]


@pytest.mark.parametrize("kind", ["file", "command"])
def test_a_password_that_changes_under_load_costs_no_job(
    rotation: Rotation, tree: StartTree, journal: Journal, kind: str
) -> None:
    """Everyone connects again with each new one: children, clock, the master, pushes, commands."""
    source = f'password_{kind} = "{"" if kind == "file" else "cat "}{rotation.file}"'
    config = CONFIG.format(url=rotation.url, source=source)
    forkq = tree(None, app=APP, config=config, args=JSON, env=journal.env)
    client, jids = rotation.client(), []
    door = journal.path.with_name("open")
    for number in range(ROTATIONS):
        rotation.rotate()
        rotation.cut()
        jids += client.push_bulk({"class": "Nap", "args": [[0.2]] * JOBS})
        if number == ROTATIONS // 2:
            [waits] = client.push_bulk({"class": "Gate", "args": [[str(door)]]})
            journal.wait("begin", [waits])
            os.kill(journal.runs()[waits][-1].pid, signal.SIGKILL)
            wait_events(forkq, "jobs rescued")
            door.touch()
            jids.append(waits)
        journal.wait("end", jids, deadline=60)
        assert forkq.run("stats").returncode == 0
    client.close()
    assert not events(forkq, REFUSED)
    rotation.assert_secret(*shown_by(forkq))
    admin = client_of(rotation.url.replace("//", f"//:{rotation.used[-1]}@"))
    wait_settled(admin)
    admin.close()
    assert forkq.stop() == 0


def test_a_file_that_is_late_is_named_and_waited_for(
    rotation: Rotation, tree: StartTree, journal: Journal
) -> None:
    """By children, clock and commands, at the start, too; a running job goes on."""
    config = CONFIG.format(url=rotation.url, source=f'password_file = "{rotation.file}"')
    rotation.file.unlink()
    forkq = tree(None, app=APP, config=config, args=JSON, env=journal.env, ready=False)
    (line,) = wait_events(forkq, "redis refuses; waiting for it")
    assert f"password_file {rotation.file}: No such file or directory" in line["error"]
    pushed = forkq.run("push", "Quick", "0")
    assert (pushed.returncode, f"password_file {rotation.file}" in pushed.stderr) == (6, True)
    rotation.write()
    client = rotation.client()
    jid = client.push({"class": "Nap", "args": [3]})
    assert jid is not None
    journal.wait("begin", [jid], deadline=60)
    rotation.change()
    rotation.cut()
    wait_until(
        lambda: f"password of password_file {rotation.file}" in forkq.run("status").stdout,
        what="the reason in the status",
        deadline=60,
    )
    rotation.write()
    later = client.push({"class": "Quick", "args": [0]})
    assert later is not None
    client.close()
    journal.wait("end", [jid, later], deadline=60)
    assert len(journal.runs()[jid]) == 1
    rotation.assert_secret(*shown_by(forkq))
    assert forkq.stop() == 0
