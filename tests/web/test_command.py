"""``forkq web`` as a user runs it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from forkq.web.passwords import verify
from tests.support import bound
from tests.support.server import Server

FORKQ = [sys.executable, "-m", "forkq"]
PATIENCE = 60


def test_it_serves_and_ends_at_term_although_a_page_is_live(
    redis_server: Server, tmp_path: Path
) -> None:
    words = ["web", "--listen", "127.0.0.1:0", "--redis", redis_server.url]
    command = bound.command([*FORKQ, *words])
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as web:
        assert web.stderr is not None
        line = web.stderr.readline()
        match = re.match(r"forkq web: http://127\.0\.0\.1:(\d+) \(pid \d+", line)
        assert match, line
        with socket.create_connection(("127.0.0.1", int(match[1])), timeout=PATIENCE) as live:
            ask = "GET /queues HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
            live.sendall(ask.encode())
            answer = b""
            while b"data:" not in answer:
                answer += live.recv(65536)
            assert b"200 OK" in answer
            assert b"text/event-stream" in answer
            web.send_signal(signal.SIGTERM)
            assert web.wait(PATIENCE) in {0, -signal.SIGTERM}
        assert "Traceback" not in web.stderr.read()


def test_beyond_the_loopback_it_refuses_to_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [*FORKQ, "web", "--listen", "0.0.0.0:0"],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "forkq web hash-password" in done.stderr
    assert "Traceback" not in done.stderr


def test_hash_password_prints_what_the_configuration_takes(tmp_path: Path) -> None:
    done = subprocess.run(
        [*FORKQ, "web", "hash-password"], input="correct horse\n",
        capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert verify("correct horse", done.stdout.strip())
    assert not verify("correct hors", done.stdout.strip())
