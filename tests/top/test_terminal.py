"""`forkq top` as a user runs it: in a real terminal, and where there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from forkq.cli.top import _app
from forkq.errors import ForkqError
from tests.support.server import Server
from tests.top.data import failed, job, process, queued, retrying
from tests.top.terminal import PATIENCE, Terminal, needs_tmux

TOP = f"{sys.executable} -m forkq top"


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@needs_tmux
def test_it_is_right_at_80_by_24_and_gives_the_terminal_back(
    redis: Redis, redis_server: Server, terminals: list[Terminal], tmp_path: Path
) -> None:
    queued(redis, "mail", job("m1"))
    retrying(redis, failed("r1", "[red]Mail[/red]\x1b[31m"))
    process(redis, job("runs", "Report"), done=40, total=120, note="rows")
    terminal = Terminal(tmp_path / "tmux", f"echo before; {TOP} --redis {redis_server.url}")
    terminals.append(terminal)
    terminal.shows("1 Dashboard", "Is anything wrong?", "jobs a minute", "live")
    assert terminal.fact("alternate_on") == "1"
    terminal.keys("3")
    terminal.shows("Report", "40 of 120 rows", "42%")
    assert [len(line) <= 80 for line in terminal.text().splitlines()] == [True] * 24
    terminal.keys("g", "r")
    terminal.shows("[red]Mail[/red]\\x1b[31m")
    terminal.resize(60, 16)
    terminal.shows("1 of 1 in the retries", "5 Metrics")
    assert max(len(line) for line in terminal.text().splitlines()) <= 60
    terminal.keys("d")
    terminal.shows("Deleted 1 job of the retries.")
    assert redis.zcard("retry") == 0
    terminal.keys("q")
    terminal.shows("before", "ended with 0")
    assert (terminal.fact("alternate_on"), terminal.fact("cursor_flag")) == ("0", "1")
    assert terminal.fact("mouse_any_flag") == "0"


@needs_tmux
def test_without_colours_and_utf8_it_can_be_read_and_ctrl_c_ends_it(
    redis: Redis, redis_server: Server, terminals: list[Terminal], tmp_path: Path
) -> None:
    retrying(redis, failed("r1", "Größe"))
    command = f"LC_ALL=C NO_COLOR=1 {TOP} --redis {redis_server.url}"
    terminal = Terminal(tmp_path / "tmux", command)
    terminals.append(terminal)
    terminal.shows("Is anything wrong?")
    terminal.keys("g", "r")
    terminal.shows("Gro", "1 of 1 in the retries")
    shown = terminal.text("-e")
    assert shown.isascii(), shown
    assert not any(f"\x1b[{colour}m" in shown for colour in range(30, 38)), repr(shown)
    terminal.keys("C-c")
    terminal.shows("ended with 0")


@needs_tmux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_it_gives_the_terminal_back(
    redis_server: Server, terminals: list[Terminal], tmp_path: Path, number: int
) -> None:
    pid = tmp_path / "pid"
    command = f"sh -c 'echo $$ > {pid}; exec {TOP} --redis {redis_server.url}'"
    terminal = Terminal(tmp_path / "tmux", command)
    terminals.append(terminal)
    terminal.shows("Is anything wrong?")
    os.kill(int(pid.read_text()), number)
    terminal.shows(f"ended with {128 + number}")
    facts = [terminal.fact(f"{name}_flag") for name in ("cursor", "mouse_any")]
    assert (terminal.fact("alternate_on"), *facts) == ("0", "1", "0")


def test_without_a_terminal_it_is_refused(redis_server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forkq", "top", "--redis", redis_server.url],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
    assert "forkq stats --json" in done.stderr
    assert done.stdout == ""


def test_without_textual_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    for name in [name for name in sys.modules if name.startswith("forkq.top.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ForkqError, match=r"needs textual.* -m pip install -e '/.+\[top\]'"):
        _app()
