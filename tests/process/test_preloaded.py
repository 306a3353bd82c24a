"""A master or a command that the tests fork finds what an executed one finds (preloaded.py)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.shared import title, workers
from tests.support import preloaded
from tests.support.server import Server
from tests.support.tree import CHECKOUT, FORKQ, ForkqTree, StartTree
from tests.support.waiting import wait_until

NOWHERE = "redis://127.0.0.1:1/0"

# An app that is loaded by the master and says what it finds there.
LOOKS_AROUND = """
import atexit, gc, json, os, re, resource, signal, sys, threading, time, warnings
from pathlib import Path
import forkq

def descriptors():
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sorted((link, re.sub("[0-9]{2,}", "N", os.readlink(link)))
                  for link in links if os.path.lexists(link))  # the list's own is closed by now

status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
streams = (sys.stdin, sys.stdout, sys.stderr)
main = sys.modules["__main__"]
found = {
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "flags": list(sys.flags),
    "environ": dict(os.environ), "cwd": os.getcwd(), "umask": os.umask(0o22),
    "descriptors": descriptors(), "threads": len(threading.enumerate()),
    "main": [main.__name__, getattr(main, "__file__", "")],
    # But for 32 and 33, which the C library uses itself, and ignores where it spawns a program.
    "signals": [int(status[name], 16) & ~(3 << 31)
                for name in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd")],
    "handlers": [repr(signal.getsignal(n)) for n in (2, 1, 3, 13, 17)],
    "session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "limits": [resource.getrlimit(n) for n in range(16)],
    "garbage": [gc.isenabled(), gc.get_threshold()], "filters": [str(f) for f in warnings.filters],
    "streams": [(s.fileno(), s.mode, s.encoding, s.errors, s.line_buffering) for s in streams],
    "forkq": sorted(name for name in sys.modules if name.split(".")[0] == "forkq"),
    "zone": time.tzname, "bytecode": sys.dont_write_bytecode, "recursion": sys.getrecursionlimit(),
}
path = Path("found.json")
path.with_suffix(".tmp").write_text(json.dumps(found, indent=1))
path.with_suffix(".tmp").rename(path)
"""


@pytest.fixture(autouse=True)
def preloading() -> None:
    if not preloaded.can_run(["version"], os.environ):
        pytest.skip("only Linux has what forked masters need (pidfd): test on Linux")


def test_a_forked_master_finds_what_an_executed_one_finds(
    redis_server: Server, tree: StartTree
) -> None:
    config = "[forkq]\npreload = true\n"
    forkq = tree(redis_server, app=LOOKS_AROUND, config=config, env={"TZ": "Asia/Tokyo"})
    forked = _found(forkq)
    assert type(forkq.process) is preloaded.Forked
    assert (title(workers(forkq)[0]).split()[:2], forkq.stop()) == (["forkq", "child"], 0)
    forkq.fresh = True
    executed = _found(forkq.start().wait_ready())
    assert type(forkq.process) is not preloaded.Forked
    assert forked.keys() == executed.keys()
    for name, value in forked.items():
        assert (name, value) == (name, executed[name])
    assert forked["zone"] == ["JST", "JST"]


def _found(tree: ForkqTree) -> dict[str, Any]:
    path = tree.cwd / "found.json"
    wait_until(path.exists, what="what the app has found")
    found: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return found


def test_a_forked_master_that_is_killed_is_seen_to_be_dead(
    redis_server: Server, tree: StartTree
) -> None:
    forkq = tree(redis_server, app="import forkq")
    forkq.process.kill()
    assert (forkq.wait(), forkq.process.poll(), forkq.alive) == (-9, -9, False)
    forkq.process.send_signal(15)  # its pid may be another's by now


@pytest.mark.parametrize(
    "arguments",
    [["version"], ["startt"], ["stats", "--redis", NOWHERE], ["doctor", "--redis", NOWHERE]],
)
def test_a_forked_command_answers_as_an_executed_one(tmp_path: Path, arguments: list[str]) -> None:
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    found = preloaded.run(arguments, tmp_path, env, 60)
    expected = subprocess.run(
        [*FORKQ, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (found.returncode, _fixed(found.stdout), found.stderr) == (
        expected.returncode,
        _fixed(expected.stdout),
        expected.stderr,
    )


def _fixed(printed: str) -> str:
    """Without what the doctor has measured."""
    return re.sub(r"takes about \d+MB", "takes about so much", printed)


def test_nothing_is_forked_where_python_reads_another_environment() -> None:
    assert not preloaded.can_run([], {**os.environ, "PYTHONHASHSEED": "1"})
    assert not preloaded.can_run([], {**os.environ, "LC_ALL": "de_DE.ISO-8859-1"})


def test_a_forked_program_finds_what_python_gives_it(tmp_path: Path) -> None:
    program = (
        "import json, os, sys\n"
        "path = list(dict.fromkeys(sys.path))\n"
        "found = [__name__, sys.argv, sys.orig_argv[1:], path, os.getcwd(), dict(os.environ)]\n"
        "print(json.dumps(found))\n"
        "def annotated(number: int): ...\n"
        "sys.exit(annotated.__annotations__['number'].__name__)\n"
    )
    path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "FORKQ_TEST_WORD": "a b"}
    executed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**env, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    forked = preloaded.run_python(program, tmp_path, env, 60)
    expected, found = json.loads(executed.stdout), json.loads(forked.stdout)
    expected[-1].pop("PYTHONPATH")
    found[-1].pop("PYTHONPATH", None)
    assert found == expected
    assert (forked.returncode, forked.stderr) == (executed.returncode, executed.stderr)
