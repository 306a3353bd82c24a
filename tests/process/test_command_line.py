"""The command line meets what shells and scripts do to it: a message and an exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.support import preloaded
from tests.support.server import Server
from tests.support.tree import FORKQ

NOWHERE = "redis://127.0.0.1:1/0"
NOT_UTF_8 = os.fsdecode(b"caf\xe9")


def forkq(
    *arguments: str, cwd: Path, stdout: int = subprocess.PIPE, **env: str
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(cwd), **env}
    if stdout == subprocess.PIPE and preloaded.can_run(arguments, environ):
        return preloaded.run(arguments, cwd, environ, 60)
    return subprocess.run(
        [*FORKQ, *arguments],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["push", NOT_UTF_8], 2, r"argument 2 is not UTF-8: b'caf\xe9'"),
        (["find", NOT_UTF_8], 2, "argument 2 is not UTF-8"),
        (["pause", NOT_UTF_8], 2, "argument 2 is not UTF-8"),
        ([NOT_UTF_8], 2, "argument 1 is not UTF-8"),
        (["push", "X", "[" * 50_000 + "]" * 50_000], 2, "argument 1 is nested too deeply"),
        (["push", "X", "[" * 501 + "]" * 501], 2, "deeply (more than 500 levels); pass a flatter"),
        (["push", "X", "5" * 5000], 2, "argument 1 is a number of 5,000 digits"),
        (["push", "X", "-" + "5" * 5000], 2, "digits, more than Python reads; pass it as text"),
        (["push", "X", "--in", "1795216066000"], 1, "milliseconds: divide it by 1000"),
        (["push", "X", "--in", "inf"], 1, "is not a time"),
        (["push", "X", "--in", "-5"], 2, "-5 is in the past; give a time to wait, such as 90s"),
        (["stats", "--redis", "redis://h?foo=1"], 2, 'has no option "foo"'),
    ],
)
def test_a_mistake_is_named_for_what_it_is(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    result = forkq(*arguments, cwd=tmp_path, FORKQ_REDIS=NOWHERE)
    assert (result.returncode, said in result.stderr) == (code, True), result.stderr[-500:]
    assert "Traceback" not in result.stderr
    assert len(result.stderr) < 1000


def test_a_variable_that_is_no_utf_8_ends_in_no_traceback(tmp_path: Path) -> None:
    result = forkq("status", cwd=tmp_path, FORKQ_TAG=NOT_UTF_8)
    assert (result.returncode, "Traceback" in result.stderr) == (4, False)


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["config", "check"]])
def test_a_full_disk_under_the_output_is_an_error(tmp_path: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = forkq(*arguments, cwd=tmp_path, stdout=full.fileno())
    assert result.stderr == "forkq: cannot write to standard output: No space left on device\n"
    assert result.returncode == 1


@pytest.mark.parametrize("arguments", [["stats"], ["--help"], ["config", "show"]])
def test_a_reader_that_has_gone_ends_a_command_quietly(
    tmp_path: Path, redis_server: Server, arguments: list[str]
) -> None:
    """As `head` does; the exit code is that of other Unix tools."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = forkq(*arguments, cwd=tmp_path, stdout=writer, FORKQ_REDIS=redis_server.url)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "closed"),
    [("version", ">&-"), ("version", ">&- 2>&-"), ("stats", ">&-"), ("stats", ">&- 2>&- <&-")],
)
def test_closed_descriptors_end_in_no_traceback(
    redis_server: Server, tmp_path: Path, words: str, closed: str
) -> None:
    command = f"{FORKQ[0]} {FORKQ[1]} {words} {closed}"
    environ = {**os.environ, "FORKQ_REDIS": redis_server.url}
    result = subprocess.run(  # noqa: S602
        command, shell=True, cwd=tmp_path, env=environ, capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_letter_that_the_output_cannot_encode_ends_in_no_traceback(tmp_path: Path) -> None:
    result = forkq("push", "X", "é", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)


@pytest.mark.parametrize("form", ["--redis {url}", "--redis={url}"])
def test_a_password_has_left_the_title_before_redis_is_asked(tmp_path: Path, form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"redis://ann:sesame@127.0.0.1:{server.getsockname()[1]}/0"
        command = [*FORKQ, "stats", *form.format(url=url).split()]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            server.settimeout(30)
            with server.accept()[0]:
                title = " ".join(psutil.Process(process.pid).cmdline())
        finally:
            process.kill()
            process.wait(10)
    assert "sesame" not in title
    assert "forkq stats --redis" in title
    assert "ann:***@127.0.0.1" in title


@pytest.mark.parametrize(
    ("score", "created_at", "told"),
    [
        ("inf", "1795216066.5", "after the year 9999 (never)"),
        ("1795216066000", "1795216066000", "after the year 9999"),
        ("1e300", "1e300", "after the year 9999"),
        ("4e9", "9" * 400, "2096-10-02"),
    ],
)
def test_a_job_at_an_impossible_time_is_found(
    tmp_path: Path, redis: Redis, redis_server: Server, score: str, created_at: str, told: str
) -> None:
    """A score is always seconds: what meant milliseconds runs in the year 58,857."""
    payload = f'{{"class":"X","args":[],"jid":"abc","created_at":{created_at}}}'
    redis_server.cli("ZADD", "schedule", score, payload)
    result = forkq("find", "abc", cwd=tmp_path, FORKQ_REDIS=redis_server.url)
    assert result.returncode == 0, result.stderr
    [at] = [line for line in result.stdout.splitlines() if line.startswith("at ")]
    assert told in at
    assert len(at) < 100
    result = forkq("find", "abc", "--json", cwd=tmp_path, FORKQ_REDIS=redis_server.url)

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(result.stdout, parse_constant=no_constant)
    assert found["at"] == (None if score == "inf" else pytest.approx(float(score)))
